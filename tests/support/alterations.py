"""Alterations of JSON that a checkpoint, a ledger or a spool holds, as a hand, a bug or a restore could make them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

VALUES: tuple[Any, ...] = (-1, -2, True, 3.9, "1_0", math.inf, 2**63 - 1, 10**30, None, [], [0], {})
"""What stands in the place of each value; infinity is what JSON's ``1e400`` becomes."""


def alterations(value: Any) -> Iterator[tuple[str, Any]]:
    """Each value at any depth replaced by each of `VALUES`, and each number of a key doubled as another text.

    Yields what was done, and the altered copy; the whole is never replaced, nor a value by itself.
    """
    for path in _paths(value):
        present = _at(value, path)
        for other in VALUES:
            if type(other) is type(present) and other == present:
                continue
            altered = copy.deepcopy(value)
            _at(altered, path[:-1])[path[-1]] = other
            yield f"{'/'.join(map(str, path))} = {other!r}", altered
    for path in [(), *_paths(value)]:
        present = _at(value, path)
        for key in present if isinstance(present, Mapping) else ():
            for other in (f"0{key}", f"+{key}", f" {key}", f"{key}_0", f":{key}"):
                altered = copy.deepcopy(value)
                _at(altered, path)[other] = copy.deepcopy(present[key])
                yield f"{'/'.join(map(str, path))} has {key!r} as {other!r} too", altered


def json_text(value: Any) -> str:
    """JSON as `json.dumps` of the pack's own writers makes it, with infinity as a number that is too large."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).replace("Infinity", "1e400")


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, Mapping | list):
        for key in value if isinstance(value, Mapping) else range(len(value)):
            yield (*path, key)
            yield from _paths(value[key], (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
