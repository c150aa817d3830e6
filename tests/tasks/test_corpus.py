"""Corpora: finding, reading, splitting and caching texts as tokens."""

import gzip
import json
import os
import resource
import shutil
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.tasks.datasets import build
from looped.tasks.language import corpus
from looped.tasks.language.task import Language
from looped.tasks.language.tokenizer import GPT2
from looped.utils.errors import InputError
from tests.cli.command import answer, complaint
from tests.refusal import refused
from tests.tasks.conftest import PROSE


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("LOOPED_CACHE", str(folder))
    return folder


def supplied(*parts: str) -> Path:
    path = Path(os.environ.get("LOOPED_DATA", "/nonexistent"), *parts)
    if not path.exists():
        pytest.skip(f"LOOPED_DATA holds no {'/'.join(parts)}")
    return path


def whole(text: str, **knobs) -> np.ndarray:
    """Return all tokens of a file, joined from its three splits."""
    task = Language(text=text, **knobs)
    return np.concatenate([task.tokens(split) for split in ("train", "validation", "test")])


class TestCorpus:
    @pytest.mark.parametrize("block", [16, 100, 1000, 1 << 20])
    def test_encoding_in_blocks_equals_encoding_at_once(self, prose, block, monkeypatch):
        monkeypatch.setattr(corpus, "BLOCK", block)
        assert whole(str(prose)).tolist() == GPT2.encode(prose.read_text(encoding="utf-8")).tolist()

    @pytest.mark.parametrize("block", [7, 12, 1 << 20])
    def test_end_of_text_separates_articles(self, tmp_path, block, monkeypatch):
        monkeypatch.setattr(corpus, "BLOCK", block)
        path = tmp_path / "articles.txt"
        path.write_text("One\n\nfirst.\n\x1e\nTwo\n\nsecond.\n\x1e\nThree\n")
        expected = []
        for article in ("One\n\nfirst.", "Two\n\nsecond.", "Three\n"):
            expected += [*GPT2.encode(article).tolist(), 50256]
        assert whole(str(path)).tolist() == expected[:-1]

    def test_end_of_text_line_follows_every_line(self, tmp_path):
        path = tmp_path / "lines.txt"
        path.write_text("one\n\ntwo")
        expected = [
            *GPT2.encode("one\n"),
            50256,
            *GPT2.encode("\n"),
            50256,
            *GPT2.encode("two\n"),
            50256,
        ]
        assert whole(str(path), end_of_text="line").tolist() == expected

    def test_several_files_are_concatenated(self, tmp_path):
        for name, text in (("train-0", "zero"), ("train-1", "one\n"), ("valid", "held\n"), ("test", "out\n")):
            (tmp_path / f"{name}.txt").write_text(text)
        task = Language(text=str(tmp_path))
        assert GPT2.decode(task.tokens("train").tolist()) == "zero<|endoftext|>one\n"
        assert GPT2.decode(task.tokens("validation").tolist()) == "held\n"
        assert GPT2.decode(task.tokens("test").tolist()) == "out\n"

    def test_zstd_and_parquet_equal_plain_text(self, prose, tmp_path):
        zstandard, arrow = pytest.importorskip("zstandard"), pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        text = prose.read_text(encoding="utf-8")
        packed = tmp_path / "prose.txt.zst"
        half = len(text) // 2
        frames = [zstandard.ZstdCompressor().compress(part.encode()) for part in (text[:half], text[half:])]
        packed.write_bytes(b"".join(frames))
        rows = tmp_path / "prose.parquet"
        lines = text.removesuffix("\n").split("\n")
        parquet.write_table(arrow.table({"text": lines}), rows)
        expected = whole(str(prose)).tolist()
        assert whole(str(packed)).tolist() == expected
        assert whole(str(rows)).tolist() == expected

    def test_zstd_bomb_is_unpacked_in_pieces_and_refused(self, tmp_path):
        zstandard = pytest.importorskip("zstandard")
        bomb = tmp_path / "bomb.txt.zst"
        bomb.write_bytes(zstandard.ZstdCompressor().compress(bytes(256 << 20)))
        assert bomb.stat().st_size < 50_000
        assert max(map(len, corpus._unpacked(str(bomb)))) <= corpus.MAX_LINE
        with refused(bomb):
            corpus.tokens(str(bomb), "train", "article")

    @pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd program")
    def test_zstd_without_the_package_raises(self, tmp_path, prose, monkeypatch):
        zstandard = pytest.importorskip("zstandard")
        packed = tmp_path / "prose.txt.zst"
        packed.write_bytes(zstandard.ZstdCompressor().compress(prose.read_bytes()))
        broken = tmp_path / "broken.txt.zst"
        broken.write_bytes(packed.read_bytes()[:-9])
        monkeypatch.setitem(sys.modules, "zstandard", None)
        assert whole(str(packed)).tolist() == whole(str(prose)).tolist()
        with refused(None, broken):
            whole(str(broken))

    def test_hugging_face_data_set_is_read(self, monkeypatch):
        class Rows:
            column_names = ("text",)

            def __init__(self, rows):
                self.rows = rows

            def iter(self, batch_size):
                yield {"text": self.rows}

        def load_dataset(name, config, split):
            assert (name, config) == ("someone/text", "plain")
            return Rows([f"{split} row", "", "another\n"])

        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
        task = Language(text="hf:someone/text:plain")
        assert GPT2.decode(task.tokens("test").tolist()) == "test row\n\nanother\n"
        monkeypatch.setitem(sys.modules, "datasets", None)
        with refused(None, "pip install datasets"):
            Language(text="hf:someone/other:plain").tokens("test")

    def test_interrupted_encoding_resumes(self, prose, monkeypatch, own_cache):
        monkeypatch.setattr(corpus, "BLOCK", 1000)
        task, encode = Language(text=str(prose)), corpus._encode_block
        blocks = list(corpus._blocks((str(prose),), "article"))
        interrupted = Mock(wraps=encode, side_effect=[DEFAULT] * 4 + [KeyboardInterrupt])
        monkeypatch.setattr(corpus, "_encode_block", interrupted)
        with pytest.raises(KeyboardInterrupt):
            task.tokens("train")
        (part,) = own_cache.glob("tokens/*.part")
        with part.open("ab") as file:
            file.write(b"half a block that was never finished")
        then = Mock(wraps=encode)
        monkeypatch.setattr(corpus, "_encode_block", then)
        task.tokens("train")
        assert [call.args[0] for call in then.call_args_list] == blocks[4:] != []
        assert whole(str(prose)).tolist() == GPT2.encode(prose.read_text(encoding="utf-8")).tolist()
        assert {path.suffix for path in own_cache.glob("tokens/*")} == {".bin", ".lock"}

    def test_changed_text_is_encoded_again(self, prose):
        for number, text in enumerate(("something else\n", "something more\n")):  # of the same length
            prose.write_text(text)
            os.utime(prose, (number, number))
            assert GPT2.decode(whole(str(prose)).tolist()) == text

    def test_concurrent_threads_get_the_same_tokens(self, prose, monkeypatch):
        monkeypatch.setattr(corpus, "BLOCK", 1000)
        with ThreadPoolExecutor(4) as pool:
            rows = list(pool.map(lambda _: Language(text=str(prose)).tokens("train").tolist(), range(4)))
        assert rows[0] == rows[1] == rows[2] == rows[3]
        assert GPT2.encode(prose.read_text(encoding="utf-8")).tolist()[: len(rows[0])] == rows[0]

    def test_encoding_on_a_full_disk_raises(self, prose, own_cache):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        try:
            with pytest.raises(InputError) as caught:
                whole(str(prose))
            assert own_cache in Path(caught.value.field).parents
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(own_cache.glob("tokens/*.bin"))
        assert whole(str(prose)).tolist() == GPT2.encode(prose.read_text(encoding="utf-8")).tolist()

    def test_unreadable_text_raises(self, tmp_path, prose):
        files = {
            "empty.txt": (b"", []),
            "latin.txt": (b"fine\nfine\ncaf\xe9 au lait\n", ["line 3", "0xe9"]),
            "cut.txt.zst": (b"\x28\xb5\x2f\xfd\x04", []),
            "no.txt.zst": (b"plain text", []),
        }
        for name, (content, values) in files.items():
            self.assert_refused(tmp_path / name, content, values)

    def test_damaged_parquet_file_raises(self, tmp_path):
        pytest.importorskip("pyarrow")
        self.assert_refused(tmp_path / "no.parquet", b"plain text", [])

    def assert_refused(self, path, content, values):
        path.write_bytes(content)
        with refused(path if "latin" in path.name else None, path, *values):
            whole(str(path))

    def test_unreadable_source_raises_with_its_path(self, tmp_path):
        for name in ("train.txt", "valid.txt", "test.txt"):
            (tmp_path / name).mkdir()
        with refused(tmp_path / "train.txt"):
            Language(text=str(tmp_path)).tokens("train")
        (tmp_path / "test.txt").rmdir()
        (tmp_path / "test.txt").symlink_to(tmp_path / "gone")
        with refused(tmp_path / "test.txt"):
            Language(text=str(tmp_path)).tokens("test")

    def test_parquet_without_the_text_column_raises(self, tmp_path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"words": ["a"]}), tmp_path / "wrong.parquet")
        with refused(tmp_path / "wrong.parquet", "words"):
            whole(str(tmp_path / "wrong.parquet"))

    def test_missing_text_raises(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LOOPED_DATA", str(tmp_path))
        task = Language()
        assert task.spec.output_size == 50304
        with refused(None, "wikitext"):
            task.sample(0, "train", [0])
        (tmp_path / "wikitext").mkdir()
        with refused(None, tmp_path / "wikitext"):
            task.sample(0, "train", [0])
        (tmp_path / "wikitext" / "wiki.valid.raw").write_text("text\n" * 3000)
        with refused(None, tmp_path / "wikitext", "train"):
            task.sample(0, "train", [0])
        assert task.sample(0, "validation", [0]).inputs.shape == (1, 1024)

    def test_missing_held_out_split_is_half_of_the_other(self, tmp_path):
        (tmp_path / "train.txt").write_text("train")
        (tmp_path / "valid.txt").write_text("\n".join(f"line {number}" for number in range(500)))
        task = Language(text=str(tmp_path))
        halves = [task.tokens(split) for split in ("validation", "test")]
        assert abs(len(halves[0]) - len(halves[1])) <= 1
        assert np.concatenate(halves).tolist() == GPT2.encode((tmp_path / "valid.txt").read_text()).tolist()

    @pytest.mark.parametrize(
        ("train", "valid", "test"),
        [
            ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"),
            ("train-00000-of-00002.parquet", "validation-00000.parquet", "test-00000.parquet"),
            ("TRAIN.TXT", "Valid.Txt", "TEST.TXT"),
            ("training_set.txt", "dev2.txt", "3test.txt"),
            ("trainset.txt", "development.txt", "testset.txt"),
            ("traindata.txt", "devel.txt", "tests.txt"),
            ("trainV2.txt", "validV2.txt", "testV2.txt"),
            ("eng.train.txt", "eng.vala.txt", "eng.testb.txt"),
        ],
    )
    def test_words_of_a_file_name_decide_the_split(self, train, valid, test, tmp_path):
        for name in (train, valid, test):
            (tmp_path / name).touch()
        for split, name in (("train", train), ("validation", valid), ("test", test)):
            assert corpus.find(str(tmp_path), split) == ((str(tmp_path / name),), 0.0, 1.0)

    def test_file_name_that_only_begins_like_a_split_is_ignored(self, tmp_path):
        names = ["devil.txt", "new-testament.txt", "old-testament.txt", "trainer.txt", "valley.txt"]
        for name in names:
            (tmp_path / name).touch()
        cuts = {split: corpus.find(str(tmp_path), split) for split in ("train", "validation", "test")}
        assert {share.sources for share in cuts.values()} == {tuple(str(tmp_path / name) for name in names)}
        assert [share[1:] for share in cuts.values()] == [(0, 0.9), (0.9, 0.95), (0.95, 1)]

    def test_other_files_beside_a_training_text_raise(self, tmp_path):
        for name in ("train.txt", "notes.txt"):
            (tmp_path / name).touch()
        with refused(None, tmp_path, "notes.txt"):
            corpus.find(str(tmp_path), "train")
        (tmp_path / "notes.txt").rename(tmp_path / "train-2.txt")
        assert corpus.find(str(tmp_path), "train")[1:] == (0, 0.9)

    def test_file_name_of_two_splits_raises(self, tmp_path):
        for name in ("train_valid.txt", "test.txt"):
            (tmp_path / name).touch()
        for split in ("train", "validation", "test"):
            with refused(None, "train_valid.txt", "train and validation"):
                corpus.find(str(tmp_path), split)

    def test_split_names_ignore_case(self, tmp_path):
        zstandard = pytest.importorskip("zstandard")
        (tmp_path / "TEXT.TXT.ZST").write_bytes(zstandard.compress(PROSE.encode()))
        assert whole(str(tmp_path / "TEXT.TXT.ZST")).tolist() == GPT2.encode(PROSE).tolist()
        assert whole(str(tmp_path)).tolist() == GPT2.encode(PROSE).tolist()


class TestSuppliedData:
    def test_wikitext_has_its_published_number_of_tokens(self):
        task = Language(text=str(supplied("wikitext")))
        assert len(task.tokens("validation")) == 249_887
        assert len(task.tokens("test")) == 286_221

    def test_enwiki_articles_end_with_the_token(self):
        pytest.importorskip("zstandard")
        path = supplied("enwiki2015", "valid.txt.zst")
        tokens = whole(str(path))
        assert (tokens == GPT2.end_of_text).sum() == 249
        assert GPT2.decode(tokens[:3].tolist()).startswith("Sci")


@given(
    st.lists(st.text("a\né", max_size=9), max_size=9).map(lambda texts: [text.encode() for text in texts]),
    st.integers(1, 12),
)
def test_blocks_end_at_a_line_end(parts, size):
    """A resumed encoding must cut the text as before: at the last newline once enough bytes were read."""
    ends, come = [0], b""
    for part in filter(None, parts):
        come += part
        if len(come) - ends[-1] >= size:
            ends.append(max(ends[-1], come.rfind(b"\n") + 1))
    ends.append(len(come))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "BLOCK", size)
        blocks = list(corpus._decoded(parts, "text"))
    assert blocks == [come[start:end].decode() for start, end in pairwise(ends) if end > start]


def test_invalid_utf8_raises_with_byte_and_line(monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK", 4)
    with refused("text", "line 4", "0xff"):
        list(corpus._decoded([b"one\ntwo", b"\n", b"three\nfo", b"ur\xff", b"\n"], "text"))


ARTICLES = ["One river.\nTwo banks.", 'He said "no", and left.', "Ünïcode and the end"]


def written(folder: Path, kind: str) -> Path:
    """Write the articles as rows of a file."""
    path = folder / f"own{kind}"
    rows = [json.dumps({"text": text, "year": 1900}) for text in ARTICLES]
    if kind == ".csv":
        rows = ["year,text", *(f'1900,"{text.replace(chr(34), 2 * chr(34))}"' for text in ARTICLES[1:])]
    content = "\n".join(rows).encode()
    path.write_bytes(gzip.compress(content) if kind.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".csv"])
def test_rows_of_text_are_articles(kind, tmp_path):
    path = written(tmp_path, kind)
    found = corpus.tokens(str(path), "test", "article", role="test")
    expected = [each for text in ARTICLES[kind == ".csv" :] for each in (*GPT2.encode(text), GPT2.end_of_text)]
    assert found.tolist() == expected


def test_rows_that_data_build_wrote_are_read_back(tmp_path):
    prose = tmp_path / "prose.txt"
    prose.write_text(PROSE)
    task = Language(text=str(prose), seq_len=8, vocabulary="wiki2k")
    build(task, tmp_path / "built.jsonl", 5, split="train")
    again = Language(text=str(tmp_path / "built.jsonl"), seq_len=8, vocabulary="wiki2k", text_role="test")
    wanted = [task.tokenizer.decode(each["tokens"]) for each in task.examples(0, "train", range(5))]
    assert task.tokenizer.decode(again.tokens("test").tolist()).split("<|endoftext|>")[:-1] == wanted


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("no JSON", "expected a JSON object"),
        ('{"texts": "a"}', "text: expected a column"),
        ('{"text": 3}', "text: expected text"),
        ('{"text": "a", "next": 3}', "next: expected text"),
        (r'{"text": "\ud800"}', "valid Unicode"),
    ],
)
def test_bad_row_is_named_with_file_line_and_reason(row, reason, tmp_path, capsys):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"text": "good"}) + "\n\n" + row + "\n")
    line = complaint(capsys, "data", "stats", "language", "--task.text", str(path), "--task.seq-len", "2")
    assert f"{path}, line 3: " in line
    assert reason in line


def test_json_lines_that_start_with_no_json_are_not_read_as_csv(tmp_path):
    (tmp_path / "own.jsonl").write_text('text\n{"text": "good"}\n')
    with refused(tmp_path / "own.jsonl", "line 1"):
        Language(text=str(tmp_path / "own.jsonl"), seq_len=2).tokens("train")


def test_text_for_testing_has_no_training_part(tmp_path):
    path = written(tmp_path, ".jsonl")
    with pytest.raises(InputError):
        corpus.tokens(str(path), "train", "article", role="test")
    whole_text = corpus.tokens(str(path), "test", "article", role="test")
    assert len(corpus.tokens(str(path), "test", "article")) < len(whole_text) / 10


def test_own_rows_train_and_evaluate_a_language_model(tmp_path, capsys):
    path, run = tmp_path / "own.jsonl", str(tmp_path / "run")
    path.write_text("".join(json.dumps({"text": f"{number} {PROSE}"}) + "\n" for number in range(20)))
    flags = ["--recipe", "laptop", "--task.vocabulary", "wiki2k", "--task.seq-len", "8", "--train.num-steps", "2"]
    small = ["--model.dim", "16", "--model.num-loops", "2", "--train.eval-size", "2", "--train.batch-size", "2"]
    answer(capsys, "train", "language", "--task.text", str(path), *flags, *small, "--out", run)
    own = json.loads(answer(capsys, "eval", run, "--json"))
    other = json.loads(answer(capsys, "eval", run, "--task.text", str(path), "--json"))
    assert own["size"] < other["size"] / 10  # a part of the file, and all of it
    assert json.loads(answer(capsys, "eval", run, "--task.stride", "8", "--json"))["size"] == own["size"]
