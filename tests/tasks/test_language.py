"""The language task: windows of a text as examples, and parsing of typed text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.tasks.language.task import Language
from looped.tasks.language.tokenizer import GPT2
from looped.utils.errors import InputError
from tests.refusal import refused


class TestWindows:
    @pytest.mark.parametrize(("seq_len", "stride"), [(16, None), (16, 16), (16, 5), (16, 1), (50, 49)])
    def test_whole_split_counts_every_token_once(self, prose, seq_len, stride):
        task = Language(text=str(prose), seq_len=seq_len, stride=stride)
        for split in ("validation", "test"):
            tokens = task.tokens(split)
            batch = task.sample(0, split, range(task.num_windows(split)))
            assert batch.targets[batch.mask].tolist() == tokens[1:].tolist()
            assert batch.mask.any(axis=1).all()
            if stride is not None:  # after the first window, every token sees at least seq_len - stride before it
                assert not batch.mask[1:, : seq_len - stride].any()

    def test_targets_are_the_next_tokens(self, prose):
        for task in (Language(text=str(prose), seq_len=12), Language(text=str(prose), seq_len=12, evaluation="random")):
            for split in ("train", "validation", "test"):
                row = task.tokens(split).tolist()
                windows = {tuple(row[i : i + 13]) for i in range(len(row) - 12)}
                batch = task.sample(5, split, range(64))
                for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
                    assert inputs[1:] == targets[:-1]
                    assert (*inputs, targets[-1]) in windows

    def test_random_windows_reach_both_ends_of_the_text(self, tmp_path):
        path = tmp_path / "count.txt"
        path.write_text(" ".join(map(str, range(40))))
        task = Language(text=str(path), seq_len=4)
        row = task.tokens("train")
        firsts = task.sample(0, "train", range(3000)).inputs[:, 0].tolist()
        assert set(firsts) == set(row[: len(row) - 4].tolist())

    def test_sample_of_smaller_size_has_shorter_windows(self, prose):
        task = Language(text=str(prose), seq_len=64)
        assert task.sample(0, "train", range(3), size=10).inputs.shape == (3, 10)
        batch = task.sample(0, "test", range(task.num_windows("test", size=10)), size=10)
        assert batch.targets[batch.mask].tolist() == task.tokens("test")[1:].tolist()

    def test_held_out_size_of_random_windows_is_that_of_the_public_code(self, prose):
        """Check the number of windows, because perplexities on another number would not compare with older ones."""
        task = Language(text=str(prose), seq_len=8, evaluation="random")
        for split in ("validation", "test"):
            assert (task.num_distinct(split), task.held_out_size(split)) == (None, 200)
        whole = Language(text=str(prose), seq_len=8)
        assert whole.held_out_size("test") == -(-(len(whole.tokens("test")) - 1) // 8) != 200

    def test_sample_of_a_short_text_raises(self, tmp_path):
        path = tmp_path / "short.txt"
        path.write_text("one two three\n")
        with pytest.raises(InputError) as caught:
            Language(text=str(path)).sample(0, "train", [0])
        assert caught.value.field == "task.text"

    def test_perturbed_tokens_do_not_depend_on_the_window(self, prose):
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
        assert 48_000 < replaced.max() < GPT2.size

    def test_score_is_the_fraction_of_counted_tokens(self, prose):
        task = Language(text=str(prose), seq_len=20, stride=5)
        batch = task.sample(0, "test", range(4))
        wrong = batch.targets.copy()
        wrong[1, -1] += 1  # counted: one of five
        wrong[2, 0] += 1  # not counted
        assert task.score(wrong, batch)["accuracy"].tolist() == pytest.approx([1, 0.8, 1, 1])


class TestText:
    @given(st.lists(st.integers(0, GPT2.size - 1), min_size=1, max_size=12))
    @settings(deadline=None)
    def test_parse_reads_rendered_tokens_back(self, tokens):
        task = Language(seq_len=12)
        assert task.parse(task.render(np.array(tokens))).tolist() == tokens

    def test_render_of_sampled_windows_is_mostly_text(self, prose):
        task = Language(text=str(prose), seq_len=8)
        batch = task.sample(0, "train", range(100))
        shown = [task.render(inputs) for inputs in batch.inputs]
        assert sum(not text.startswith("#") for text in shown) > 50
        for inputs, text in zip(batch.inputs, shown, strict=True):
            assert task.parse(text).tolist() == inputs.tolist()

    @pytest.mark.parametrize("text", ["#99999", "#15496", "#1 #99999", "#" + "1" * 5000])
    def test_parse_reads_text_that_looks_like_token_ids_back(self, text):
        tokens = GPT2.encode(text)
        task = Language(seq_len=len(tokens))
        assert task.parse(task.render(tokens)).tolist() == tokens.tolist()

    def test_verify_accepts_examples_and_refuses_a_wrong_next_token(self, prose):
        task = Language(text=str(prose), seq_len=8)
        example = task.examples(0, "train", [3])[0]
        assert GPT2.encode("".join((example["text"], example["next"]))).tolist()[2:4] == example["tokens"][2:4]
        task.verify(example)
        example["next"] += "!"
        with refused("next"):
            task.verify(example)

    def test_answer_of_a_padding_token_is_empty(self):
        assert Language().answer(np.array([15496, 50300])) == ""
        assert Language().answer(np.array([15496, 995])) == " world"

    def test_parse_invalid_text_raises(self):
        for text, values in (
            ("", [4, 0]),
            ("a b c d e", [4, 5]),
            ("#50257", [50257]),
            ("#7 #" + "1" * 5000, [50257, "1111"]),
            ("\ud800", []),
        ):
            with refused(None, *values):
                Language(seq_len=4).parse(text)

    def test_invalid_settings_raise_with_the_field(self):
        for field, value in (("seq_len", 0), ("stride", 2000), ("stride", 0), ("perturbed", 1.5)):
            with pytest.raises(InputError) as caught:
                Language(**{field: value})
            assert caught.value.field == f"task.{field}"
        with pytest.raises(InputError):
            Language(evaluation="some")  # type: ignore[arg-type]
