"""Field help in docstrings: `help(cls)` of a dataclass shows the strings that stand under its fields."""

import ast
import inspect
import textwrap
from functools import cache
from typing import TypeVar

T = TypeVar("T")


def documents_fields(cls: type[T]) -> type[T]:
    """Append the strings under a class's fields to its docstring, as a decorator.

    Python throws these strings away, so they are read from the source. This is slow, and happens when somebody asks.
    """
    cls.__doc__ = _DocWithFields(cls.__doc__ or "")  # type: ignore[assignment]
    return cls


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the string under each field of a class, on one line. A field without a string is left out."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


class _DocWithFields:
    """A docstring that is completed when it is read."""

    def __init__(self, summary: str) -> None:
        self.summary = summary

    def __get__(self, instance: object, owner: type) -> str:
        try:
            docs = field_docs(owner)
        except (OSError, TypeError):  # no source at hand
            return self.summary
        entries = (f"{name}: {text}" for name, text in docs.items())
        lines = [textwrap.fill(entry, 100, initial_indent=" " * 4, subsequent_indent=" " * 8) for entry in entries]
        return "\n".join([self.summary, "", "Attributes:", *lines])
