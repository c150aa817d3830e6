"""Text on disk as one long row of tokens: found, read, encoded once, and kept in the cache folder as 16-bit numbers.

A text is a file or a folder (of `wiki.train.raw`, `valid.txt.zst`, `test-00000.parquet` and the like), or a data set
of Hugging Face. Each row of JSON lines or CSV is one article, as in a file of `looped data build`. Splits are those of
its files; where there is none for a split, the text is cut (see `find`).
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from looped.tasks.base import Split, supplied
from looped.tasks.files import field_of, file_rows
from looped.tasks.language import stories
from looped.tasks.language.tokenizer import GPT2, Tokenizer
from looped.utils.errors import InputError, require
from looped.utils.files import cache_folder, from_json, locked, save_json, save_text, writing

EndOfText = Literal["article", "line"]
TextRole = Literal["split", "test"]

HUGGING_FACE = "hf:"
ROW_FORMATS = (".jsonl", ".csv")  # also with .gz
FORMATS = (".raw", ".tokens", ".txt", ".parquet", *ROW_FORMATS)  # in a folder that has several, the first is taken
# Words of a file's name that say which split it is: not that of a testament or a valley, but testa.txt or trainV2.txt.
SPLIT_NAMES: dict[Split, str] = {
    "train": "train(ing)?", "validation": "val(id(ation)?)?|dev(el(opment)?)?", "test": "test(ing)?",
}  # fmt: skip
SPLIT_ENDS = "(data|sets?|s|a|b|v)?"
ARTICLE_END = re.compile(r"(?:(?:^|\n)\x1e)+(?:\n|$)")
# What Unicode calls white space; GPT-2's pattern never joins what lies before such a character with what follows.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
BLOCK = 4 << 20  # bytes of text that are encoded, and can be resumed after, at a time
MAX_LINE = 64 << 20  # bytes without a newline: they are in memory together
ZSTD_PIECE = 1 << 10  # packed bytes that are unpacked at a time: four of them may become 128 KiB
DTYPE = np.dtype("<u2")


class Share(NamedTuple):
    """The part of the sources' tokens from `start` to `end`, as shares of the whole."""

    sources: tuple[str, ...]
    start: float = 0.0
    end: float = 1.0


def find(text: str, split: Split, role: TextRole = "split") -> Share:
    """Return where a split's text is: its own files, half of the other held-out split's files, or a part of all.

    A text without held-out files is cut at 90 and 95 %, or is all for testing if that is its role.
    """
    if text.startswith(HUGGING_FACE):
        return Share((f"{text}:{split}",))
    path = _resolve(text)
    if path.is_file():
        everything, named = (str(path),), {}
    else:
        everything, named = _files(path)
    held_out = {name: files for name, files in named.items() if name != "train"}
    if not held_out:
        others = [Path(name).name for name in everything if name not in named.get("train", everything)]
        if others:
            raise InputError(
                f"cannot tell what is held out in {path}: expected train, valid or test in all names, or train in "
                f"none, got {others[0]}"
            )
        if role == "test":
            expected = f"expected the split test, got {split}: all of {text} is for testing"
            require(split == "test", f"task.text_role: {expected}")
            return Share(everything)
        cuts: dict[Split, tuple[float, float]] = {"train": (0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1)}
        return Share(everything, *cuts[split])
    if split in named:
        alone = split == "train" or len(held_out) == 2
        return Share(named[split]) if alone else Share(named[split], *_half(split))
    require(split != "train", f"no training text in {path}: expected files with train in their names")
    (files,) = held_out.values()
    return Share(files, *_half(split))


def tokens(
    text: str, split: Split, end_of_text: EndOfText, tokenizer: Tokenizer = GPT2, role: TextRole = "split"
) -> np.ndarray:
    """A split's tokens, (number,) 16-bit, mapped from the cache folder; encoded first where they are not there yet."""
    share = find(text, split, role)
    whole = np.memmap(_encoded(share.sources, end_of_text, tokenizer), dtype=DTYPE, mode="r")
    return whole[int(share.start * len(whole)) : int(share.end * len(whole))]


def fingerprint(text: str, split: Split, end_of_text: EndOfText, tokenizer: Tokenizer = GPT2) -> str:
    """A hash of the tokens that a split's are a share of, wherever they lie; made once, as they may be many."""
    path = _encoded(find(text, split).sources, end_of_text, tokenizer)
    kept = _hash_path(path)
    if kept.exists():
        return kept.read_text()
    with path.open("rb") as file:
        made = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(InputError):  # tokens that others have made may lie where we cannot write
        save_text(kept, made)
    return made


def _hash_path(tokens_path: Path) -> Path:
    return tokens_path.with_suffix(".sha256")


def _encoded(sources: tuple[str, ...], end_of_text: EndOfText, tokenizer: Tokenizer) -> Path:
    """The file of the sources' tokens in the cache folder."""
    known = [_identity(source) for source in sources]
    key = hashlib.sha256(json.dumps([tokenizer.ranks_sha256, end_of_text, known]).encode()).hexdigest()[:16]
    path = cache_folder() / "tokens" / f"{key}.bin"
    if not path.exists():
        _hash_path(path).unlink(missing_ok=True)
        _encode_once(sources, end_of_text, tokenizer, path)
    return path


def _resolve(text: str) -> Path:
    if text == stories.NAME:
        return stories.story_file()
    other = f"{stories.NAME}, or a data set like hf:Salesforce/wikitext:wikitext-103-raw-v1"
    return supplied(text, "text", f"a file, a folder, {other}")


def _suffix(path: Path) -> str:
    """Return what says a file's format: its suffix without .zst, or that of packed rows."""
    name = Path(path.name.lower())
    inner = Path(name.stem).suffix
    return inner if name.suffix == ".zst" or (name.suffix == ".gz" and inner in ROW_FORMATS) else name.suffix


def _files(folder: Path) -> tuple[tuple[str, ...], dict[Split, tuple[str, ...]]]:
    """All text files of one format in a folder, and those of each split by their names."""
    by_format: dict[str, list[Path]] = {}
    with _reading(folder):
        present = sorted(folder.iterdir())
    for path in present:
        by_format.setdefault(_suffix(path), []).append(path)
    paths = next((by_format[suffix] for suffix in FORMATS if suffix in by_format), None)
    if paths is None:
        raise InputError(f"no text in {folder}: expected files ending in {', '.join(FORMATS)} or these with .zst")
    named: dict[Split, tuple[str, ...]] = {}
    for path in paths:
        splits = _splits_named(path.name)
        require(
            len(splits) <= 1, f"cannot tell which split {path} is: expected the name of one, got {' and '.join(splits)}"
        )
        for split in splits:
            named[split] = (*named.get(split, ()), str(path))
    return tuple(map(str, paths)), named


def _splits_named(name: str) -> list[Split]:
    """The splits that the words of a file's name say."""
    return [
        split
        for split, names in SPLIT_NAMES.items()
        if re.search(f"(?<![a-z])({names}){SPLIT_ENDS}(?![a-z])", name.lower())
    ]


def _half(split: Split) -> tuple[float, float]:
    return (0.0, 0.5) if split == "validation" else (0.5, 1.0)


def _identity(source: str) -> list[str | int]:
    """Return a key that changes when the source changes."""
    if source.startswith(HUGGING_FACE):
        return [source]
    with _reading(source):
        status = os.stat(source)
    rows = ["rows"] if _suffix(Path(source)) in ROW_FORMATS else []  # earlier versions encoded their JSON
    return [os.path.abspath(source), status.st_size, status.st_mtime_ns, *rows]


def _encode_once(sources: tuple[str, ...], end_of_text: EndOfText, tokenizer: Tokenizer, path: Path) -> None:
    """Encode block by block into a part file; a journal says how far it is good, so that a later call can go on."""
    part, journal = path.with_suffix(".part"), path.with_suffix(".json")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            if path.exists():  # another process was faster
                return
            num_blocks, num_tokens = _read_journal(journal, part)
            with part.open("r+b" if num_blocks else "wb") as file:
                file.truncate(num_tokens * DTYPE.itemsize)
                file.seek(0, os.SEEK_END)
                for number, block in enumerate(_blocks(sources, end_of_text), start=1):
                    if number <= num_blocks:
                        continue
                    row = _encode_block(block, end_of_text, tokenizer)
                    file.write(row.astype(DTYPE).tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                    num_tokens += len(row)
                    save_json(journal, [number, num_tokens])
            require(num_tokens > 0, f"{sources[0]} is empty: expected text")
            os.replace(part, path)
            journal.unlink(missing_ok=True)


def _read_journal(journal: Path, part: Path) -> tuple[int, int]:
    try:
        num_blocks, num_tokens = from_json(journal.read_text())
        whole = part.stat().st_size >= num_tokens * DTYPE.itemsize
    except (OSError, ValueError):
        return 0, 0
    return (num_blocks, num_tokens) if whole else (0, 0)


@contextmanager
def _reading(source: str | Path) -> Iterator[None]:
    """A source that cannot be read is named, and not taken for a cache that cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror or error}") from None


def _blocks(sources: tuple[str, ...], end_of_text: EndOfText) -> Iterator[str]:
    """The text in blocks that can be encoded one by one to what the whole would be."""
    for number, source in enumerate(sources):
        kept = ""
        if number and end_of_text == "article":
            kept = "\n\x1e\n"
        for text in _read(source, end_of_text):
            if end_of_text == "line":
                yield text
                continue
            # White space at the end may belong to a run that goes on in the next block.
            text = kept + text
            body = text.rstrip(WHITE_SPACE + "\x1e")
            kept = text[len(body) :]
            if body:
                yield body
        if kept and number == len(sources) - 1:
            yield kept


def _encode_block(block: str, end_of_text: EndOfText, tokenizer: Tokenizer) -> np.ndarray:
    mark = np.array([tokenizer.end_of_text], dtype=np.uint16)
    rows: list[np.ndarray] = []
    if end_of_text == "line":
        for line in block.removesuffix("\n").split("\n"):
            rows += tokenizer.encode(line + "\n"), mark
    else:
        for article in ARTICLE_END.split(block):
            rows += tokenizer.encode(article), mark
        rows.pop()
    return np.concatenate(rows)


def _read(source: str, end_of_text: EndOfText) -> Iterator[str]:
    with _reading(source):
        yield from _lines(source, end_of_text)


def _lines(source: str, end_of_text: EndOfText) -> Iterator[str]:
    """A source's text in blocks of whole lines."""
    if source.startswith(HUGGING_FACE):
        return _hugging_face_rows(source)
    suffix = Path(source).suffix.lower()
    if suffix == ".parquet":
        return _parquet_rows(source)
    if _suffix(Path(source)) in ROW_FORMATS:
        return _written_rows(Path(source), "\n\x1e\n" if end_of_text == "article" else "\n")
    return _decoded(_unpacked(source) if suffix == ".zst" else _raw(source, BLOCK), source)


def _raw(source: str, size: int) -> Iterator[bytes]:
    with open(source, "rb") as file:
        while data := file.read(size):
            yield data


def _unpacked(source: str) -> Iterator[bytes]:
    """The content of a zstd file, by the `zstandard` package or, without it, by the `zstd` program."""
    complaint = f"{source} is cut short or no zstd file"
    try:
        import zstandard  # pyright: ignore[reportMissingImports]
    except ImportError:
        require(shutil.which("zstd") is not None, f"to read {source}: pip install zstandard, or install zstd")
        with subprocess.Popen(["zstd", "-dcq", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            while data := process.stdout.read(BLOCK):
                yield data
        require(process.returncode == 0, complaint)
        return
    reader, inside = zstandard.ZstdDecompressor().decompressobj(), False
    for data in _raw(source, ZSTD_PIECE):
        while data:
            if not inside:
                reader = zstandard.ZstdDecompressor().decompressobj()
            try:
                yield reader.decompress(data)
            except zstandard.ZstdError:
                raise InputError(complaint) from None
            inside, data = not reader.eof, reader.unused_data
    require(not inside, complaint)


def _decoded(parts: Iterable[bytes], source: str) -> Iterator[str]:
    """Yield bytes as text, cut after the last newline of each BLOCK. Raise InputError for a line outside UTF-8."""
    # Pieces, joined once they are cut off: text without newlines is copied once, however long it is.
    lines: list[bytes] = []
    begun: list[bytes] = []
    num_waiting, num_lines = 0, 0
    for part in _chained(parts):
        end = part.rfind(b"\n") + 1
        if end or not part:
            lines += *begun, part[:end]
            begun = []
        begun.append(part[end:])
        num_waiting += len(part)
        require(sum(map(len, begun)) <= MAX_LINE, f"{source}: expected a newline within {MAX_LINE:,} bytes")
        if part and num_waiting < BLOCK:
            continue
        block, lines = b"".join(lines), []
        num_waiting -= len(block)
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError as error:
            line = num_lines + block[: error.start].count(b"\n") + 1
            byte = f"0x{block[error.start]:02x}"
            raise InputError(f"{source}, line {line}: expected UTF-8 text, got byte {byte}") from None
        num_lines += text.count("\n")
        if text:
            yield text


def _chained(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts that hold anything, and an empty one that says it was the last."""
    yield from (part for part in parts if part)
    yield b""


def _written_rows(path: Path, end: str) -> Iterator[str]:
    """Yield the `text` of each row of JSON lines or CSV, with the `next` token of the rows of `looped data build`."""
    require(path.suffix.lower() != ".zst", f"{path}: expected rows in a plain or gzip file, got zstd")
    for line, row in file_rows(path, "language"):
        try:
            text = field_of(row, "text", str) + (field_of(row, "next", str) if "next" in row else "")
            is_unicode = not any("\ud800" <= letter <= "\udfff" for letter in text)
            require(is_unicode, "text: expected valid Unicode, got half a character")
            yield text + end
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from None


def _parquet_rows(source: str) -> Iterator[str]:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(f"to read {source}: pip install pyarrow") from None
    try:
        with pyarrow.parquet.ParquetFile(source) as file:
            names = file.schema_arrow.names
            require("text" in names, f"{source}: expected a column text, got {', '.join(names)}")
            for batch in file.iter_batches(columns=["text"]):
                yield _joined(batch.column("text").to_pylist())
    except pyarrow.ArrowException as error:
        raise InputError(f"{source} is cut short or no parquet file ({str(error).splitlines()[0]})") from None


def _hugging_face_rows(source: str) -> Iterator[str]:
    name, *config, split = source.removeprefix(HUGGING_FACE).split(":")
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(f"to read {source}: pip install datasets") from None
    try:
        rows = datasets.load_dataset(name, *config, split=split)  # pyright: ignore[reportAttributeAccessIssue] (an extra)
    except Exception as error:  # that library raises its own, the network's and the hub's
        raise InputError(f"could not get {source}: {str(error).splitlines()[0]}") from None
    require("text" in rows.column_names, f"{source}: expected a column text, got {', '.join(rows.column_names)}")
    for batch in rows.iter(batch_size=10_000):
        yield _joined(batch["text"])


def _joined(rows: Iterable[str | None]) -> str:
    """Rows as lines: the newline that some data sets drop is put back."""
    return "".join(row if row.endswith("\n") else row + "\n" for row in (row or "" for row in rows))
