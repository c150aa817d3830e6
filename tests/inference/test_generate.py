"""Generation: the cache against whole passes, batches, sampling and the text that comes out."""

import json

import numpy as np
import pytest
import torch

from looped.config import ModelConfig
from looped.inference.cache import Decoder
from looped.inference.early_exit import ExitRule, read_early
from looped.inference.generate import Continuation, Sampling, generate_tokens
from looped.models import LoopModel, build_model
from looped.tasks.language.tokenizer import WIKI2K
from looped.training import train
from looped.utils.errors import InputError
from tests.cli.command import answer, complaint
from tests.models.cases import BLOCKS, SHARED, label, scattered, small
from tests.refusal import refused

SEQ_LEN = SHARED.seq_len
NO_PADDING = torch.zeros(2, dtype=torch.long)


def causal_model(**knobs) -> LoopModel:
    knobs = {"block": "modulated", "num_loops": 3, "num_layers": 2, "positions": "rotary"} | knobs
    return scattered(small(**knobs), SHARED)


def tokens(batch: int = 2, seq_len: int = SEQ_LEN) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(SHARED.input_size, size=(batch, seq_len)))


def cached_scores(model: LoopModel, text: torch.Tensor, num_loops: int | None, pieces: list[int]) -> torch.Tensor:
    decoder = Decoder(model, text.shape[1], torch.zeros(len(text), dtype=torch.long), num_loops)
    return torch.cat([decoder.read(piece) for piece in text.split(pieces, dim=1)], dim=1)


class TestCache:
    @pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
    @pytest.mark.parametrize("knobs", BLOCKS, ids=label)
    def test_cached_scores_equal_a_whole_pass(self, knobs, positions):
        model = causal_model(**{"num_loops": 1, "num_layers": 1} | knobs, positions=positions)
        text = tokens()
        expected = model(text)
        for pieces in ([1] * SEQ_LEN, [3, 1, 2], [SEQ_LEN]):
            torch.testing.assert_close(cached_scores(model, text, None, pieces), expected, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("num_loops", [1, 2, 3, 7])
    @pytest.mark.parametrize("extrapolation", ["extend", "clamp", "rescale"])
    @pytest.mark.parametrize("injection", ["none", "add", "concat"])
    def test_cached_scores_equal_a_whole_pass_at_any_number_of_loops(self, num_loops, extrapolation, injection):
        model = causal_model(extrapolation=extrapolation, injection=injection)
        scores = cached_scores(model, tokens(), num_loops, [2, 1, 1, 1, 1])
        torch.testing.assert_close(scores, model(tokens(), num_loops), rtol=0, atol=1e-9)

    @pytest.mark.parametrize("knobs", [
        {"block": "standard", "num_layers": 4},
        {"block": "looped", "num_loops": 6},
        {"block": "modulated", "num_loops": 6, "modulation_init": "random"},
    ], ids=label)  # fmt: skip
    def test_cached_scores_in_float32_are_within_1e_5(self, knobs):
        model = build_model(ModelConfig(dim=64, num_heads=4, positions="rotary", **knobs), SHARED)
        num_loops = None if knobs["block"] == "standard" else 9
        scores = cached_scores(model, tokens(seq_len=200), num_loops, [100] + [1] * 100)
        torch.testing.assert_close(scores, model(tokens(seq_len=200), num_loops), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary"])
    def test_text_with_padding_before_it_has_its_scores_alone(self, positions):
        model = causal_model(positions=positions)
        short, long = tokens()[:1, :3], tokens()[1:]
        batch = torch.cat((torch.cat((torch.full((1, 3), 6), short), dim=1), long))
        decoder = Decoder(model, SEQ_LEN, torch.tensor([3, 0]))
        scores = torch.cat([decoder.read(piece) for piece in batch.split([4, 1, 1], dim=1)], dim=1)
        torch.testing.assert_close(scores[:1, 3:], model(short), rtol=0, atol=1e-9)
        torch.testing.assert_close(scores[1:], model(long), rtol=0, atol=1e-9)

    @pytest.mark.parametrize("rule", ["stable:2", "entropy:1.2", "change:0.5", "budget:2", "budget:9"])
    def test_token_by_token_exit_equals_reading_the_whole_text(self, rule):
        model, rule = causal_model(), ExitRule.parse(rule)
        expected = read_early(model, tokens(), rule, 5)
        decoder = Decoder(model, SEQ_LEN, NO_PADDING, 5)
        for place, column in enumerate(tokens().split(1, dim=1)):
            scores, loops = decoder.read_until(column, rule)
            assert loops == expected.loops[:, place].tolist()
            torch.testing.assert_close(scores[:, 0], expected.scores[:, place], rtol=0, atol=1e-9)

    def test_too_many_tokens_raise(self):
        decoder = Decoder(causal_model(), 2, NO_PADDING)
        with refused("tokens", 2, 6):
            decoder.read(tokens())

    def test_learned_positions_limit_the_length(self):
        with pytest.raises(InputError) as caught:
            Decoder(causal_model(positions="learned"), SEQ_LEN + 1, NO_PADDING)
        assert caught.value.field == "max_tokens"


class TestGenerateTokens:
    @staticmethod
    def rows(model: LoopModel, prompts: list[list[int]], **options) -> list[list[int]]:
        return [
            list(row) for row in zip(*(step.tokens for step in generate_tokens(model, prompts, **options)), strict=True)
        ]

    def test_greedy_tokens_are_the_likeliest_of_whole_passes(self):
        model, prompt = causal_model(), [1, 5, 2]
        (found,) = self.rows(model, [prompt], max_tokens=8, num_loops=4, sampling=Sampling(temperature=0))
        text = list(prompt)
        for _ in range(8):
            text.append(int(model(torch.tensor([text]), 4)[0, -1].argmax()))
        assert found == text[3:]

    def test_batch_gives_each_prompt_the_text_that_it_has_alone(self):
        model, prompts, greedy = causal_model(), [[1], [4, 2, 6, 0], [3, 3]], Sampling(temperature=0)
        together = self.rows(model, prompts, max_tokens=6, sampling=greedy)
        assert together == [self.rows(model, [prompt], max_tokens=6, sampling=greedy)[0] for prompt in prompts]

    def test_seed_decides_the_text(self):
        model = causal_model()
        first, again, other = (
            self.rows(model, [[1, 2]], max_tokens=30, sampling=Sampling(100.0, 1.0, seed)) for seed in (0, 0, 1)
        )
        assert first == again != other

    def test_tokens_outside_the_vocabulary_are_never_chosen(self):
        rows = self.rows(causal_model(), [[1]] * 20, max_tokens=20, sampling=Sampling(100.0, 1.0), vocabulary=3)
        assert {token for row in rows for token in row} == {0, 1, 2}

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"max_tokens": 0}, "max_tokens"),
            ({"max_tokens": 10**20}, "max_tokens"),
            ({"num_loops": 0}, "num_loops"),
        ],
    )
    def test_invalid_option_raises_before_the_first_token(self, options, field):
        with pytest.raises(InputError) as caught:
            generate_tokens(causal_model(), [[1]], **options)
        assert caught.value.field == field


class TestSampling:
    SCORES = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()

    def frequencies(self, sampling: Sampling, size: int = 4000) -> np.ndarray:
        draws = sampling.draws(size, 1)[:, 0]
        return np.bincount(sampling.choose(self.SCORES.expand(size, -1), draws), minlength=4) / size

    def test_temperature_1_samples_the_probabilities(self):
        assert self.frequencies(Sampling(1.0, 1.0)) == pytest.approx([0.5, 0.2, 0.2, 0.1], abs=0.03)

    def test_temperature_half_squares_the_probabilities(self):
        squares = np.array([0.25, 0.04, 0.04, 0.01])
        assert self.frequencies(Sampling(0.5, 1.0)) == pytest.approx(squares / squares.sum(), abs=0.03)

    def test_tiny_temperature_takes_the_likeliest(self):
        assert self.frequencies(Sampling(1e-320, 1.0)).tolist() == [1, 0, 0, 0]

    def test_top_p_keeps_the_smallest_likely_set(self):
        assert self.frequencies(Sampling(1.0, 0.69)) == pytest.approx([5 / 7, 2 / 7, 0, 0], abs=0.03)

    def test_draws_of_a_text_do_not_depend_on_later_texts(self):
        assert torch.equal(Sampling(seed=7).draws(1, 5), Sampling(seed=7).draws(3, 5)[:1])

    @pytest.mark.parametrize("field", ["temperature", "top_p", "seed"])
    @pytest.mark.parametrize("wrong", [-1, "1", None, float("nan")])
    def test_wrong_setting_raises(self, field, wrong):
        with pytest.raises(InputError) as caught:
            Sampling(**{field: wrong})
        assert caught.value.field == field


def test_taken_pieces_are_whole_characters():
    text, pieces = Continuation("", WIKI2K), []
    for token in WIKI2K.encode("日本é is ☃").tolist():
        text.add(token, 1)
        pieces.append(text.take())
    assert "".join([*pieces, text.take(is_last=True)]) == text.text == "日本é is ☃"
    assert "\ufffd" not in "".join(pieces)


@pytest.fixture(scope="module")
def story_run(tmp_path_factory):
    """A language model of three steps, which writes nonsense."""
    folder = tmp_path_factory.mktemp("runs") / "stories"
    options = {"text": "synthetic:stories", "vocabulary": "wiki2k", "seq_len": 16}
    train("language", folder, quiet=True, num_steps=3, batch_size=2, dim=16, num_heads=2, eval_size=2, **options)
    return folder


def test_generate_command_writes_the_same_text_for_the_same_seed(story_run, capsys):
    def written(*flags: str) -> str:
        return answer(capsys, "generate", str(story_run), "--prompt", "Ann has", "--max-tokens", "12", *flags)

    first = written("--seed", "1")
    assert first.startswith("Ann has")
    assert len(first) > len("Ann has\n")
    assert written("--seed", "1") == first != written("--seed", "2")
    about = json.loads(written("--seed", "1", "--json"))
    assert first == f"Ann has{about['text']}\n"


@pytest.mark.parametrize(
    "flags",
    [["--temperature", "-1"], ["--top-p", "0"], ["--max-tokens", "0"], ["--loops", "0"], ["--exit", "stable:x"],
     ["--exit", "never:1"], ["--exit", "gate:0.9"], ["--prompt", "\udcff"], ["--max-tokens", "99999999999"]],
    ids=" ".join,
)  # fmt: skip
def test_generate_command_with_a_mistake_says_so_in_one_line(flags, story_run, capsys):
    complaint(capsys, "generate", str(story_run), *flags)


def test_generate_command_of_a_puzzle_model_is_refused(capsys):
    assert "language" in complaint(capsys, "generate", "sudoku")
