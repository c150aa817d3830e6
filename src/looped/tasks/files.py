"""Examples from a user's file, plain or gzip: JSON lines (as `looped data build` writes them), or CSV."""

import csv
import gzip
import hashlib
import io
import re
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from looped.tasks.base import Batch, Split, Task, content_bucket, draw_keys, split_buckets, supplied
from looped.utils.errors import InputError, require, require_field
from looped.utils.files import bounded_lines, file_version, from_json

_GZIP_MAGIC = b"\x1f\x8b"
_KINDS = {str: "text", int: "an integer", list: "a list"}
_INTEGER = re.compile(r"\s*-?[0-9]{1,15}\s*")


@dataclass(frozen=True)
class FileTask(Task):
    """A task whose examples are generated, or read from a user's file.

    The split of a row follows from a hash of its content, so the splits share no content.
    """

    file: str | None = field(default=None, kw_only=True)
    """file of examples, JSON lines or CSV: a path or a name under LOOPED_DATA (None: generated examples)"""
    file_role: Literal["split", "test"] = field(default="split", kw_only=True)
    """use of the file's rows: split into training, validation and test, or all for testing"""

    @abstractmethod
    def generate(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        """Return generated examples, as `sample` does without a file."""

    def read_row(self, row: dict[str, Any]) -> tuple[np.ndarray, ...]:
        """Return one row of a file as arrays, the question first. Raise InputError if the row is wrong.

        The values of a CSV are texts. By default a row has `input`, which `parse` reads, and the class `answer`.
        """
        inputs = self.parse(field_of(row, "input", str))
        targets = np.zeros(len(inputs), dtype=np.int64)
        targets[-1] = field_of(row, "answer", int)
        classes = self.spec.output_size
        require(0 <= targets[-1] < classes, f"answer: expected a class in 0..{classes - 1}, got {targets[-1]}")
        return inputs, targets

    def from_rows(self, *arrays: np.ndarray) -> Batch:
        """Return a batch from stacked arrays of `read_row` (default: inputs and targets)."""
        inputs, targets = arrays
        return Batch(inputs, targets, self.counted(inputs))

    def sample(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        if self.file is None:
            return self.generate(seed, split, indices, size)
        return self.from_rows(*self.rows_at(seed, split, indices, size))

    def rows_at(
        self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None
    ) -> tuple[np.ndarray, ...]:
        """Return rows of the file, stacked. They repeat after the last one."""
        whole = self.checked_size(size) == self.size
        require_field(whole, "size", f"{self.size}, the only size of a file (--train.size-schedule fixed)", size)
        _, _, places = draw_keys(seed, split, indices)
        rows = self._rows_of(split)
        return tuple(array[rows[places % len(rows)]] for array in self._content.arrays)

    def num_distinct(self, split: Split, example_size: int | None = None) -> int | None:
        return super().num_distinct(split, example_size) if self.file is None else len(self._rows_of(split))

    def examples(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        batch = self.sample(seed, split, indices)
        return [self.describe(inputs, targets) for inputs, targets in zip(batch.inputs, batch.targets, strict=True)]

    def fingerprints(self) -> dict[str, str]:
        return {} if self.file is None else {"task.file": file_hash(self._path)}

    @property
    def _path(self) -> Path:
        return supplied(self.file or "", "examples", "a file of JSON lines or CSV")

    @property
    def _content(self) -> "FileContent":
        return _read_content(self, self._path, file_version(self._path))

    def _rows_of(self, split: Split) -> np.ndarray:
        """Return the rows of a split in random order, because files are often sorted."""
        buckets = self._content.buckets
        if self.file_role == "test":
            require(split == "test", f"split: expected 'test', got {split!r}. All of {self._path} is for testing.")
            rows = np.arange(len(buckets))
        else:
            first, end = split_buckets(split)
            rows = np.flatnonzero((first <= buckets) & (buckets < end))
        require(len(rows) > 0, f"{self._path}: expected {split} rows, got none among {len(buckets)}")
        return np.random.default_rng(0).permutation(rows)


class FileContent:
    """The rows of a file as stacked arrays, with the bucket of each row."""

    def __init__(self, rows: list[tuple[np.ndarray, ...]]) -> None:
        self.arrays = tuple(np.stack(arrays) for arrays in zip(*rows, strict=True))
        self.buckets = np.array([content_bucket(question) for question, *_ in rows])


@lru_cache(maxsize=4)
def _read_content(task: FileTask, path: Path, _: tuple[int, int]) -> FileContent:
    rows, shape = [], None
    for line, row in file_rows(path, task.name):
        try:
            arrays = task.read_row(row)
            shapes = [array.shape for array in arrays]
            shape = shapes if shape is None else shape
            require(shapes == shape, "expected an example of the same length as those before it")
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from None
        rows.append(arrays)
    require(bool(rows), f"{path}: expected examples, got none")
    return FileContent(rows)


def file_rows(path: Path, task: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, row) of JSON lines or of a CSV with a header line. Skip the header of `looped data build`."""
    lines = text_lines(path)
    first = next(lines, None)
    if first is None:
        return
    number, line = first
    if not line.startswith("{") and ".jsonl" not in path.suffixes:
        yield from _csv_rows(path, line, lines)
        return
    header = _json_row(path, number, line)
    if isinstance(header.get("task"), dict) and "size" in header:
        name = header["task"].get("name")
        require(name == task, f"{path}, line {number}: expected examples of {task}, got {name!r}")
    else:
        yield number, header
    for number, line in lines:
        yield number, _json_row(path, number, line)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of a plain or gzip file, without empty lines and lines that start with #."""
    try:
        with open(path, "rb") as raw:
            is_gzip = raw.peek(2)[:2] == _GZIP_MAGIC
            require(is_gzip or path.suffix != ".gz", f"{path}: expected a gzip file, got another format")
            text = io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if is_gzip else raw, encoding="utf-8-sig")
            for number, line in enumerate(bounded_lines(text, path), start=1):
                if (stripped := line.strip()) and not stripped.startswith("#"):
                    yield number, stripped
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text, got other bytes ({error.reason})") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: expected a complete gzip file, got a damaged one ({error})") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def csv_fields(path: Path, number: int, line: str) -> list[str]:
    """Return the fields of one line of a CSV."""
    try:
        return next(csv.reader([line])) if '"' in line else line.split(",")
    except csv.Error as error:
        raise InputError(f"{path}, line {number}: expected a row of CSV, got another format ({error})") from None


def _csv_rows(path: Path, header: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    columns = [name.strip() for name in csv_fields(path, 1, header)]
    for number, line in lines:
        values = csv_fields(path, number, line)
        complete = len(values) == len(columns)
        require(complete, f"{path}, line {number}: expected {len(columns)} columns, got {len(values)}")
        yield number, dict(zip(columns, values, strict=True))


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = from_json(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {number}: expected a JSON object, got {line[:40]!r}")
    return row


def field_of(row: dict[str, Any], name: str, kind: type) -> Any:
    """Return a field of a row as text, an integer or a list. Raise InputError if it is missing or of another type."""
    require(name in row, f"{name}: expected a column of this name, got {', '.join(map(str, row)) or 'none'}"[:200])
    value = row[name]
    if kind is int and isinstance(value, str) and _INTEGER.fullmatch(value):  # an integer in a CSV is text
        return int(value)
    if kind is list and isinstance(value, str):  # a list in a CSV is JSON
        try:
            value = from_json(value)
        except ValueError:
            value = row[name]
    require(type(value) is kind, f"{name}: expected {_KINDS[kind]}, got {repr(value)[:40]}")
    return value


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
