"""Every file of these tests has a cache folder of its own: none sees what a user, or another file, has made."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
