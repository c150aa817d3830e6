"""Step 2, Lemma "contextmap" and its corollary: the ids of all tokens to one sequence id, taking the largest N times.

Lemma: 5 rows, 1 head, width 3. Corollary: 8 rows, 2 heads, width 5, with the last token's digit carried along so that
2 s - digit leaves room for dummy ids. Both take N loops. Ties (equal tokens) share the attention evenly.
"""

from __future__ import annotations

from collections.abc import Collection

from looped.theory.lemmas import require_known
from looped.theory.network import HALF, FeedForward, Form, Head, LoopedNetwork, Number, row

LEMMA_ROWS = ("id", "key", "one", "best", "seq")
COROLLARY_ROWS = (*LEMMA_ROWS, "digit", "heard", "last")
LEMMA_FAULTS = {
    "bias": "epsilon stands at the second hidden unit instead of the first",
    "deselection": "M only just above (B-1)/epsilon: a deselected key may stay close to 0",
}
FAULTS = LEMMA_FAULTS | {
    "second key": "head 2 uses the digit itself as key and so takes the largest digit",
    "stray digit": "W2 has -1 at (5, 4): the digit is subtracted from the sequence id",
    "own digit": "L2 = 2 x_5 - x_6 reads the token's own digit instead of the last token's",
}


def deselection(base: int, printed: Collection[str] = ()) -> Number:
    """M. With M = 2B/epsilon a selected key falls to -B or below, well clear of every key still in play."""
    return (base - 1) / HALF + HALF / 50 if "deselection" in printed else 2 * base / HALF


def selection_heads(with_digit: bool, sharpness: Number = 1, printed: Collection[str] = ()) -> tuple[Head, ...]:
    """Head 1 fetches the id with the largest key; head 2 the digit of the same token."""
    key, one = sharpness * row("key"), row("one")
    if not with_digit:
        return (Head(row("id"), key, one, "best"),)
    second_key = sharpness * row("digit") if "second key" in printed else key
    return (Head(row("id"), key, one, "best"), Head(row("digit"), second_key, one, "heard"))


def select_largest(layer: FeedForward, base: int, with_digit: bool, printed: Collection[str] = ()) -> None:
    """One round: deselect the token just fetched and append its id to the sequence id; 3 or 5 units."""
    late = "bias" in printed
    chosen = layer.relu(row("key") - row("best") + (0 if late else HALF))
    fetched = layer.relu(row("best") + (HALF if late else 0))
    digits = layer.relu(row("seq"))
    layer.add("key", -deselection(base, printed) * chosen)
    layer.add("best", -fetched)
    layer.add("seq", (base - 1) * digits + fetched)
    if with_digit:
        heard, last = layer.relu(row("heard")), layer.relu(row("last"))
        layer.add("heard", -heard)
        layer.add("last", heard - last)
        if "stray digit" in printed:
            layer.add("seq", -heard)


def sequence_id(with_digit: bool, printed: Collection[str] = ()) -> Form:
    """L2: s, or the valid id 2 s - (last digit of the smallest token)."""
    if not with_digit:
        return row("seq")
    return 2 * row("seq") - row("digit" if "own digit" in printed else "last")


def encode_context(with_digit: bool) -> dict[str, Form]:
    rows = COROLLARY_ROWS if with_digit else LEMMA_ROWS
    start = {"id": row("z"), "key": row("z"), "one": Form(const=1), "digit": row("digit_in")}
    return {name: start.get(name, Form()) for name in rows}


def contextual_map(
    base: int, tokens: int, with_digit: bool = False, sharpness: Number | None = None, printed: Collection[str] = ()
) -> LoopedNetwork:
    """The lemma's network on ids z < base, or the corollary's on (z, digit); softmax if a sharpness lambda is given."""
    require_known(printed, FAULTS if with_digit else LEMMA_FAULTS)
    encode = encode_context(with_digit)
    layer = FeedForward(tuple(encode))
    select_largest(layer, base, with_digit, printed)
    return LoopedNetwork(
        inputs=("z", "digit_in") if with_digit else ("z",),
        encode=encode,
        feed_forward=layer,
        decode=(sequence_id(with_digit, printed),),
        loops=tokens,
        heads=selection_heads(with_digit, 1 if sharpness is None else sharpness, printed),
        softmax=sharpness is not None,
    )
