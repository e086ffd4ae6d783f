"""Offsets as Spark's checkpoint keeps them: JSON objects, compared as text.

Spark decides whether there is something new by comparing the JSON text of two offsets, and dumps what a reader returns:
so equal offsets must have their keys in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from connectors.core.errors import OffsetError

Offset = dict[str, Any]
"""An offset: a JSON object with string keys."""

LARGEST_LONG = 2**63 - 1

VERSION = 1
"""The version of all offsets this pack writes, under the key ``v``."""

START_KEY = "_start"
"""Key under which an end offset carries the resolved start, if and only if its start was the sentinel."""

SENTINEL: Mapping[str, Any] = {"initial": True, "v": VERSION}
"""What every `initialOffset()` returns: Spark calls it more than once and never persists it (seen on Spark 4.3)."""


def ordered(offset: Mapping[str, Any]) -> Offset:
    """Return the offset with the keys of every level sorted."""
    return {
        key: ordered(value) if isinstance(value, Mapping) else value
        for key, value in sorted(offset.items(), key=lambda item: item[0])
    }


def is_sentinel(offset: object) -> bool:
    """Return whether an offset is the constant that `initialOffset()` returns; a 1 is not True."""
    if not isinstance(offset, Mapping) or dict(offset) != SENTINEL:
        return False
    return all(type(offset[key]) is type(value) for key, value in SENTINEL.items())


def whole_number(value: object, highest: int = LARGEST_LONG) -> int:
    """Return a whole number from 0 to the highest; raises a `ValueError` for anything else, also for True or 3.0."""
    if type(value) is not int or not 0 <= value <= highest:
        raise ValueError(f"{value!r:.40} is not a whole number from 0 to {highest}")
    return value


def parse_json(text: str) -> Any:
    """Parse JSON; raises a `ValueError` also for a key that an object has twice, and for what is nested too deep."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("It is nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("An object has a key twice")
    return value


def load_offset(offset: Mapping[str, Any] | str | None, connector: str) -> Offset:
    """Check the version of an offset from Spark, an object or JSON text, and return it with sorted keys.

    Raises:
        OffsetError: it is not a JSON object, or was written by a newer version of this pack.
    """
    try:
        value = parse_json(offset) if isinstance(offset, str) else offset
        value = ordered(value) if isinstance(value, Mapping) else None
    except (ValueError, RecursionError):
        value = None
    if value is None:
        raise OffsetError(
            "OFFSET_MALFORMED",
            f"The offset {shown(offset)} is not a JSON object",
            f"checkpoint of a {connector} source",
        )
    if type(value.get("v")) is not int or value["v"] != VERSION:
        raise OffsetError(
            "OFFSET_VERSION",
            f"The offset has version {value.get('v')!r:.40}, but this package reads version {VERSION}",
            f"checkpoint of a {connector} source",
        )
    return value


def shown(offset: object) -> str:
    """Return the beginning of an offset for an error."""
    try:
        return repr(str(offset)[:200])
    except (RecursionError, ValueError):  # nested too deep, or a number of more digits than Python writes
        return "of this checkpoint"
