"""Compare GPT-2's encoding with its definition."""

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.tasks.language import tokenizer
from looped.utils.errors import InputError
from tests.tasks.conftest import PROSE


def merged_by_hand(text: str) -> list[int]:
    """Return the byte-pair encoding by definition: merge the pair of least rank in every piece until none is left."""
    ranks = {tokenizer.token_bytes([token]): token for token in range(tokenizer.END_OF_TEXT)}
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
    def test_encode_known_texts(self):
        assert tokenizer.encode("Hello world").tolist() == [15496, 995]
        assert tokenizer.encode("<|endoftext|>", marks=True).tolist() == [50256]
        assert 50256 not in tokenizer.encode("<|endoftext|>")

    @given(st.text())
    @settings(deadline=None)
    def test_decode_reverses_encode(self, text):
        tokens = tokenizer.encode(text).tolist()
        assert tokenizer.decode(tokens) == text
        assert tokenizer.token_bytes(tokens) == text.encode()

    @given(st.text(alphabet=st.sampled_from("ab'stre 1!\n\té日🦞")) | st.text(max_size=20))
    @settings(deadline=None)
    def test_encode_equals_merging_by_hand(self, text):
        assert tokenizer.encode(text).tolist() == merged_by_hand(text)

    def test_encode_prose_equals_merging_by_hand(self):
        assert tokenizer.encode(PROSE).tolist() == merged_by_hand(PROSE)

    def test_damaged_ranks_raise(self, monkeypatch):
        monkeypatch.setattr(tokenizer, "RANKS_SHA256", "0" * 64)
        with pytest.raises(InputError, match=r"gpt2\.tiktoken"):
            tokenizer._ranks.__wrapped__()
