"""Offsets as Spark's checkpoint keeps them: JSON objects, compared as text.

Spark decides whether there is something new by comparing the JSON text of two offsets, and dumps what a reader returns:
so equal offsets must have their keys in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from connectors.core.errors import OffsetError

__all__ = ["SENTINEL", "START_KEY", "VERSION", "Offset", "is_sentinel", "load_offset", "ordered"]

Offset = dict[str, Any]
"""An offset: a JSON object with string keys."""

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


def is_sentinel(offset: Mapping[str, Any]) -> bool:
    """Return whether an offset is the constant that `initialOffset()` returns."""
    return dict(offset) == SENTINEL


def load_offset(offset: Mapping[str, Any] | str | None, connector: str) -> Offset:
    """Check the version of an offset from Spark, an object or JSON text, and return it with sorted keys.

    Raises:
        OffsetError: it is not a JSON object, or was written by a newer version of this pack.
    """
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        value = None
    if not isinstance(value, Mapping):
        raise OffsetError(
            "OFFSET_MALFORMED",
            f"The offset {str(offset)[:200]!r} is not a JSON object",
            f"checkpoint of a {connector} source",
            "The checkpoint is damaged or belongs to another source; restore it, or start with a new one.",
        )
    if value.get("v") != VERSION:
        raise OffsetError(
            "OFFSET_VERSION",
            f"The offset has version {value.get('v')!r} and this version reads {VERSION}",
            f"checkpoint of a {connector} source",
            "Run the version of pyspark-stream-connectors that wrote it, or a newer one.",
        )
    return ordered(value)
