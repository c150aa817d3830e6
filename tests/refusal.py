"""Expect an error by its type, the field that it names and the user's own values in it, whatever its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from looped.utils.errors import InputError


@contextmanager
def refused(field: object, *values: object, error: type[InputError] = InputError) -> Iterator[None]:
    """Fail unless the block raises an error of one line that names this field and these values.

    A field is a setting or a file, or None where the error names neither. A value is what a user gave or could give
    instead: a number, the name of a file or of a model, a flag.
    """
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert caught.value.field == (None if field is None else str(field)), f"field {caught.value.field!r}: {message}"
    missing = [value for value in values if str(value) not in message]
    assert not missing, f"expected {missing} in: {message}"
    assert "\n" not in message
