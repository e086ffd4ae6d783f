"""The shapes of the JSON that a spool holds: a checksum says that bytes are whole, not that they mean something.

A shape is a type, a list of one shape, a tuple of the shapes of a list's items, an object (a key that ends with ``?``
may be absent, ``*`` stands for every other key), or a function that returns whether a value is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

NUMBER_NAME: Final = re.compile(r"[0-9]{1,18}")
"""The name of a file that is a number. `str.isdigit` also takes what `int` does not, such as a superscript two."""
_LARGEST: Final = 1 << 62
"""No sum of two numbers of a spool leaves what 64 bits hold."""


def whole(value: object, lowest: int = 0) -> bool:
    """Return whether a value is a whole number from the lowest on, which True and 3.0 are not."""
    return type(value) is int and lowest <= value < _LARGEST


def is_number(value: object) -> bool:
    """Return whether a value is a whole number, -1 for none included."""
    return whole(value, -1)


def is_time(value: object) -> bool:
    return whole(value, -_LARGEST)


def is_hex(value: object) -> bool:
    return type(value) is str and re.fullmatch(r"([0-9a-f]{2})*", value) is not None


def anything(_value: object) -> bool:
    """Return True: something else checks the value."""
    return True


def nothing(_value: object) -> bool:
    """Return False: there is no such value."""
    return False


def optional(shape: Any) -> Callable[[object], bool]:
    """Return a shape that null has too."""
    return lambda value: value is None or misfit(value, shape) is None


def is_time_range(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(is_time, value))  # noqa: PLR2004


def misfit(value: Any, shape: Any, where: str = "It") -> str | None:
    """Return what of a value does not have a shape, for an error; None if all of it has."""
    if isinstance(shape, Mapping):
        return _object_misfit(value, shape, where)
    if isinstance(shape, list | tuple):
        if not isinstance(value, list | tuple) or (isinstance(shape, tuple) and len(value) != len(shape)):
            return f"{where} is {value!r:.60}"
        shapes = shape if isinstance(shape, tuple) else shape * len(value)
        parts = (misfit(item, one, f"{where}[{at}]") for at, (item, one) in enumerate(zip(value, shapes, strict=True)))
        return next((part for part in parts if part), None)
    if shape is int:
        shape = whole
    fits = type(value) is shape if isinstance(shape, type) else shape(value)
    return None if fits else f"{where} is {value!r:.60}"


def _object_misfit(value: Any, shape: Mapping[str, Any], where: str) -> str | None:
    if not isinstance(value, Mapping):
        return f"{where} is {value!r:.60}"
    named = {key.removesuffix("?"): one for key, one in shape.items() if key != "*"}
    if absent := [key for key in shape if not key.endswith("?") and key != "*" and key not in value]:
        return f"{where} has no {absent[0]}"
    for key, item in value.items():
        if part := misfit(item, named.get(key, shape.get("*", anything)), key if where == "It" else f"{where}.{key}"):
            return part
    return None
