"""Fixtures of the task tests: a new cache folder for each file, and a text that is hard to cut into tokens."""

import pytest

PROSE = (
    "The lobster's claws aren't equal .  It weighs 6 kg ,\n\n or 13 lb (naïvely) — 日本語 …\t🦞!\n = Heading = \n \n"
)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def prose(tmp_path):
    path = tmp_path / "prose.txt"
    path.write_text("".join(f"{number} {PROSE}" for number in range(200)), encoding="utf-8")
    return path
