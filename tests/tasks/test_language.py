import os
import resource
import shutil
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.errors import InputError
from looped.tasks import bpe, corpus
from looped.tasks.language import Language

PROSE = (
    "The lobster's claws aren't equal .  It weighs 6 kg ,\n\n or 13 lb (naïvely) — 日本語 …\t🦞!\n = Heading = \n \n"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("LOOPED_CACHE", str(folder))
    return folder


@pytest.fixture
def prose(tmp_path):
    path = tmp_path / "prose.txt"
    path.write_text("".join(f"{number} {PROSE}" for number in range(200)), encoding="utf-8")
    return path


def supplied(*parts: str) -> Path:
    path = Path(os.environ.get("LOOPED_DATA", "/nonexistent"), *parts)
    if not path.exists():
        pytest.skip(f"LOOPED_DATA holds no {'/'.join(parts)}")
    return path


def whole(text: str, **knobs) -> np.ndarray:
    """All tokens of a file, put together from the three parts it is cut into."""
    task = Language(text=text, **knobs)
    return np.concatenate([task.tokens(split) for split in ("train", "validation", "test")])


def merged_by_hand(text: str) -> list[int]:
    """Byte-pair encoding from its definition: in every piece, merge the pair of least rank until none is known."""
    ranks = {bpe.token_bytes([token]): token for token in range(bpe.END_OF_TEXT)}
    pieces = r"'(?:[stmd]|re|ve|ll)|\ ?\p{L}+|\ ?\p{N}+|\ ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    result = []
    for piece in regex.findall(pieces, text):
        parts = [bytes([byte]) for byte in piece.encode()]
        while len(parts) > 1:
            rank, place = min((ranks.get(parts[i] + parts[i + 1], 1 << 30), i) for i in range(len(parts) - 1))
            if rank == 1 << 30:
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        result += [ranks[part] for part in parts]
    return result


class TestEncoding:
    def test_known_tokens(self):
        assert bpe.encode("Hello world").tolist() == [15496, 995]
        assert bpe.encode("<|endoftext|>", marks=True).tolist() == [50256]
        assert 50256 not in bpe.encode("<|endoftext|>")

    @given(st.text())
    @settings(deadline=None)
    def test_round_trip(self, text):
        tokens = bpe.encode(text).tolist()
        assert bpe.decode(tokens) == text
        assert bpe.token_bytes(tokens) == text.encode()

    @given(st.text(alphabet=st.sampled_from("ab'stre 1!\n\té日🦞")) | st.text(max_size=20))
    @settings(deadline=None)
    def test_equals_merging_by_hand(self, text):
        assert bpe.encode(text).tolist() == merged_by_hand(text)

    def test_prose_equals_merging_by_hand(self):
        assert bpe.encode(PROSE).tolist() == merged_by_hand(PROSE)

    def test_damaged_ranks_are_found_out(self, monkeypatch):
        monkeypatch.setattr(bpe, "RANKS_SHA256", "0" * 64)
        with pytest.raises(InputError, match="damaged"):
            bpe._ranks.__wrapped__()


class TestCorpus:
    @pytest.mark.parametrize("block", [16, 100, 1000, 1 << 20])
    def test_blocks_give_the_tokens_of_the_whole(self, prose, block, monkeypatch):
        monkeypatch.setattr(corpus, "BLOCK", block)
        assert whole(str(prose)).tolist() == bpe.encode(prose.read_text(encoding="utf-8")).tolist()

    @pytest.mark.parametrize("block", [7, 12, 1 << 20])
    def test_end_of_text_stands_between_articles(self, tmp_path, block, monkeypatch):
        monkeypatch.setattr(corpus, "BLOCK", block)
        path = tmp_path / "articles.txt"
        path.write_text("One\n\nfirst.\n\x1e\nTwo\n\nsecond.\n\x1e\nThree\n")
        expected = []
        for article in ("One\n\nfirst.", "Two\n\nsecond.", "Three\n"):
            expected += [*bpe.encode(article).tolist(), 50256]
        assert whole(str(path)).tolist() == expected[:-1]

    def test_end_of_text_after_every_line(self, tmp_path):
        path = tmp_path / "lines.txt"
        path.write_text("one\n\ntwo")
        expected = [*bpe.encode("one\n"), 50256, *bpe.encode("\n"), 50256, *bpe.encode("two\n"), 50256]
        assert whole(str(path), end_of_text="line").tolist() == expected

    def test_several_files_are_one_text(self, tmp_path):
        for name, text in (("train-0", "zero"), ("train-1", "one\n"), ("valid", "held\n"), ("test", "out\n")):
            (tmp_path / f"{name}.txt").write_text(text)
        task = Language(text=str(tmp_path))
        assert bpe.decode(task.tokens("train").tolist()) == "zero<|endoftext|>one\n"
        assert bpe.decode(task.tokens("validation").tolist()) == "held\n"
        assert bpe.decode(task.tokens("test").tolist()) == "out\n"

    def test_zstd_and_parquet_hold_the_same(self, prose, tmp_path):
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

    @pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd program")
    def test_zstd_without_the_package(self, tmp_path, prose, monkeypatch):
        zstandard = pytest.importorskip("zstandard")
        packed = tmp_path / "prose.txt.zst"
        packed.write_bytes(zstandard.ZstdCompressor().compress(prose.read_bytes()))
        broken = tmp_path / "broken.txt.zst"
        broken.write_bytes(packed.read_bytes()[:-9])
        monkeypatch.setitem(sys.modules, "zstandard", None)
        assert whole(str(packed)).tolist() == whole(str(prose)).tolist()
        with pytest.raises(InputError, match="cut short"):
            whole(str(broken))

    def test_hugging_face(self, monkeypatch):
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
        assert bpe.decode(task.tokens("test").tolist()) == "test row\n\nanother\n"
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(InputError, match="pip install datasets"):
            Language(text="hf:someone/other:plain").tokens("test")

    def test_an_interrupted_encoding_goes_on_where_it_was(self, prose, monkeypatch, own_cache):
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
        assert whole(str(prose)).tolist() == bpe.encode(prose.read_text(encoding="utf-8")).tolist()
        assert {path.suffix for path in own_cache.glob("tokens/*")} == {".bin", ".lock"}

    def test_text_that_changed_is_encoded_again(self, prose):
        for number, text in enumerate(("something else\n", "something more\n")):  # of the same length
            prose.write_text(text)
            os.utime(prose, (number, number))
            assert bpe.decode(whole(str(prose)).tolist()) == text

    def test_threads_that_come_at_once_get_the_same(self, prose, monkeypatch):
        monkeypatch.setattr(corpus, "BLOCK", 1000)
        with ThreadPoolExecutor(4) as pool:
            rows = list(pool.map(lambda _: Language(text=str(prose)).tokens("train").tolist(), range(4)))
        assert rows[0] == rows[1] == rows[2] == rows[3]
        assert bpe.encode(prose.read_text(encoding="utf-8")).tolist()[: len(rows[0])] == rows[0]

    def test_a_disk_without_room(self, prose, own_cache):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        try:
            with pytest.raises(InputError, match="cannot write"):
                whole(str(prose))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not list(own_cache.glob("tokens/*.bin"))
        assert whole(str(prose)).tolist() == bpe.encode(prose.read_text(encoding="utf-8")).tolist()

    def test_what_cannot_be_read(self, tmp_path, prose):
        files = {
            "empty.txt": (b"", "is empty"),
            "latin.txt": (b"fine\nfine\ncaf\xe9 au lait\n", r"latin\.txt, line 3: expected UTF-8 text, got byte 0xe9"),
            "cut.txt.zst": (b"\x28\xb5\x2f\xfd\x04", "cut short or no zstd"),
            "no.txt.zst": (b"plain text", "cut short or no zstd"),
        }
        for name, (content, complaint) in files.items():
            self.refused(tmp_path / name, content, complaint)

    def test_a_damaged_parquet_file_cannot_be_read(self, tmp_path):
        pytest.importorskip("pyarrow")
        self.refused(tmp_path / "no.parquet", b"plain text", "no parquet file")

    def refused(self, path, content, complaint):
        path.write_bytes(content)
        with pytest.raises(InputError, match=complaint) as caught:
            whole(str(path))
        assert "\n" not in str(caught.value)

    def test_a_source_that_cannot_be_opened_is_named(self, tmp_path):
        for name in ("train.txt", "valid.txt", "test.txt"):
            (tmp_path / name).mkdir()
        with pytest.raises(InputError, match=r"^cannot read .*/train\.txt: Is a directory$"):
            Language(text=str(tmp_path)).tokens("train")
        (tmp_path / "test.txt").rmdir()
        (tmp_path / "test.txt").symlink_to(tmp_path / "gone")
        with pytest.raises(InputError, match=r"^cannot read .*/test\.txt: No such file"):
            Language(text=str(tmp_path)).tokens("test")

    def test_wrong_column(self, tmp_path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"words": ["a"]}), tmp_path / "wrong.parquet")
        with pytest.raises(InputError, match="expected a column text, got words"):
            whole(str(tmp_path / "wrong.parquet"))

    def test_text_that_is_not_there(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LOOPED_DATA", str(tmp_path))
        task = Language()
        assert task.spec.output_size == 50304
        with pytest.raises(InputError, match=r"no text 'wikitext' here or in"):
            task.sample(0, "train", [0])
        (tmp_path / "wikitext").mkdir()
        with pytest.raises(InputError, match="no text in"):
            task.sample(0, "train", [0])
        (tmp_path / "wikitext" / "wiki.valid.raw").write_text("text\n" * 3000)
        with pytest.raises(InputError, match="no training text in"):
            task.sample(0, "train", [0])
        assert task.sample(0, "validation", [0]).inputs.shape == (1, 1024)

    def test_a_missing_held_out_split_is_half_of_the_other(self, tmp_path):
        (tmp_path / "train.txt").write_text("train")
        (tmp_path / "valid.txt").write_text("\n".join(f"line {number}" for number in range(500)))
        task = Language(text=str(tmp_path))
        halves = [task.tokens(split) for split in ("validation", "test")]
        assert abs(len(halves[0]) - len(halves[1])) <= 1
        assert np.concatenate(halves).tolist() == bpe.encode((tmp_path / "valid.txt").read_text()).tolist()

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
    def test_the_words_of_a_file_s_name_say_which_split_it_is(self, train, valid, test, tmp_path):
        for name in (train, valid, test):
            (tmp_path / name).touch()
        for split, name in (("train", train), ("validation", valid), ("test", test)):
            assert corpus.find(str(tmp_path), split) == ((str(tmp_path / name),), 0.0, 1.0)

    def test_a_word_that_only_begins_like_a_split_says_nothing(self, tmp_path):
        names = ["devil.txt", "new-testament.txt", "old-testament.txt", "trainer.txt", "valley.txt"]
        for name in names:
            (tmp_path / name).touch()
        cuts = {split: corpus.find(str(tmp_path), split) for split in ("train", "validation", "test")}
        assert {share.sources for share in cuts.values()} == {tuple(str(tmp_path / name) for name in names)}
        assert [share[1:] for share in cuts.values()] == [(0, 0.9), (0.9, 0.95), (0.95, 1)]

    def test_other_files_beside_a_training_text_are_no_held_out_text(self, tmp_path):
        for name in ("train.txt", "notes.txt"):
            (tmp_path / name).touch()
        with pytest.raises(InputError, match=r"cannot tell what is held out .* got notes\.txt"):
            corpus.find(str(tmp_path), "train")
        (tmp_path / "notes.txt").rename(tmp_path / "train-2.txt")
        assert corpus.find(str(tmp_path), "train")[1:] == (0, 0.9)

    def test_a_name_of_two_splits_is_refused(self, tmp_path):
        for name in ("train_valid.txt", "test.txt"):
            (tmp_path / name).touch()
        for split in ("train", "validation", "test"):
            with pytest.raises(InputError, match=r"train_valid\.txt is: expected .* one, got train and validation$"):
                corpus.find(str(tmp_path), split)

    def test_letters_in_capitals_are_read_alike(self, tmp_path):
        zstandard = pytest.importorskip("zstandard")
        (tmp_path / "TEXT.TXT.ZST").write_bytes(zstandard.compress(PROSE.encode()))
        assert whole(str(tmp_path / "TEXT.TXT.ZST")).tolist() == bpe.encode(PROSE).tolist()
        assert whole(str(tmp_path)).tolist() == bpe.encode(PROSE).tolist()


class TestWindows:
    @pytest.mark.parametrize(("seq_len", "stride"), [(16, None), (16, 16), (16, 5), (16, 1), (50, 49)])
    def test_the_whole_split_counts_every_token_once(self, prose, seq_len, stride):
        task = Language(text=str(prose), seq_len=seq_len, stride=stride)
        for split in ("validation", "test"):
            tokens = task.tokens(split)
            batch = task.sample(0, split, range(task.num_windows(split)))
            assert batch.targets[batch.mask].tolist() == tokens[1:].tolist()
            assert batch.mask.any(axis=1).all()
            if stride is not None:  # after the first window, every token sees at least seq_len - stride before it
                assert not batch.mask[1:, : seq_len - stride].any()

    def test_targets_are_the_next_tokens_of_the_split(self, prose):
        for task in (Language(text=str(prose), seq_len=12), Language(text=str(prose), seq_len=12, evaluation="random")):
            for split in ("train", "validation", "test"):
                row = task.tokens(split).tolist()
                windows = {tuple(row[i : i + 13]) for i in range(len(row) - 12)}
                batch = task.sample(5, split, range(64))
                for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
                    assert inputs[1:] == targets[:-1]
                    assert (*inputs, targets[-1]) in windows

    def test_random_windows_reach_both_ends(self, tmp_path):
        path = tmp_path / "count.txt"
        path.write_text(" ".join(map(str, range(40))))
        task = Language(text=str(path), seq_len=4)
        row = task.tokens("train")
        firsts = task.sample(0, "train", range(3000)).inputs[:, 0].tolist()
        assert set(firsts) == set(row[: len(row) - 4].tolist())

    def test_smaller_windows(self, prose):
        task = Language(text=str(prose), seq_len=64)
        assert task.sample(0, "train", range(3), size=10).inputs.shape == (3, 10)
        batch = task.sample(0, "test", range(task.num_windows("test", size=10)), size=10)
        assert batch.targets[batch.mask].tolist() == task.tokens("test")[1:].tolist()

    def test_a_test_on_random_windows_has_as_many_as_the_public_code(self, prose):
        """The number is not ours to choose: with another, perplexities would not compare with those measured so far."""
        task = Language(text=str(prose), seq_len=8, evaluation="random")
        for split in ("validation", "test"):
            assert (task.num_distinct(split), task.held_out_size(split)) == (None, 200)
        whole = Language(text=str(prose), seq_len=8)
        assert whole.held_out_size("test") == -(-(len(whole.tokens("test")) - 1) // 8) != 200

    def test_too_short_a_text(self, tmp_path):
        path = tmp_path / "short.txt"
        path.write_text("one two three\n")
        with pytest.raises(InputError, match="too short: expected at least 1025 tokens"):
            Language(text=str(path)).sample(0, "train", [0])

    def test_perturbation_is_a_property_of_the_text(self, prose):
        plain = Language(text=str(prose), seq_len=100)
        changed = Language(text=str(prose), seq_len=100, perturbed=0.1)
        shifted = Language(text=str(prose), seq_len=100, stride=37, perturbed=0.1)
        for split in ("validation", "test"):
            clean = plain.tokens(split)[1:]
            rows = []
            for task in (changed, shifted):
                batch = task.sample(3, split, range(task.num_windows(split)))
                rows.append(batch.targets[batch.mask])
                assert np.array_equal(batch.inputs[:, 1:], batch.targets[:, :-1])
            assert np.array_equal(*rows)
            assert 0.05 < np.mean(rows[0] != clean) < 0.16
        old = plain.sample(0, "train", range(300))
        new = changed.sample(0, "train", range(300))
        share = np.mean(old.targets != new.targets)
        assert share == pytest.approx(0.1, abs=0.02)
        replaced = new.targets[old.targets != new.targets]
        assert replaced.min() < 2000
        assert 48_000 < replaced.max() < bpe.VOCABULARY

    def test_score_is_the_share_of_counted_tokens(self, prose):
        task = Language(text=str(prose), seq_len=20, stride=5)
        batch = task.sample(0, "test", range(4))
        wrong = batch.targets.copy()
        wrong[1, -1] += 1  # counted: one of five
        wrong[2, 0] += 1  # not counted
        assert task.score(wrong, batch)["accuracy"].tolist() == pytest.approx([1, 0.8, 1, 1])


class TestText:
    @given(st.lists(st.integers(0, bpe.VOCABULARY - 1), min_size=1, max_size=12))
    @settings(deadline=None)
    def test_any_tokens_are_read_back(self, tokens):
        task = Language(seq_len=12)
        assert task.parse(task.render(np.array(tokens))).tolist() == tokens

    def test_sampled_windows_read_as_text(self, prose):
        task = Language(text=str(prose), seq_len=8)
        batch = task.sample(0, "train", range(100))
        shown = [task.render(inputs) for inputs in batch.inputs]
        assert sum(not text.startswith("#") for text in shown) > 50
        for inputs, text in zip(batch.inputs, shown, strict=True):
            assert task.parse(text).tolist() == inputs.tolist()

    @pytest.mark.parametrize("text", ["#99999", "#15496", "#1 #99999", "#" + "1" * 5000])
    def test_a_window_that_looks_like_numbers_is_read_back(self, text):
        tokens = bpe.encode(text)
        task = Language(seq_len=len(tokens))
        assert task.parse(task.render(tokens)).tolist() == tokens.tolist()

    def test_examples_verify(self, prose):
        task = Language(text=str(prose), seq_len=8)
        example = task.examples(0, "train", [3])[0]
        assert bpe.encode("".join((example["text"], example["next"]))).tolist()[2:4] == example["tokens"][2:4]
        task.verify(example)
        example["next"] += "!"
        with pytest.raises(InputError, match="expected next"):
            task.verify(example)

    def test_a_prediction_of_padding_has_no_text(self):
        assert Language().answer(np.array([15496, 50300])) == ""
        assert Language().answer(np.array([15496, 995])) == " world"

    def test_text_that_cannot_be_read(self):
        for text, complaint in (
            ("", "some text"),
            ("a b c d e", "at most 4 tokens, got 5"),
            ("#50257", "below 50257, got 50257"),
            ("#7 #" + "1" * 5000, "below 50257, got 1111"),
            ("\ud800", "characters that are none"),
        ):
            with pytest.raises(InputError, match=complaint):
                Language(seq_len=4).parse(text)

    def test_settings_that_cannot_be_used(self):
        for wrong in ({"seq_len": 0}, {"stride": 2000}, {"stride": 0}, {"perturbed": 1.5}, {"evaluation": "some"}):
            with pytest.raises(InputError):
                Language(**wrong)


class TestSuppliedData:
    def test_wikitext_has_its_published_number_of_tokens(self):
        task = Language(text=str(supplied("wikitext")))
        assert len(task.tokens("validation")) == 249_887
        assert len(task.tokens("test")) == 286_221

    def test_enwiki_articles_end(self):
        pytest.importorskip("zstandard")
        path = supplied("enwiki2015", "valid.txt.zst")
        tokens = whole(str(path))
        assert (tokens == bpe.END_OF_TEXT).sum() == 249
        assert bpe.decode(tokens[:3].tolist()).startswith("Sci")
