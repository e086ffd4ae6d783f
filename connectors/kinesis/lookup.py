"""Finding a place in a shard, also where the record that it is named by was trimmed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError
from connectors.kinesis.client_errors import INVALID_ARGUMENT
from connectors.kinesis.positions import TRIM, Kind, Position

if TYPE_CHECKING:
    from connectors.kinesis.client import KinesisClient
    from connectors.kinesis.records import Record

__all__ = ["first_record", "kept_iterator"]

_log = logging.getLogger(__name__)
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


def kept_iterator(client: KinesisClient, stream: str, shard: str, position: Position, *, was_read: bool) -> str:
    """An iterator at a position, or at the oldest record that is kept, where the one before it was trimmed.

    Who reads on from there leaves out what does not lie behind the position; whether something between is gone is for
    `connectors.kinesis.losses` to say.

    Args:
        client: calls the service.
        stream: name or ARN.
        shard: the id of the shard.
        position: the position.
        was_read: a query has read the record, so that it is one of this shard.

    Raises:
        ConnectorError: the call failed.
    """
    try:
        return client.iterator(stream, shard, position)
    except ConnectorError as error:
        if error.code != INVALID_ARGUMENT or not was_read or position.kind is not Kind.AFTER:
            raise
        _log.warning(
            "[KINESIS_START_TRIMMED] The record %d is not there any more; reading on from the oldest (%s, %s).",
            position.number,
            stream,
            shard,
        )
        return client.iterator(stream, shard, TRIM)
