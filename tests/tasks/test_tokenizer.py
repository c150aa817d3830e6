"""Compare the byte-pair encodings with their definition."""

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.tasks.language.tokenizer import GPT2, TOKENIZERS, WIKI2K, Tokenizer, ranks_of
from tests.refusal import refused
from tests.tasks.conftest import PROSE


def merged_by_hand(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the byte-pair encoding by definition: merge the pair of least rank in every piece until none is left."""
    ranks = {tokenizer.token_bytes([token]): token for token in range(tokenizer.end_of_text)}
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
        assert GPT2.encode("Hello world").tolist() == [15496, 995]
        assert GPT2.encode("<|endoftext|>", marks=True).tolist() == [50256]
        assert 50256 not in GPT2.encode("<|endoftext|>")

    def test_wiki2k_encode_known_text_gives_whole_words(self):
        pieces = [WIKI2K.token_bytes([token]) for token in WIKI2K.encode("The city is known for its population.")]
        assert pieces == [b"The", b" city", b" is", b" known", b" for", b" its", b" population", b"."]
        assert WIKI2K.encode("<|endoftext|>", marks=True).tolist() == [2047]

    @pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
    @given(text=st.text())
    @settings(deadline=None)
    def test_decode_reverses_encode(self, tokenizer, text):
        tokens = tokenizer.encode(text).tolist()
        assert tokenizer.decode(tokens) == text
        assert tokenizer.token_bytes(tokens) == text.encode()

    @pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
    @given(text=st.text(alphabet=st.sampled_from("ab'stre 1!\n\té日🦞")) | st.text(max_size=20))
    @settings(deadline=None)
    def test_encode_equals_merging_by_hand(self, tokenizer, text):
        assert tokenizer.encode(text).tolist() == merged_by_hand(text, tokenizer)

    @pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
    def test_encode_prose_equals_merging_by_hand(self, tokenizer):
        assert tokenizer.encode(PROSE).tolist() == merged_by_hand(PROSE, tokenizer)

    @pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
    def test_padded_size_holds_every_token(self, tokenizer):
        assert tokenizer.size <= tokenizer.padded_size < tokenizer.size + 64
        assert len(ranks_of(tokenizer)) + 1 == tokenizer.size

    def test_damaged_ranks_raise(self):
        with refused("gpt2.tiktoken"):
            ranks_of(Tokenizer("gpt2", "0" * 64, GPT2.size))
