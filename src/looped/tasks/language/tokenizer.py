"""Byte-pair encodings with tiktoken. Their ranks are in this package, so no network is needed.

`gpt2` is OpenAI's. `wiki2k` is our own: 2,047 pieces of English Wikipedia and the end of a text, for small models.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal

import numpy as np

from looped.utils.errors import require

if TYPE_CHECKING:
    import tiktoken

Vocabulary = Literal["gpt2", "wiki2k"]

END_OF_TEXT_MARK = "<|endoftext|>"
_MATMUL_MULTIPLE = 64

# GPT-2 cuts a text into these pieces before it merges bytes: English endings, words, numbers, signs, white space.
PIECES = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Tokenizer:
    """A byte-pair encoding: the ranks of its pieces, and the end of a text as its last token."""

    name: Vocabulary
    ranks_sha256: str
    size: int
    """number of tokens"""

    @property
    def end_of_text(self) -> int:
        """Return the token that ends a text."""
        return self.size - 1

    @property
    def padded_size(self) -> int:
        """Return the size rounded up to a multiple of 64, for fast matmuls."""
        return -(-self.size // _MATMUL_MULTIPLE) * _MATMUL_MULTIPLE

    def encode(self, text: str, *, marks: bool = False) -> np.ndarray:
        """Return the tokens of a text. With `marks`, `<|endoftext|>` is one token instead of its letters."""
        allowed = {END_OF_TEXT_MARK} if marks else set()
        tokens = _encoding(self).encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
        return tokens.astype(np.uint16)

    def token_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of a row of tokens, which may cut characters."""
        table = _bytes_of(self)
        return b"".join(table[token] for token in tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a row of tokens, with the replacement character in place of invalid bytes."""
        return _encoding(self).decode(tokens, errors="replace")


GPT2 = Tokenizer("gpt2", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", 50257)
WIKI2K = Tokenizer("wiki2k", "6ef08f42f37faf4ccbd80da61e132cd0eb6207fe59e77b0d10e59fd02a224bb0", 2048)
TOKENIZERS: dict[Vocabulary, Tokenizer] = {each.name: each for each in (GPT2, WIKI2K)}


@cache
def ranks_of(tokenizer: Tokenizer) -> dict[bytes, int]:
    """Return the pieces of an encoding and their ranks. Raise InputError if the file is damaged."""
    name = f"{tokenizer.name}.tiktoken"
    data = (resources.files("looped.tasks.language") / name).read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    require(
        sha256 == tokenizer.ranks_sha256,
        f"{name}: expected sha256 {tokenizer.ranks_sha256}, got {sha256}. Install it again.",
    )
    lines = (line.split() for line in data.splitlines())
    return {base64.b64decode(piece): int(rank) for piece, rank in lines}


@cache
def _bytes_of(tokenizer: Tokenizer) -> list[bytes]:
    by_rank = sorted(ranks_of(tokenizer).items(), key=lambda item: item[1])
    return [piece for piece, _ in by_rank] + [END_OF_TEXT_MARK.encode()]


@cache
def _encoding(tokenizer: Tokenizer) -> "tiktoken.Encoding":
    import tiktoken

    return tiktoken.Encoding(
        tokenizer.name,
        pat_str=PIECES,
        mergeable_ranks=ranks_of(tokenizer),
        special_tokens={END_OF_TEXT_MARK: tokenizer.end_of_text},
    )
