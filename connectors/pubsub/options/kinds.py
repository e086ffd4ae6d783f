"""Kinds of values that only options of Pub/Sub have, and the names of its resources: an id, or a full path."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from connectors.core.options.kinds import INTEGER, Kind, choice

__all__ = [
    "ATTRIBUTE",
    "POSITION",
    "PROJECT",
    "TIMESTAMP",
    "TOPIC",
    "BatchMode",
    "FetchMode",
    "SegmentCompression",
    "SpoolDurability",
    "StartingPosition",
    "full_path",
    "is_name",
    "resource",
]

_LONGEST_ATTRIBUTE: Final = 256
_YEAR_2000_MS: Final = 946_684_800_000
# google.protobuf.Timestamp ends there (https://protobuf.dev/reference/protobuf/google.protobuf/#timestamp).
_YEAR_10000_MICROSECONDS: Final = 253_402_300_800_000_000
_PROJECT: Final = r"[A-Za-z0-9.:-]+"
# The rules of Pub/Sub, less the length.
_ID: Final = r"[A-Za-z0-9][A-Za-z0-9_.~+%-]*"


class SpoolDurability(StrEnum):
    """How durable the folder of the spool is."""

    DURABLE = "durable"
    EPHEMERAL = "ephemeral"


class StartingPosition(StrEnum):
    """Where a new checkpoint begins on a used spool, and a batch read of a spool."""

    COMMITTED = "committed"
    EARLIEST = "earliest"
    LATEST = "latest"


class SegmentCompression(StrEnum):
    """How the rows of segments are compressed."""

    NONE = "none"
    LZ4 = "lz4"


class FetchMode(StrEnum):
    """Which processes fetch for a stream."""

    DRIVER = "driver"
    EXTERNAL = "external"


class BatchMode(StrEnum):
    """What a batch read reads."""

    SPOOL = "spool"
    PEEK = "peek"


def is_name(collection: str, text: str) -> bool:
    """Return whether a text is an id or a full path of ``topics``, ``subscriptions`` or ``snapshots``."""
    return re.fullmatch(rf"(projects/{_PROJECT}/{collection}/)?{_ID}", text) is not None


def full_path(project: str | None, collection: str, name: str) -> str:
    """Return the full path of what is named by its id or by its full path."""
    return name if name.startswith("projects/") else f"projects/{project}/{collection}/{name}"


def resource(collection: str, *, several: bool = False) -> Kind[str]:
    """Return the kind of an option that names one resource, or several with commas between them."""

    def parse(text: str) -> str:
        names = [name.strip() for name in text.split(",")] if several else [text]
        for name in names:
            if not is_name(collection, name):
                subject = repr(name[:80]) if len(names) > 1 else "it"
                raise ValueError(f"{subject} is neither an id nor a full path")
        return ",".join(names)

    legal = f"an id, or a full path: projects/PROJECT/{collection}/ID"
    return Kind("string", f"{legal}; several with commas between them" if several else legal, parse)


def _parse_project(text: str) -> str:
    if not re.fullmatch(_PROJECT, text):
        raise ValueError("it is no project id")
    return text


def _parse_position(text: str) -> StartingPosition | int:
    return INTEGER.parse(text) if text.isascii() and text.isdigit() else _WORD.parse(text)


def _parse_attribute(text: str) -> str:
    if not text or len(text.encode()) > _LONGEST_ATTRIBUTE:
        raise ValueError(f"the key of an attribute has 1 to {_LONGEST_ATTRIBUTE} bytes")
    return text


def _parse_timestamp(text: str) -> int:
    """Return microseconds since 1970."""
    if re.fullmatch(r"[0-9]{1,15}", text):
        # Seconds, or digits of a date, would be some day of 1970, and the seek would redeliver everything there is.
        if 0 < int(text) < _YEAR_2000_MS:
            raise ValueError("as milliseconds it is before the year 2000; seconds are not taken")
        microseconds = int(text) * 1000
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("it is neither a time nor a number of milliseconds") from None
        if moment.tzinfo is None:
            raise ValueError("it has no time zone")
        microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        if microseconds < 0:
            raise ValueError("it is before 1970")
    if microseconds >= _YEAR_10000_MICROSECONDS:
        raise ValueError("it is after the year 9999")
    return microseconds


_WORD: Final = choice(StartingPosition)
POSITION: Final = Kind("position", f"{_WORD.legal}; for a batch read also a position", _parse_position)
ATTRIBUTE: Final = Kind("string", "the key of an attribute", _parse_attribute)
TIMESTAMP: Final = Kind(
    "timestamp",
    "a time with its zone, such as 2026-11-21T20:00:00Z, or milliseconds since 1970: 0, or a time from 2000 on",
    _parse_timestamp,
)
PROJECT: Final = Kind("string", "the id of a project, such as my-shop", _parse_project)
TOPIC: Final = resource("topics")
