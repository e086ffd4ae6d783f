"""The sentinel, by which every source says that nothing was resolved yet."""

from __future__ import annotations

from typing import Any

from connectors.core.offsets import SENTINEL, is_sentinel
from tests.support.alterations import alterations


def test_only_the_sentinel_itself_is_the_sentinel() -> None:
    assert is_sentinel(dict(SENTINEL))
    others: list[Any] = [altered for _, altered in alterations(dict(SENTINEL))]
    for offset in [*others, [], None, "initial", {"initial": 1, "v": 1}, {"initial": True, "v": 1.0}]:
        assert not is_sentinel(offset), offset
