"""Records of the ledger as files: one line of JSON, one line with its checksum (rules R3, R7 and R9).

Every record says which spool, epoch and number it belongs to, so a record that was moved, copied from another spool or
replayed from an old backup is found out by its own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.core.errors import SpoolVersionError
from connectors.spool.errors import record_damaged
from connectors.spool.ledger.snapshot_entries import JsonText
from connectors.spool.segments.sealed_file import checksum
from connectors.spool.store.base import Store

__all__ = ["FORMAT_VERSION", "Place", "decode", "encode", "read_record", "record_name"]

FORMAT_VERSION = 1
_TAIL_BYTES = 18
"""A line's end, sixteen digits, a line's end."""
_SEGMENTS, _AFTER_SEGMENTS = b'"segments":[', b'],"starts":['
"""What stands around the segments of a snapshot; within a string a quotation mark has a backslash before it."""
_MARK = "\0"
"""Stands for text that is inserted; no name of a file has it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record belongs: which spool, which epoch, which number in it."""

    spool: str
    epoch: int
    number: int

    @property
    def name(self) -> str:
        """The record's name in the store."""
        return record_name(self.epoch, self.number)


def record_name(epoch: int, number: int) -> str:
    """The name of a record in the store."""
    return f"ledger/{epoch}/{number}"


def encode(value: Mapping[str, Any]) -> bytes:
    """The bytes of a file that holds a JSON object: its text, then its checksum."""
    inserted: list[JsonText] = []

    def mark(each: object) -> str:
        if not isinstance(each, JsonText):
            raise TypeError(f"{type(each).__name__} is no JSON value")
        inserted.append(each)
        return _MARK

    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=mark).encode()
    parts: list[bytes | memoryview] = []
    for each in inserted:
        before, _, text = text.partition(json.dumps(_MARK).encode())
        parts += (before, b"[", each.text, b"]")
    parts.append(text)
    # A snapshot has hundreds of MB: it is put together once, in memory that is touched once.
    return b"".join((*parts, b"\n", checksum(*parts).encode(), b"\n"))


def decode(data: bytes, where: str, what: str = "A record of the ledger") -> dict[str, Any]:
    """The JSON object that `encode` wrote.

    Raises:
        SpoolDamagedError: the bytes are not whole.
        SpoolVersionError: another version wrote them.
    """
    end = len(data) - _TAIL_BYTES
    if end < 0 or data[end:] != b"\n" + checksum(memoryview(data)[:end]).encode() + b"\n":
        raise record_damaged(f"{what} has a wrong checksum", where)
    value = _parse(data, end)
    if not isinstance(value, dict):
        raise record_damaged(f"{what} is not an object", where)
    if value.get("v") != FORMAT_VERSION:
        raise SpoolVersionError(
            "SPOOL_RECORD_VERSION",
            f"{what} has format version {value.get('v')} and this version reads {FORMAT_VERSION}",
            where,
            "Run the version of pyspark-stream-connectors that wrote it, or a newer one.",
        )
    return value


def _parse(data: bytes, end: int) -> Any:
    """The value of the JSON text up to `end`. The segments of a snapshot stay text: there may be a million of them."""
    begin = data.find(_SEGMENTS, 0, end) + len(_SEGMENTS)
    close = data.rfind(_AFTER_SEGMENTS, 0, end)
    if begin < len(_SEGMENTS) or close < begin:
        return json.loads(data[:end])
    value = json.loads(data[:begin] + data[close:end])
    value["state"]["segments"] = JsonText(memoryview(data)[begin:close])
    return value


def read_record(store: Store, place: Place) -> dict[str, Any]:
    """Read a record and check that it belongs where it stands.

    Raises:
        FileNotFoundError: there is no such record.
        SpoolDamagedError: it is damaged, or belongs elsewhere.
        SpoolVersionError: another version wrote it.
    """
    where = f"{store.root}/{place.name}"
    record = decode(store.read(place.name), where)
    found = (record.get("spool"), record.get("epoch"), record.get("number"))
    if found != (place.spool, place.epoch, place.number):
        raise record_damaged(f"A record of the ledger belongs elsewhere: spool, epoch and number are {found}", where)
    return record
