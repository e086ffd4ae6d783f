"""How far a part of a source is behind: what a connector's module ``lag`` gives to `connectors.observe`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PartitionLag", "as_object"]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a partition is behind.

    Attributes:
        records: records between what the query has read and the newest; None where the source does not count them.
        milliseconds: how far the query is behind in time, at least; 0 without lag.
    """

    records: int | None
    milliseconds: int


def as_object(offset: Any) -> Mapping[str, Any]:
    """An offset as an object; progress reports hold it as text, as an object, or not at all."""
    try:
        value = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        value = None
    return value if isinstance(value, Mapping) else {}
