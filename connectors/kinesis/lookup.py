"""Finding the first record from a position on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connectors.kinesis.positions import Position

if TYPE_CHECKING:
    from connectors.kinesis.client import KinesisClient
    from connectors.kinesis.records import Record

__all__ = ["first_record"]

_PAGES: Final = 1000
"""Of a shard that takes records again after a week; an empty page passes over some time."""


def first_record(client: KinesisClient, stream: str, shard: str, position: Position) -> Record | None:
    """The first record from a position on; None when there is none.

    Raises:
        ConnectorError: a call failed.
    """
    iterator: str | None = client.iterator(stream, shard, position)
    for _ in range(_PAGES):
        if iterator is None:
            return None
        page = client.records(iterator, 1, stream, shard)
        if page.records:
            return page.records[0]
        if page.behind_ms == 0 and page.following is not None:
            return None
        iterator = page.following
    return None
