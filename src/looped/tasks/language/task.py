"""Language modelling (Section 5 and the appendix of the paper): predict every next token of a text.

The text is in a byte-pair encoding, GPT-2's by default. Training reads windows at random places. Validation and test
read the whole split window by window, and count every token but the first once. They can also read random windows, as
in the paper. Perplexity is the exponential of the mean loss over the counted positions.
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
from looped.tasks.language import corpus
from looped.tasks.language.tokenizer import TOKENIZERS, Tokenizer, Vocabulary
from looped.utils.errors import InputError, require, require_field, require_within

PERTURBATION_SEED = 10  # independent of the run's seed, so that every epoch has the same tokens to memorise


@dataclass(frozen=True)
class Language(Task):
    """Next token of English text."""

    name: ClassVar[str] = "language"
    metric: ClassVar[str] = "perplexity"
    higher_is_better: ClassVar[bool] = False

    text: str = "wikitext"
    """file, folder, name under LOOPED_DATA, hf:NAME:CONFIG of a Hugging Face data set, or synthetic:stories"""
    text_role: corpus.TextRole = "split"
    """use of a text without held-out files: split into training, validation and test, or all for testing"""
    seq_len: int = 1024
    """tokens in a window"""
    end_of_text: Literal["article", "line"] = "article"
    """place of the end-of-text token: instead of a line with \\x1e, or after every line (public code)"""
    evaluation: Literal["whole", "random"] = "whole"
    """windows of validation and test: the whole split in order, or random windows (the paper)"""
    stride: int | None = None
    """tokens from one window of the whole split to the next (None: seq_len, without overlap)"""
    perturbed: float = 0.0
    """fraction of tokens that are replaced by random ones, the same ones in every epoch (the paper: 0.1)"""
    vocabulary: Vocabulary = "gpt2"
    """byte-pair encoding: GPT-2's 50,257 tokens, or 2,048 tokens of English Wikipedia for small models"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_within("task.seq_len", self.seq_len, 1, 1 << 20)
        if self.stride is not None:
            require_within("task.stride", self.stride, 1, self.seq_len, " (seq_len)")
        require_field(0 <= self.perturbed <= 1, "task.perturbed", "a number in 0..1", self.perturbed)

    @property
    def size(self) -> int:
        return self.seq_len

    @property
    def spec(self) -> Spec:
        size = self.tokenizer.padded_size
        return Spec("tokens", size, size, self.seq_len, causal=True, shared_vocabulary=True)

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the encoding of the text."""
        return TOKENIZERS[self.vocabulary]

    def seq_len_at(self, size: int) -> int:
        return size

    def tokens(self, split: Split) -> np.ndarray:
        """Return all tokens of a split before perturbation. The first call encodes the text."""
        return corpus.tokens(self.text, split, self.end_of_text, self.tokenizer, self.text_role)

    def fingerprints(self) -> dict[str, str]:
        splits: tuple[Split, ...] = ("train", "validation")
        return {
            f"{split} text": corpus.fingerprint(self.text, split, self.end_of_text, self.tokenizer) for split in splits
        }

    def num_windows(self, split: Split, size: int | None = None) -> int:
        """Return the number of windows that count every token of a split but the first once."""
        size, stride = self._size_and_stride(size)
        return 1 + math.ceil(self._last_start(self.tokens(split), split, size) / stride)

    def held_out_size(self, split: Split, example_size: int | None = None) -> int:
        """Return the number of windows of the whole split, or else 200, as in the public code."""
        return self.num_distinct(split, example_size) or 200

    def num_distinct(self, split: Split, example_size: int | None = None) -> int | None:
        return self.num_windows(split, example_size) if self._in_order(split) else None

    def sample(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        seed_number, split_number, indices = draw_keys(seed, split, indices)
        size, stride = self._size_and_stride(size)
        text = self.tokens(split)
        last = self._last_start(text, split, size)
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
            _perturb(tokens, places, split_number, self.perturbed, self.tokenizer.size)
        return Batch(tokens[:, :-1], tokens[:, 1:], places[:, :-1] >= counted_before[:, None])

    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        """Return the fraction of the counted tokens that are predicted."""
        right = (prediction == batch.targets) & batch.mask
        return {"accuracy": right.sum(axis=1) / batch.mask.sum(axis=1)}

    def baseline(self, batch: Batch) -> float:
        """Return the perplexity of predicting every token by its frequency in this batch."""
        _, counts = np.unique(batch.targets[batch.mask], return_counts=True)
        frequencies = counts / counts.sum()
        return float(np.exp(-np.sum(frequencies * np.log(frequencies))))

    def render(self, inputs: np.ndarray) -> str:
        """Return the text, or token ids such as `#15496 #995` if `parse` would read the text as other tokens."""
        tokens = [int(token) for token in inputs]
        # The bytes may not be UTF-8, and a text may look like invalid token ids.
        with suppress(UnicodeDecodeError, InputError):
            text = self.tokenizer.token_bytes(tokens).decode("utf-8")
            if self._read(text) == tokens:
                return text
        return " ".join(f"#{token}" for token in tokens)

    def parse(self, text: str) -> np.ndarray:
        tokens = self._read(text)
        require(1 <= len(tokens) <= self.seq_len, f"expected 1 to {self.seq_len} tokens, got {len(tokens)}")
        return np.array(tokens, dtype=np.int64)

    def answer(self, outputs: np.ndarray) -> str:
        """Return the text of the token after the last one, although the model predicts a token at every position."""
        return self._show(outputs[-1:])

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        tokens = [*map(int, inputs), int(outputs[-1])]
        return {"text": self._show(inputs), "next": self._show(outputs[-1:]), "tokens": tokens}

    def verify(self, example: dict[str, Any]) -> None:
        text, following, tokens = typed_fields(example, text=str, next=str, tokens=list)
        require(
            len(tokens) == self.seq_len + 1 and all(type(token) is int and token >= 0 for token in tokens),
            f"tokens: expected {self.seq_len + 1}, got {len(tokens)} in {str(tokens)[:60]}",
        )
        for name, stated, part in (("text", text, tokens[:-1]), ("next", following, tokens[-1:])):
            part_bytes = self.tokenizer.token_bytes(self.parse(" ".join(f"#{token}" for token in part)).tolist())
            expected = part_bytes.decode("utf-8", errors="replace")
            require(stated == expected, f"{name}: expected {expected!r} from the tokens, got {stated!r}")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        num_bytes = sum(len(self.tokenizer.token_bytes(example["tokens"])) for example in examples)
        num_tokens = sum(len(example["tokens"]) for example in examples)
        distinct = {token for example in examples for token in example["tokens"]}
        return {"bytes_per_token": num_bytes / num_tokens, "different_tokens": len(distinct)}

    def _read(self, text: str) -> list[int]:
        """Return the tokens of a text, where `<|endoftext|>` is one token, or of token ids such as `#15496 #995`."""
        if re.fullmatch(r"#\d+( #\d+)*", text):
            words = text.replace("#", "").split(" ")
            for word in words:  # Python refuses to convert thousands of digits
                is_token = len(word) <= 9 and int(word) < self.tokenizer.size
                require(is_token, f"expected tokens below {self.tokenizer.size}, got {word[:20]}")
            return [int(word) for word in words]
        try:
            return self.tokenizer.encode(text, marks=True).tolist()
        except UnicodeEncodeError:
            raise InputError(f"expected valid Unicode text, got {text!r}") from None

    def _show(self, tokens: np.ndarray) -> str:
        """Return the text of tokens. Ids that pad the vocabulary have no text and are left out."""
        return self.tokenizer.decode([int(token) for token in tokens if token < self.tokenizer.size])

    def _in_order(self, split: Split) -> bool:
        """Return True if the examples of a split are its windows in order, and not windows at random places."""
        return split != "train" and self.evaluation == "whole"

    def _size_and_stride(self, size: int | None) -> tuple[int, int]:
        size = self.checked_size(size)
        return size, min(self.stride or size, size)

    def _last_start(self, tokens: np.ndarray, split: Split, size: int) -> int:
        """Return the start of the last window that has a next token for each of its tokens."""
        expected = f"at least {size + 1} tokens in the {split} split of {self.text}"
        require_field(len(tokens) > size, "task.text", expected, len(tokens))
        return len(tokens) - 1 - size


@compiled(nogil=True)
def _random_places(seed, split, indices, bound):
    places = np.empty(len(indices), dtype=np.int64)
    for row in range(len(indices)):
        _, places[row] = rng.below(rng.start(seed, split, indices[row]), bound)
    return places


@compiled(nogil=True)
def _perturb(tokens, places, split, fraction, vocabulary):
    """Replace a fraction of the tokens. The draw depends on a token's place in the text, not on the window."""
    for row in range(tokens.shape[0]):
        for column in range(tokens.shape[1]):
            state = rng.start(PERTURBATION_SEED, split, places[row, column])
            state, coin = rng.unit(state)
            if coin < fraction:
                _, tokens[row, column] = rng.below(state, vocabulary)
