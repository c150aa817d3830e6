"""Convert frozen dataclasses to JSON values and back, and check their fields.

msgspec does the type checking. This module adds what msgspec leaves out for dataclasses: unknown fields are refused
with a suggestion, and every message names the field by its path.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from looped.utils.errors import InputError, closest

T = TypeVar("T")


def check_fields(instance: Any) -> None:
    """Raise InputError unless every field of a dataclass has its annotated type; store integers as floats where needed.

    Call this from `__post_init__`, so that a wrong value in Python fails as it does on the command line.
    """
    for name, annotation in _field_types(type(instance)).items():
        value = getattr(instance, name)
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            if not isinstance(value, annotation):
                raise InputError(f"{name}: expected a {annotation.__name__}, got {value!r}", field=name)
        else:
            object.__setattr__(instance, name, _convert(annotation, value, name))


def encode(instance: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary of JSON values (tuples become lists)."""
    return msgspec.json.decode(msgspec.json.encode(instance))


def decode(cls: type[T], data: Any, where: str = "", **given: Any) -> T:
    """Return an instance of the dataclass `cls` from JSON values. `given` holds fields that are decoded already.

    Raise InputError for an unknown field or a value of the wrong type. `where` is the path of `data` in its file.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where or cls.__name__}: expected an object, got {_short(data)}", field=where)
    types = _field_types(cls)
    values = dict(given)
    for name, value in data.items():
        path = f"{where}.{name}".lstrip(".")
        if name not in types:
            known = [f"{where}.{each}".lstrip(".") for each in types]
            raise InputError(f"{path}: unknown field{closest(path, known)}", field=path)
        annotation = types[name]
        nested = dataclasses.is_dataclass(annotation)
        values[name] = decode(annotation, value, path) if nested else _convert(annotation, value, path)  # type: ignore
    for each in dataclasses.fields(cls):  # type: ignore[arg-type]
        has_default = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
        if each.name not in values and not has_default:
            path = f"{where}.{each.name}".lstrip(".")
            raise InputError(f"{path}: expected {_describe(types[each.name])}, got nothing", field=path)
    return cls(**values)


def by_path(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dictionaries as (dotted path, value)."""
    for name, value in values.items():
        path = f"{where}.{name}".lstrip(".")
        yield from by_path(value, path) if isinstance(value, Mapping) else [(path, value)]


@cache
def _field_types(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {each.name: hints[each.name] for each in dataclasses.fields(cls)}


def _convert(annotation: Any, value: Any, path: str) -> Any:
    try:
        converted = msgspec.convert(value, annotation)
        if isinstance(converted, str):
            converted.encode()  # JSON may hold half a character, such as U+D800, that cannot be written
    except (msgspec.ValidationError, TypeError, UnicodeError):
        raise InputError(f"{path}: expected {_describe(annotation)}, got {_short(value)}{_hint(annotation, value)}",
                         field=path) from None  # fmt: skip
    if isinstance(converted, int) and abs(converted) >= 2**63:
        raise InputError(f"{path}: expected an integer of 64 bits, got {_short(value)}", field=path)
    if isinstance(converted, float) and converted != converted:
        raise InputError(f"{path}: expected {_describe(annotation)}, got NaN", field=path)
    return converted


def _describe(annotation: Any) -> str:
    """Return a type in words, such as `an integer or null`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join(_describe(each) for each in inner)
    if origin in (tuple, list):
        return f"a list, each item {_describe(inner[0])}"
    if origin is dict:
        return "an object"
    names = {int: "an integer", float: "a finite number", bool: "true or false", str: "a string", type(None): "null"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _hint(annotation: Any, value: Any) -> str:
    return closest(value, map(str, get_args(annotation))) if get_origin(annotation) is Literal else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
