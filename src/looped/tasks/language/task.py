"""Language modelling (Section 5 and the appendix): predict every next token of a text in GPT-2's byte-pair encoding.

Training reads windows at random places. Validation and test read the whole split, window by window, so that every
token but the first is counted once; or, as an option, random windows like the paper. Perplexity is the exponential of
the mean loss over the counted positions.
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from looped.tasks import rng
from looped.tasks.base import Batch, Spec, Split, Task, draw_keys, typed_fields
from looped.tasks.jit import compiled
from looped.tasks.language import corpus, tokenizer
from looped.utils.errors import InputError, require

PADDED_VOCABULARY = 50304  # a multiple of 64, which matrix products like
# The perturbed text is one text, whatever the seed of a run: memorising it takes seeing the same tokens again.
PERTURBATION_SEED = 10


@dataclass(frozen=True)
class Language(Task):
    """Next token of English text."""

    name: ClassVar[str] = "language"
    metric: ClassVar[str] = "perplexity"
    higher_is_better: ClassVar[bool] = False

    text: str = "wikitext"
    """file, folder, name under LOOPED_DATA, hf:NAME:CONFIG of a Hugging Face data set, or synthetic:stories"""
    seq_len: int = 1024
    """tokens of a window"""
    end_of_text: Literal["article", "line"] = "article"
    """where an end-of-text token goes: in place of a line holding \\x1e, or after every line as in the public code"""
    evaluation: Literal["whole", "random"] = "whole"
    """validation and test read the whole split in order, or random windows as in the paper"""
    stride: int | None = None
    """tokens from one window of the whole split to the next (None: seq_len, so that windows do not overlap)"""
    perturbed: float = 0.0
    """share of the text's tokens that are replaced by random ones, always the same (the paper: 0.1)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.seq_len <= 1 << 20, f"task.seq_len must be in 1..{1 << 20}, got {self.seq_len}")
        require(
            self.stride is None or 1 <= self.stride <= self.seq_len,
            f"task.stride must be in 1..{self.seq_len} (seq_len), got {self.stride}",
        )
        require(0 <= self.perturbed <= 1, f"task.perturbed must be in 0..1, got {self.perturbed}")

    @property
    def size(self) -> int:
        return self.seq_len

    @property
    def spec(self) -> Spec:
        return Spec(
            "tokens", PADDED_VOCABULARY, PADDED_VOCABULARY, self.seq_len, causal=True, shared_vocabulary=True
        )  # fmt: skip

    def seq_len_at(self, size: int) -> int:
        return size

    def tokens(self, split: Split) -> np.ndarray:
        """All tokens of a split, before any perturbation; the first call ever encodes the text."""
        return corpus.tokens(self.text, split, self.end_of_text)

    def fingerprints(self) -> dict[str, str]:
        splits: tuple[Split, ...] = ("train", "validation")
        return {f"{split} text": corpus.fingerprint(self.text, split, self.end_of_text) for split in splits}

    def num_windows(self, split: Split, size: int | None = None) -> int:
        """Windows that cover a split: its examples 0 to num_windows - 1 count every token but the first once."""
        size, stride = self._size_and_stride(size)
        return 1 + math.ceil(self._last_place(self.tokens(split), split, size) / stride)

    def held_out_size(self, split: Split, example_size: int | None = None) -> int:
        """The whole split, or the 200 windows of the public code."""
        return self.num_distinct(split, example_size) or 200

    def num_distinct(self, split: Split, example_size: int | None = None) -> int | None:
        return self.num_windows(split, example_size) if self._in_order(split) else None

    def sample(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        seed_number, split_number, indices = draw_keys(seed, split, indices)
        size, stride = self._size_and_stride(size)
        text = self.tokens(split)
        last = self._last_place(text, split, size)
        counted_before = np.zeros(len(indices), dtype=np.int64)
        if not self._in_order(split):
            starts = _random_places(seed_number, split_number, indices, last + 1)
        else:
            windows = indices % (1 + math.ceil(last / stride))
            starts = np.minimum(windows * stride, last)
            counted_before = np.where(windows == 0, 0, (windows - 1) * stride + size)
        places = starts[:, None] + np.arange(size + 1)
        tokens = text[places].astype(np.int64)
        if self.perturbed:
            _perturb(tokens, places, split_number, self.perturbed)
        return Batch(tokens[:, :-1], tokens[:, 1:], places[:, :-1] >= counted_before[:, None])

    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        """The share of the counted tokens that are predicted."""
        right = (prediction == batch.targets) & batch.mask
        return {"accuracy": right.sum(axis=1) / batch.mask.sum(axis=1)}

    def baseline(self, batch: Batch) -> float:
        """The perplexity of always predicting the tokens by how frequent they are in this very batch."""
        _, counts = np.unique(batch.targets[batch.mask], return_counts=True)
        shares = counts / counts.sum()
        return float(np.exp(-np.sum(shares * np.log(shares))))

    def render(self, inputs: np.ndarray) -> str:
        """The text; or, where it would be read back as other tokens, their numbers like `#15496 #995`."""
        tokens = [int(token) for token in inputs]
        # Bytes may be no text, and a text may look like numbers that are no tokens.
        with suppress(UnicodeDecodeError, InputError):
            text = tokenizer.token_bytes(tokens).decode("utf-8")
            if _read(text) == tokens:
                return text
        return " ".join(f"#{token}" for token in tokens)

    def parse(self, text: str) -> np.ndarray:
        tokens = _read(text)
        require(len(tokens) >= 1, "expected some text, got none")
        require(len(tokens) <= self.seq_len, f"expected at most {self.seq_len} tokens, got {len(tokens)}")
        return np.array(tokens, dtype=np.int64)

    def answer(self, outputs: np.ndarray) -> str:
        """What follows the text is asked, not what followed each of its words, though all of these are trained."""
        return _show(outputs[-1:])

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        return {"text": _show(inputs), "next": _show(outputs[-1:]), "tokens": [*map(int, inputs), int(outputs[-1])]}

    def verify(self, example: dict[str, Any]) -> None:
        text, following, tokens = typed_fields(example, text=str, next=str, tokens=list)
        require(
            len(tokens) == self.seq_len + 1 and all(type(token) is int and token >= 0 for token in tokens),
            f"expected {self.seq_len + 1} tokens, got {len(tokens)} in {str(tokens)[:60]}",
        )
        for name, stated, part in (("text", text, tokens[:-1]), ("next", following, tokens[-1:])):
            expected = tokenizer.token_bytes(self.parse(" ".join(f"#{token}" for token in part)).tolist())
            shown = expected.decode("utf-8", errors="replace")
            require(stated == shown, f"expected {name} {shown!r} of the tokens, got {stated!r}")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        num_bytes = sum(len(tokenizer.token_bytes(example["tokens"])) for example in examples)
        num_tokens = sum(len(example["tokens"]) for example in examples)
        different = {token for example in examples for token in example["tokens"]}
        return {"bytes_per_token": num_bytes / num_tokens, "different_tokens": len(different)}

    def _in_order(self, split: Split) -> bool:
        """Whether examples are the windows of a split one after the other, and not windows at random places."""
        return split != "train" and self.evaluation == "whole"

    def _size_and_stride(self, size: int | None) -> tuple[int, int]:
        size = self.checked_size(size)
        return size, min(self.stride or size, size)

    def _last_place(self, tokens: np.ndarray, split: Split, size: int) -> int:
        """Where the last window starts that still has a token after each of its own."""
        expected = f"expected at least {size + 1} tokens, got {len(tokens)}"
        require(len(tokens) > size, f"the {split} text of {self.text} is too short: {expected}")
        return len(tokens) - 1 - size


def _read(text: str) -> list[int]:
    """Tokens of what a person types: text, in which `<|endoftext|>` is one token, or numbers like `#15496 #995`."""
    if re.fullmatch(r"#\d+( #\d+)*", text):
        words = text.replace("#", "").split(" ")
        for word in words:  # of thousands of digits Python makes no number
            fits = len(word) <= 9 and int(word) < tokenizer.VOCABULARY
            require(fits, f"expected tokens below {tokenizer.VOCABULARY}, got {word[:20]}")
        return [int(word) for word in words]
    try:
        return tokenizer.encode(text, marks=True).tolist()
    except UnicodeEncodeError:
        raise InputError(f"expected text, got characters that are none in {text!r}") from None


def _show(tokens: np.ndarray) -> str:
    """Text of tokens; a model may also predict one of the numbers that pad the vocabulary, which have no text."""
    return tokenizer.decode([int(token) for token in tokens if token < tokenizer.VOCABULARY])


@compiled(nogil=True)
def _random_places(seed, split, indices, bound):
    places = np.empty(len(indices), dtype=np.int64)
    for row in range(len(indices)):
        _, places[row] = rng.below(rng.start(seed, split, indices[row]), bound)
    return places


@compiled(nogil=True)
def _perturb(tokens, places, split, share):
    """Replace a share of the tokens, each by the place it has in the text and not by the window it is seen in."""
    for row in range(tokens.shape[0]):
        for column in range(tokens.shape[1]):
            state = rng.start(PERTURBATION_SEED, split, places[row, column])
            state, coin = rng.unit(state)
            if coin < share:
                _, tokens[row, column] = rng.below(state, tokenizer.VOCABULARY)
