"""Finding a place in a shard, also where the record that it is named by was trimmed.

Records that are gone, and what becomes of that: ``failOnDataLoss`` says it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from connectors.core.errors import ConnectorError, DataLossError
from connectors.kinesis.client.errors import EXPIRED_ITERATOR, INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.offsets import TRIM, Kind, Position, after, at

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.client.responses import Page, Record

__all__ = ["ShardLook", "check_kept", "first_record", "kept_iterator", "report_loss"]


_log = logging.getLogger(__name__)
_WAY_ON: Final = "If the query may go on without them, set the option failOnDataLoss to false."


def report_loss(kind: str, reason: str, where: str, *, fail: bool) -> None:
    """Fail the query over records that are gone, or warn and go on.

    Args:
        kind: the kind of loss; the code of the error is ``KINESIS_DATA_LOSS.KIND``.
        reason: what was seen.
        where: stream and shard.
        fail: the option ``failOnDataLoss``.

    Raises:
        DataLossError: ``fail`` is set.
    """
    code = f"KINESIS_DATA_LOSS.{kind}"
    if fail:
        raise DataLossError(code, reason, where, _WAY_ON)
    _log.warning("[%s] %s (%s).", code, reason, where)


def check_kept(look: ShardLook, position: Position, known_ms: int, *, fail: bool) -> None:
    """Look whether records behind a position may have been trimmed; for one about which nothing newer is known.

    The record at the position proves that nothing after it is gone. Where that is gone too, what came after it may have
    been: that is a loss if the shard has newer records. A shard without any was idle, or all that it had is gone, which
    nobody can tell: that is a warning.

    Args:
        look: the shard.
        position: how far the shard has been read.
        known_ms: up to when the query knows of all records; longer ago than the retention. 0 for a shard that is older
            than the retention, and of which nothing was read, though all of it was to be.
        fail: the option ``failOnDataLoss``.

    Raises:
        DataLossError: records may be gone, and ``fail`` is set.
        ConnectorError: a call failed.
    """
    number = position.number if position.kind in {Kind.AFTER, Kind.AT} else None
    if number is not None:
        try:
            found = first_record(look, at(number))
        except ConnectorError as error:
            if error.code not in {INVALID_ARGUMENT, NOT_FOUND}:
                raise
            found = None
        if found is not None and found.number == number:
            return
    oldest = first_record(look, TRIM)
    if oldest is None:
        _log.warning(
            "[KINESIS_IDLE_BEYOND_RETENTION] Nothing is known of the shard since %d ms after 1970, which is longer ago "
            "than the retention, and it is empty now: what came meanwhile, if anything did, is gone (%s, %s).",
            known_ms,
            look.stream,
            look.shard,
        )
        return
    known = f"all are known that arrived up to {known_ms} ms after 1970"
    if known_ms == 0:
        known = "nothing of the shard was read before its parents were gone longer than the retention"
    report_loss(
        "TRIMMED",
        f"The records behind {position} were trimmed: {known}, and "
        f"the oldest that is kept is {oldest.SequenceNumber}, which arrived at {oldest.arrival_ms}",
        f"{look.stream}, {look.shard}",
        fail=fail,
    )


T = TypeVar("T")

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
    `connectors.kinesis.source.iterators` to say.

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
