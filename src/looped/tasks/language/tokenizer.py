"""GPT-2's byte-pair encoding with tiktoken. The ranks are in this package, so no network is needed."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from looped.utils.errors import require

if TYPE_CHECKING:
    import tiktoken

RANKS_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
END_OF_TEXT = 50256
END_OF_TEXT_MARK = "<|endoftext|>"
VOCABULARY = 50257

# GPT-2 cuts a text into these pieces before it merges bytes: English endings, words, numbers, signs, white space.
_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def encode(text: str, *, marks: bool = False) -> np.ndarray:
    """Return the tokens of a text. With `marks`, `<|endoftext|>` is one token instead of its letters."""
    allowed = {END_OF_TEXT_MARK} if marks else set()
    return _encoding().encode_to_numpy(text, allowed_special=allowed, disallowed_special=()).astype(np.uint16)


def token_bytes(tokens: Iterable[int]) -> bytes:
    """Return the bytes of a row of tokens, which may cut characters."""
    table = _bytes_of()
    return b"".join(table[token] for token in tokens)


def decode(tokens: Sequence[int]) -> str:
    """Return the text of a row of tokens, with the replacement character in place of invalid bytes."""
    return _encoding().decode(tokens, errors="replace")


@cache
def _ranks() -> dict[bytes, int]:
    data = (resources.files("looped.tasks.language") / "gpt2.tiktoken").read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    require(sha256 == RANKS_SHA256, f"gpt2.tiktoken: expected sha256 {RANKS_SHA256}, got {sha256}. Install it again.")
    lines = (line.split() for line in data.splitlines())
    return {base64.b64decode(piece): int(rank) for piece, rank in lines}


@cache
def _bytes_of() -> list[bytes]:
    by_rank = sorted(_ranks().items(), key=lambda item: item[1])
    return [piece for piece, _ in by_rank] + [END_OF_TEXT_MARK.encode()]


@cache
def _encoding() -> "tiktoken.Encoding":
    import tiktoken

    return tiktoken.Encoding(
        "gpt2", pat_str=_PIECES, mergeable_ranks=_ranks(), special_tokens={END_OF_TEXT_MARK: END_OF_TEXT}
    )
