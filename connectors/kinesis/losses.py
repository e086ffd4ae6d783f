"""Records that are gone, and what becomes of that: ``failOnDataLoss`` says it."""

from __future__ import annotations

import logging
from typing import Final

from connectors.core.errors import ConnectorError, DataLossError
from connectors.kinesis.client_errors import INVALID_ARGUMENT, NOT_FOUND
from connectors.kinesis.lookup import ShardLook, first_record
from connectors.kinesis.positions import TRIM, Kind, Position, at

__all__ = ["check_kept", "report_loss"]

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
