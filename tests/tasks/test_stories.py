"""The synthetic stories: equal bytes everywhere, right numbers, and enough text for every split."""

import hashlib
import re

from looped.tasks import SPLITS, Language
from looped.tasks.language.stories import NAME, NUM_STORIES, story_file


def test_story_file_has_the_known_hash():
    text = story_file().read_bytes()
    assert hashlib.sha256(text).hexdigest() == "c4f6a50ac953f5b801552264e4285554cb1f6075d2296ac449b28a49f9fd4231"
    assert text.count(b"\n") == NUM_STORIES


def test_stories_add_up():
    """Follow every gift: the giver has fewer things afterwards, and the taker has more."""
    for story in story_file().read_text().splitlines():
        giver, has, thing, taker, had = re.match(r"(\w+) has (\d+) (\w+) and (\w+) has (\d+)\.", story).groups()
        held = {giver: int(has), taker: int(had)}
        assert len(held) == 2
        gifts = re.findall(r"(\w+) gives (\w+) (\d+) (\w+)\. Now (\w+) has (\d+) and (\w+) has (\d+)\.", story)
        assert 1 <= len(gifts) <= 3
        for one, other, number, what, first, left, second, got in gifts:
            assert (one, other, what, first, second) == (giver, taker, thing, giver, taker)
            held[giver] -= int(number)
            held[taker] += int(number)
            assert (held[giver], held[taker]) == (int(left), int(got))
        who = re.search(r"So (\w+) is \w+\.$", story).group(1)
        assert held[who] == max(held.values())


def test_language_task_reads_the_stories(monkeypatch, tmp_path):
    monkeypatch.setenv("LOOPED_DATA", str(tmp_path / "nothing"))
    task = Language(text=NAME, seq_len=32)
    for split in SPLITS:
        batch = task.sample(0, split, range(3))
        assert batch.inputs.shape == (3, 32)
    assert task.num_windows("test") > 400
