"""Records of the ledger as files: one line of JSON, one line with its checksum (rules R3, R7 and R9).

Every record says which spool, epoch and number it belongs to, so a record that was moved, copied from another spool or
replayed from an old backup is found out by its own words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from connectors.core.errors import SpoolDamagedError, SpoolVersionError
from connectors.spool.checksum import checksum
from connectors.spool.stores import Store

__all__ = ["FORMAT_VERSION", "Place", "decode", "encode", "read_record", "record_name"]

FORMAT_VERSION = 1


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
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return text + b"\n" + checksum(text).encode() + b"\n"


def decode(data: bytes, where: str, what: str = "A record of the ledger") -> dict[str, Any]:
    """The JSON object that `encode` wrote.

    Raises:
        SpoolDamagedError: the bytes are not whole.
        SpoolVersionError: another version wrote them.
    """
    text, _, rest = data.partition(b"\n")
    if rest != checksum(text).encode() + b"\n":
        _damaged(where, f"{what} has a wrong checksum")
    value = json.loads(text)
    if not isinstance(value, dict):
        _damaged(where, f"{what} is not an object")
    if value.get("v") != FORMAT_VERSION:
        raise SpoolVersionError(
            "SPOOL_RECORD_VERSION",
            f"{what} has format version {value.get('v')} and this version reads {FORMAT_VERSION}",
            where,
            "Run the version of pyspark-stream-connectors that wrote it, or a newer one.",
        )
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
        _damaged(where, f"A record of the ledger belongs elsewhere: spool, epoch and number are {found}")
    return record


def _damaged(where: str, what: str) -> NoReturn:
    raise SpoolDamagedError(
        "SPOOL_RECORD_DAMAGED",
        what,
        where,
        "Restore the spool from a backup; no record of the ledger is ever skipped.",
    )
