"""A text that can be made anywhere: little stories about people who give each other things, counted right.

For trying language models without any data at hand. Names, things and numbers repeat all the time, so held-out stories
share their words, though hardly their numbers, with the training text.
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
    """The text's file in the cache folder, made when it is first asked for: the same bytes everywhere."""
    path = cache_folder() / "texts" / f"stories-{_VERSION}.txt"
    if not path.exists():
        draw = random.Random(_VERSION)
        save_text(path, "".join(_story(draw) + "\n" for _ in range(NUM_STORIES)))
    return path


def _story(draw: random.Random) -> str:
    def pick(among: tuple[str, ...]) -> str:
        # Of all draws, only random() is promised to stay the same from one Python to the next.
        return among[int(draw.random() * len(among))]

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
    who = giver if held[giver] > held[taker] else taker
    return " ".join([*sentences, f"So {who} is {pick(_MOODS)}."])
