"""Finding a place in a shard, also where the record that it is named by was trimmed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from connectors.core.errors import ConnectorError
from connectors.kinesis.client_errors import EXPIRED_ITERATOR, INVALID_ARGUMENT
from connectors.kinesis.positions import TRIM, Kind, Position, after

if TYPE_CHECKING:
    from connectors.kinesis.client import KinesisClient
    from connectors.kinesis.records import Page, Record

__all__ = ["ShardLook", "first_record", "kept_iterator"]

T = TypeVar("T")

_log = logging.getLogger(__name__)
_PAGES: Final = 1000
"""Of a shard that takes records again after a week; an empty page passes over some time."""


def _at_once(call: Callable[[], T]) -> T:
    return call()


@dataclass(frozen=True, slots=True)
class ShardLook:
    """A shard that is looked at, page by page.

    Attributes:
        client: calls the service.
        stream: name or ARN.
        shard: the id of the shard.
        in_turn: makes a call when the shard may be asked again, and once more when it fails and that may pass.
    """

    client: KinesisClient
    stream: str
    shard: str
    in_turn: Callable[[Callable[[], Page]], Page] = _at_once

    def pages(self, position: Position, limit: Callable[[], int], *, was_read: bool = False) -> Iterator[Page]:
        """The pages from a position on; an end of them without one that says so is the end of the shard.

        Args:
            position: where to begin.
            limit: the most records of the next page.
            was_read: see `kept_iterator`.

        Raises:
            ConnectorError: a call failed.
        """
        iterator: str | None = None

        def page() -> Page:
            nonlocal iterator
            is_new = iterator is None
            if iterator is None:
                iterator = kept_iterator(self.client, self.stream, self.shard, position, was_read=was_read)
            try:
                return self.client.records(iterator, limit(), self.stream, self.shard)
            except ConnectorError as error:
                if error.code != EXPIRED_ITERATOR:
                    raise
                iterator = None
                if is_new:
                    raise
                return page()  # it lives five minutes: no failure that ``numRetries`` counts

        for _ in range(_PAGES):
            found = self.in_turn(page)
            iterator = found.following
            if found.records:
                position, was_read = after(found.records[-1].number), True
            yield found
            if iterator is None:
                return


def first_record(look: ShardLook, position: Position) -> Record | None:
    """The first record of a shard from a position on; None when there is none.

    Raises:
        ConnectorError: a call failed.
    """
    for page in look.pages(position, lambda: 1):
        if page.records:
            return page.records[0]
        if page.behind_ms == 0 and page.following is not None:
            return None
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
