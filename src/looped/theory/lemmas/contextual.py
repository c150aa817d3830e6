"""Step 2, Lemma "contextmap" and its corollary: one sequence id from the ids of all tokens, largest first.

Lemma: 5 rows, 1 head, width 3. Corollary: 8 rows, 2 heads, width 5. The corollary's network also keeps the last
digit of the smallest token, so that 2 s - digit leaves room for unused ids. Both networks take N loops. Equal tokens
share the attention evenly.
"""

from collections.abc import Collection

from looped.theory.lemmas import require_known
from looped.theory.network import HALF, FeedForward, Form, Head, LoopedNetwork, Number, row

LEMMA_ROWS = ("id", "key", "one", "best", "seq")
COROLLARY_ROWS = (*LEMMA_ROWS, "digit", "best_digit", "last")
LEMMA_FAULTS = {
    "bias": "epsilon is at the second hidden unit instead of the first",
    "deselection": "M only just above (B-1)/epsilon: a deselected key may stay close to 0",
}
FAULTS = LEMMA_FAULTS | {
    "second key": "head 2 uses the digit itself as key and so takes the largest digit",
    "stray digit": "W2 has -1 at (5, 4): the digit is subtracted from the sequence id",
    "own digit": "L2 = 2 x_5 - x_6 reads the token's own digit instead of the last token's",
}


def deselection(base: int, printed: Collection[str] = ()) -> Number:
    """Return M. With M = 2B/epsilon a selected key falls to -B or lower, below every key that still waits."""
    return (base - 1) / HALF + HALF / 50 if "deselection" in printed else 2 * base / HALF


def selection_heads(with_digit: bool, sharpness: Number = 1, printed: Collection[str] = ()) -> tuple[Head, ...]:
    """Return head 1, which fetches the id with the largest key, and head 2, which fetches the digit of that token."""
    key, one = sharpness * row("key"), row("one")
    if not with_digit:
        return (Head(row("id"), key, one, "best"),)
    second_key = sharpness * row("digit") if "second key" in printed else key
    return (Head(row("id"), key, one, "best"), Head(row("digit"), second_key, one, "best_digit"))


def select_largest(layer: FeedForward, base: int, with_digit: bool, printed: Collection[str] = ()) -> None:
    """Add one round to the layer: deselect the fetched token and append its id to the sequence id; 3 or 5 units."""
    late = "bias" in printed
    chosen = layer.relu(row("key") - row("best") + (0 if late else HALF))
    fetched = layer.relu(row("best") + (HALF if late else 0))
    digits = layer.relu(row("seq"))
    layer.add("key", -deselection(base, printed) * chosen)
    layer.add("best", -fetched)
    layer.add("seq", (base - 1) * digits + fetched)
    if with_digit:
        best_digit, last = layer.relu(row("best_digit")), layer.relu(row("last"))
        layer.add("best_digit", -best_digit)
        layer.add("last", best_digit - last)
        if "stray digit" in printed:
            layer.add("seq", -best_digit)


def sequence_id(with_digit: bool, printed: Collection[str] = ()) -> Form:
    """Return L2: s, or the valid id 2 s - (last digit of the smallest token)."""
    if not with_digit:
        return row("seq")
    return 2 * row("seq") - row("digit" if "own digit" in printed else "last")


def encode_context(with_digit: bool) -> dict[str, Form]:
    """Return L1: the rows at their start, as forms over the token id and its last digit."""
    rows = COROLLARY_ROWS if with_digit else LEMMA_ROWS
    start = {"id": row("z"), "key": row("z"), "one": Form(const=1), "digit": row("digit_in")}
    return {name: start.get(name, Form()) for name in rows}


def contextual_map(
    base: int, tokens: int, with_digit: bool = False, sharpness: Number | None = None, printed: Collection[str] = ()
) -> LoopedNetwork:
    """Return the network of the lemma on ids z < base, or of the corollary on (z, digit).

    It uses softmax if a sharpness lambda is given.
    """
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
