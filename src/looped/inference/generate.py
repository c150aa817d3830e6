"""Continue texts with a trained language model: sampling, batches, and the number of loops as a dial."""

import codecs
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.inference.cache import Decoder
from looped.inference.early_exit import ExitRule, require_supported
from looped.models import LoopModel
from looped.tasks.language.tokenizer import Tokenizer
from looped.utils.errors import (
    InputError,
    as_number,
    require,
    require_counts,
    require_field,
    require_type,
    require_within,
)

MAX_SEED = 2**63 - 1
MAX_TOKENS = 1_000_000


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its scores."""

    temperature: float = 0.8
    """0 always takes the likeliest token; 1 samples from the model's probabilities; less is more cautious"""
    top_p: float = 0.95
    """sample from the likeliest tokens that together have this probability"""
    seed: int = 0
    """the same seed gives the same text"""

    def __post_init__(self) -> None:
        is_integer = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        for name, right, expected in (
            ("temperature", 0 <= as_number(self.temperature) < math.inf, "a finite number of at least 0"),
            ("top_p", 0 < as_number(self.top_p) <= 1, "a number above 0 and at most 1"),
            ("seed", is_integer and 0 <= self.seed <= MAX_SEED, "an integer in 0..2^63-1"),
        ):
            require_field(right, name, expected, getattr(self, name))

    def draws(self, batch: int, num_tokens: int) -> Float[Tensor, "batch token"]:
        """Return one number in [0, 1) per token. Those of a text do not depend on the texts after it."""
        generator = torch.Generator().manual_seed(int(self.seed))
        return torch.rand(batch, num_tokens, generator=generator, dtype=torch.float64)

    def choose(self, scores: Float[Tensor, "batch vocabulary"], draw: Float[Tensor, " batch"]) -> list[int]:
        """Return the next token of each text."""
        if self.temperature == 0:
            return scores.argmax(dim=-1).tolist()
        doubles = scores.cpu().double()
        # The largest becomes 0, so that no temperature, however low, makes it overflow.
        probabilities = ((doubles - doubles.amax(dim=-1, keepdim=True)) / self.temperature).softmax(dim=-1)
        sorted_probabilities, order = probabilities.sort(dim=-1, descending=True, stable=True)
        total = sorted_probabilities.cumsum(dim=-1)
        kept = sorted_probabilities.where(total - sorted_probabilities < self.top_p, 0.0)
        total = kept.cumsum(dim=-1)
        place = torch.searchsorted(total, (draw * total[:, -1])[:, None], right=True).clamp(max=scores.shape[-1] - 1)
        return order.gather(1, place)[:, 0].tolist()


DEFAULT_SAMPLING = Sampling()


@dataclass(frozen=True)
class Step:
    """One new token of every text of a batch."""

    tokens: list[int]
    loops: list[int]
    """loops that each token took to be chosen"""


def generate_tokens(
    model: LoopModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int = 100,
    num_loops: int | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
    exit_rule: ExitRule | None = None,
    vocabulary: int | None = None,
) -> Iterator[Step]:
    """Return an iterator over the next `max_tokens` tokens of every prompt.

    Prompts may differ in length: shorter ones are padded on the left. Only tokens below `vocabulary` are chosen. With
    an exit rule, each token but the first stops at its own loop; the prompts run all loops.
    """
    require_counts(max_tokens=max_tokens)
    require_within("max_tokens", max_tokens, 1, MAX_TOKENS)
    require(len(prompts) > 0 and all(map(len, prompts)), "prompt: expected at least one token in every prompt")
    if exit_rule is not None:
        require_supported(model, exit_rule)
    longest = max(map(len, prompts))
    padding = torch.tensor([longest - len(prompt) for prompt in prompts])
    decoder = Decoder(model, longest + max_tokens - 1, padding, num_loops)
    return _generate(decoder, prompts, max_tokens, sampling, exit_rule, vocabulary or model.spec.output_size)


def _generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling,
    exit_rule: ExitRule | None,
    vocabulary: int,
) -> Iterator[Step]:
    device, longest = decoder.padding.device, max(map(len, prompts))
    rows = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    draws = sampling.draws(len(prompts), max_tokens)
    scores = decoder.read(torch.tensor(rows, device=device))
    loops = [decoder.num_loops] * len(prompts)
    for number in range(max_tokens):
        last = scores[:, -1, :vocabulary]
        require(bool(last.isfinite().all()), "model: expected finite scores, got an overflow; try fewer loops")
        tokens = sampling.choose(last, draws[:, number])
        yield Step(tokens, loops)
        if number + 1 < max_tokens:
            column = torch.tensor(tokens, device=device)[:, None]
            if exit_rule is None:
                scores = decoder.read(column)
            else:
                scores, loops = decoder.read_until(column, exit_rule)


@dataclass
class Continuation:
    """The text that a model writes after a prompt. It grows token by token."""

    prompt: str
    tokenizer: Tokenizer = field(repr=False)
    tokens: list[int] = field(default_factory=list)
    """new tokens, without the end of the text"""
    loops: list[int] = field(default_factory=list, repr=False)
    """loops of each new token, and of the end of the text"""
    finished: bool = False
    """whether the model has ended the text"""

    def __post_init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_taken = 0

    @property
    def text(self) -> str:
        """Return the new text."""
        return self.tokenizer.decode(self.tokens)

    @property
    def mean_loops(self) -> float:
        """Return the mean number of loops per token."""
        return sum(self.loops) / len(self.loops)

    def take(self, *, is_last: bool = False) -> str:
        """Return the characters since the last call. A token may hold a part of a character, which then waits."""
        new, self._num_taken = self.tokens[self._num_taken :], len(self.tokens)
        return self._characters.decode(self.tokenizer.token_bytes(new), final=is_last)

    def add(self, token: int, loops: int) -> None:
        """Append a token, or note the end of the text."""
        if self.finished:
            return
        self.loops.append(loops)
        if token == self.tokenizer.end_of_text:
            self.finished = True
        else:
            self.tokens.append(token)


def continue_texts(
    model: LoopModel, tokenizer: Tokenizer, prompts: Sequence[str], **options: Any
) -> Iterator[list[Continuation]]:
    """Yield the continuations of all prompts after every token, until each has ended or has `max_tokens` tokens.

    The options are those of `generate_tokens`.
    """
    encoded = [_encode(tokenizer, prompt) for prompt in prompts]
    texts = [Continuation(prompt, tokenizer) for prompt in prompts]
    for step in generate_tokens(model, encoded, vocabulary=tokenizer.size, **options):
        for text, token, loops in zip(texts, step.tokens, step.loops, strict=True):
            text.add(token, loops)
        yield texts
        if all(text.finished for text in texts):
            return


def _encode(tokenizer: Tokenizer, prompt: str) -> list[int]:
    require_type("prompt", prompt, str)
    try:
        tokens = tokenizer.encode(prompt, marks=True).tolist()
    except UnicodeEncodeError:  # bytes on the command line that are not UTF-8
        raise InputError(f"prompt: expected valid Unicode, got {prompt[:60]!r}") from None
    # A text starts after the end of another one, so that token is the prompt of a text without one.
    return tokens or [tokenizer.end_of_text]
