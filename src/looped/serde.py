"""Convert frozen dataclasses to JSON values and back, and check their fields.

msgspec does the type checking. This module adds what msgspec leaves out for dataclasses: unknown fields are refused
with a suggestion, and every message names the field by its path.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from datetime import date
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from looped.utils.errors import InputError, closest

T = TypeVar("T")
_TYPES_IN_WORDS = {
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    str: "a string",
    date: "a date such as 2026-12-31",
    type(None): "null",
}

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]


def check_fields(instance: Any, where: str = "") -> None:
    """Raise InputError unless every field of a dataclass has its annotated type; store integers as floats where needed.

    Call this from `__post_init__`, so that a wrong value in Python fails as it does on the command line. `where` stands
    before the names of the fields, as in `task.length`.
    """
    for name, annotation in _field_types(type(instance)).items():
        value = getattr(instance, name)
        path = f"{where}.{name}".lstrip(".")
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            if not isinstance(value, annotation):
                raise InputError(f"{path}: expected a {annotation.__name__}, got {value!r}")
        else:
            object.__setattr__(instance, name, _convert(annotation, value, path))


def encode(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values. A nested dataclass with a `to_json` is encoded by that."""
    return {each.name: _encode_value(getattr(instance, each.name)) for each in dataclasses.fields(instance)}


def _encode_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        own = getattr(value, "to_json", None)
        return encode(value) if own is None else own()
    if isinstance(value, Mapping):
        return {name: _encode_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encode_value(each) for each in value]
    return msgspec.to_builtins(value)


def decode(cls: type[T], data: Any, where: str = "", **given: Any) -> T:
    """Return an instance of the dataclass `cls` from JSON values. `given` holds fields that are decoded already.

    Raise InputError for an unknown field or a value of the wrong type. `where` is the path of `data` in its file.
    A nested dataclass with a `from_json(data, where)` is decoded by that.
    """
    if not isinstance(data, Mapping):
        raise InputError(f"{where or cls.__name__}: expected an object, got {_short(data)}")
    types = _field_types(cls)
    values = dict(given)
    for name, value in data.items():
        path = f"{where}.{name}".lstrip(".")
        if name not in types:
            known = [f"{where}.{each}".lstrip(".") for each in types]
            raise InputError(f"{path}: unknown field{closest(path, known)}")
        values[name] = decode_value(types[name], value, path)
    for each in dataclasses.fields(cls):  # type: ignore[arg-type]
        has_default = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
        if each.name not in values and not has_default:
            path = f"{where}.{each.name}".lstrip(".")
            raise InputError(f"{path}: expected {_describe(types[each.name])}, got nothing")
    return cls(**values)


def decode_value(annotation: Any, value: Any, path: str) -> Any:
    """Return a value of the annotated type from JSON values, item by item, so that an error names the item."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if dataclasses.is_dataclass(annotation):
        own = getattr(annotation, "from_json", None)
        return decode(annotation, value, path) if own is None else own(value, path)  # type: ignore[arg-type]
    if origin is UnionType:
        for member in inner:
            if _is_container(member, value):
                return decode_value(member, value, path)
    if origin is dict and isinstance(value, Mapping):
        return {name: decode_value(inner[1], each, f"{path}.{name}".lstrip(".")) for name, each in value.items()}
    if (origin is list or (origin is tuple and inner[1:] == (...,))) and isinstance(value, list):
        return origin(decode_value(inner[0], each, f"{path}.{place}") for place, each in enumerate(value))
    return _convert(annotation, value, path)


def _is_container(annotation: Any, value: Any) -> bool:
    """Return whether `value` is a JSON object or list and the annotated type is one, too."""
    if isinstance(value, list):
        return get_origin(annotation) in (list, tuple)
    return isinstance(value, Mapping) and (get_origin(annotation) is dict or dataclasses.is_dataclass(annotation))


def by_path(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dictionaries as (dotted path, value)."""
    for name, value in values.items():
        path = f"{where}.{name}".lstrip(".")
        yield from by_path(value, path) if isinstance(value, Mapping) else [(path, value)]


@cache
def _field_types(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {each.name: hints[each.name] for each in dataclasses.fields(cls)}


def _convert(annotation: Any, value: Any, path: str) -> Any:
    try:
        converted = msgspec.convert(value, annotation)
        if isinstance(converted, str):
            converted.encode()  # JSON may hold half a character, such as U+D800, that cannot be written
    except (msgspec.ValidationError, OverflowError, TypeError, UnicodeError):
        got = f"{_short(value)}{_hint(annotation, value)}"
        raise InputError(f"{path}: expected {_describe(annotation)}, got {got}") from None
    if isinstance(converted, int) and abs(converted) >= 2**63:
        raise InputError(f"{path}: expected an integer of 64 bits, got {_short(value)}")
    if isinstance(converted, float) and not math.isfinite(converted):
        raise InputError(f"{path}: expected {_describe(annotation)}, got {converted}")
    return converted


def _describe(annotation: Any) -> str:
    """Return a type in words, such as `an integer or null`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _describe(inner[0]) + "".join(f" of at least {limit.ge}" for limit in inner[1:])
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join(_describe(each) for each in inner)
    if origin in (tuple, list):
        return f"a list, each item {_describe(inner[0])}"
    if origin is dict:
        return "an object"
    return _TYPES_IN_WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _hint(annotation: Any, value: Any) -> str:
    return closest(value, map(str, get_args(annotation))) if get_origin(annotation) is Literal else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
