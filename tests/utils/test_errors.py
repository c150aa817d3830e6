"""InputError: one line that any terminal can show, whatever a file or a user has put into it."""

from looped.utils.errors import MAX_MESSAGE, InputError


def test_input_error_with_a_huge_value_is_cut():
    assert len(str(InputError(f"unknown task {'x' * 200_000_000!r}"))) <= MAX_MESSAGE


def test_input_error_shows_escape_codes_instead_of_sending_them():
    assert str(InputError("no run at \x1b[31mred")) == r"no run at \x1b[31mred"
