"""A synthetic text for language models that needs no data: short stories in which people give each other things.

The numbers in a story add up. Held-out stories share their words with the training text, but rarely their numbers.
"""

import random
from pathlib import Path

from looped.utils.files import cache_folder, save_text

NAME = "synthetic:stories"
NUM_STORIES = 6000
_VERSION = 1

_NAMES = ("Ann", "Ben", "Carl", "Dora", "Emil", "Fay", "Gus", "Hana")
_THINGS = ("apples", "books", "coins", "drums", "eggs", "flowers", "gloves", "hats")
_MOODS = ("glad", "tired", "proud", "calm")


def story_file() -> Path:
    """Return the text's file in the cache folder, and write it on first use. The bytes are the same everywhere."""
    path = cache_folder() / "texts" / f"stories-{_VERSION}.txt"
    if not path.exists():
        draw = random.Random(_VERSION)
        save_text(path, "".join(_story(draw) + "\n" for _ in range(NUM_STORIES)))
    return path


def _story(draw: random.Random) -> str:
    def pick(words: tuple[str, ...]) -> str:
        # Python guarantees equal draws across versions only for random().
        return words[int(draw.random() * len(words))]

    giver, taker, thing = pick(_NAMES), pick(_NAMES), pick(_THINGS)
    while taker == giver:
        taker = pick(_NAMES)
    held = {giver: 5 + int(draw.random() * 15), taker: int(draw.random() * 10)}
    sentences = [f"{giver} has {held[giver]} {thing} and {taker} has {held[taker]}."]
    for _ in range(1 + int(draw.random() * 3)):
        number = min(held[giver], 1 + int(draw.random() * 4))
        held[giver], held[taker] = held[giver] - number, held[taker] + number
        sentences.append(f"{giver} gives {taker} {number} {thing}.")
        sentences.append(f"Now {giver} has {held[giver]} and {taker} has {held[taker]}.")
    richer = giver if held[giver] > held[taker] else taker
    return " ".join([*sentences, f"So {richer} is {pick(_MOODS)}."])
