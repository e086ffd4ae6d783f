"""The options that move a subscription to another place in its past or future."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import INTEGER, Kind
from connectors.pubsub.options.client import PubSubConnectionOptions
from connectors.pubsub.options.resource_names import resource

__all__ = ["PubSubSeekOptions", "check_seek"]

_CONNECTOR: Final = "pubsub"
_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_2000_MS: Final = 946_684_800_000
# google.protobuf.Timestamp ends there (https://protobuf.dev/reference/protobuf/google.protobuf/#timestamp).
_YEAR_10000_MICROSECONDS: Final = 253_402_300_800_000_000


def _parse_timestamp(text: str) -> int:
    microseconds = _from_milliseconds(int(text)) if _MILLISECONDS.fullmatch(text) else _from_time(text)
    if microseconds >= _YEAR_10000_MICROSECONDS:
        raise ValueError("it is after the year 9999")
    return microseconds


def _from_milliseconds(number: int) -> int:
    # Seconds, or digits of a date, would be some day of 1970, and the seek would bring back everything there is.
    if 0 < number < _YEAR_2000_MS:
        raise ValueError("as milliseconds it is before the year 2000; seconds are not taken")
    return number * 1000


def _from_time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("it is neither a time nor a number of milliseconds") from None
    if moment.tzinfo is None:
        raise ValueError("it has no time zone")
    microseconds = (moment - _EPOCH) // timedelta(microseconds=1)
    if microseconds < 0:
        raise ValueError("it is before 1970")
    return microseconds


TIMESTAMP: Final = Kind(
    "timestamp",
    "a time with its zone, such as 2026-11-21T20:00:00Z, or milliseconds since 1970: 0, or a time from 2000 on",
    int,
    _parse_timestamp,
)
"""Microseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubSeekOptions(PubSubConnectionOptions):
    """Where the subscription is moved to before it is read."""

    starting_timestamp: int | None = option(
        "startingTimestamp",
        TIMESTAMP,
        "Seek the subscription to this time: what was published since is read again, as far as the subscription or "
        "its topic retains acknowledged messages, and what is older is skipped. Done once for each value, so the "
        "option may stay where it is; it moves the subscription for everyone who reads it.",
        default=None,
    )
    starting_snapshot: str | None = option(
        "startingSnapshot",
        resource("snapshots"),
        "Seek the subscription to this snapshot, an id or a full path: what was not acknowledged then, and what was "
        "published since, is read again. Done once for each value.",
        default=None,
    )
    dedup_epoch: int | None = option(
        "dedupEpoch",
        INTEGER,
        "Another number makes the query forget which messages it has read, once, so that what the service delivers "
        "again gives rows again: for a seek that was done outside of the query. With startingTimestamp or "
        "startingSnapshot another number does the same seek once more.",
        default=None,
        minimum="0",
    )


def check_seek(options: PubSubSeekOptions) -> None:
    """Refuse two places at once.

    Raises:
        OptionError: startingTimestamp and startingSnapshot are both given.
    """
    if options.starting_timestamp is not None and options.starting_snapshot is not None:
        raise conflict(
            _CONNECTOR,
            "startingTimestamp",
            "startingSnapshot",
            "a subscription can be moved to one place only",
            "Leave one of them out.",
        )
