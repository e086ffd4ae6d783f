"""Records of the ledger as files: one line of JSON, one line with its checksum (rules R3, R7 and R9).

Every record states its spool, epoch and number, so one that was moved, copied from another spool or restored from an
old backup is detected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from connectors.spool.errors import other_version, record_damaged
from connectors.spool.segments.segment import checksum
from connectors.spool.segments.shapes import ANY, NOTHING, NUMBER, PUBLISHED, TIME, misfit, optional
from connectors.spool.store.base import Store

__all__ = ["ENTRY", "FORMAT_VERSION", "JsonText", "decode", "encode", "json_bytes", "read_record", "record_name"]

FORMAT_VERSION = 1
_TAIL_BYTES = 18
"""A newline, sixteen digits, a newline."""
_SEGMENTS, _AFTER_SEGMENTS = b'"segments":[', b'],"starts":['
"""What surrounds the segments of a snapshot; within a string a quotation mark has a backslash before it."""
_MARK = "\0"
"""A placeholder for text that is inserted; no name of a file has it."""

_PLACE = {"spool": str, "epoch": int, "number": int, "kind": str}
_ONLY = {"*": NOTHING}
"""No other keys."""
_RUN = {"name": str, "space": str, "numbers": int, "hashes": int, "published": PUBLISHED, "digest": str, **_ONLY}
_SEEK = {"value": ANY, "done": bool}
ENTRY: Final = {
    **dict.fromkeys(("number", "source", "rows", "kept", "bytes", "base", "bytes_before", "ordinal"), int),
    "fetcher": str,
    "digest": str,
    "struck": optional(str),
    "published": PUBLISHED,
    **_ONLY,
}
_SNAPSHOT = {
    "nonce": str,
    "state": {
        **dict.fromkeys(("head", "bytes", "ordinal", "runs_through", "dedup_epoch"), int),
        "commits": [int],
        "published": optional(TIME),
        "segments": lambda value: isinstance(value, JsonText | list),
        "starts": [(str, int, int)],
        "layouts": [(int, int, int)],
        "fetchers": {"*": int},
        "runs": [_RUN],
        "counters": {"*": int},
        "sealed": {"*": NUMBER},
        "seek?": _SEEK,
        **_ONLY,
    },
}
_RECORD = {
    "nonce": str,
    "base": int,
    "admit?": [ANY],
    "counters?": {"*": int},
    "commit?": int,
    "layout?": (int, int),
    "seek?": _SEEK,
    "dedup_epoch?": int,
    "free?": [str],
    "forget?": [str],
    "runs?": {"remove": [str], "add": [_RUN], "through": int},
}


@dataclass(slots=True)
class JsonText:
    """The items of a JSON list as text, with commas between, which is put into a larger text unchanged."""

    text: bytes | memoryview


def record_name(epoch: int, number: int) -> str:
    """Return the name of a record in the store."""
    return f"ledger/{epoch}/{number}"


def json_bytes(value: object, default: Callable[[object], str] | None = None) -> bytes:
    """Return JSON in the one form that is written: no spaces, sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=default).encode()


def encode(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file that holds a JSON object: its text, then its checksum."""
    inserted: list[JsonText] = []

    def mark(item: object) -> str:
        if not isinstance(item, JsonText):
            raise TypeError(f"{type(item).__name__} is no JSON value")
        inserted.append(item)
        return _MARK

    text = json_bytes(value, mark)
    parts: list[bytes | memoryview] = []
    for item in inserted:
        before, _, text = text.partition(json.dumps(_MARK).encode())
        parts += (before, b"[", item.text, b"]")
    parts.append(text)
    # A snapshot has hundreds of MB: it is joined once, in memory that is touched once.
    return b"".join((*parts, b"\n", checksum(*parts).encode(), b"\n"))


def decode(
    data: bytes, where: str, what: str = "A record of the ledger", shape: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the JSON object that `encode` wrote, of a shape; `what` names it in errors.

    Raises `SpoolDamagedError` if the bytes are not whole, and `SpoolVersionError` if another version wrote them.
    """
    end = len(data) - _TAIL_BYTES
    if end < 0 or data[end:] != b"\n" + checksum(memoryview(data)[:end]).encode() + b"\n":
        raise record_damaged(f"{what} has a wrong checksum", where)
    try:
        value = _parse(data, end)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise record_damaged(f"{what} is no JSON of a spool", where) from None
    if not isinstance(value, dict):
        raise record_damaged(f"{what} is not an object", where)
    if type(value.get("v")) is not int or value["v"] != FORMAT_VERSION:
        raise other_version("SPOOL_RECORD_VERSION", what, value.get("v"), FORMAT_VERSION, where)
    if part := misfit(value, shape or {}):
        raise record_damaged(f"{what} has a right checksum and a wrong value: {part}", where)
    return value


def _parse(data: bytes, end: int) -> Any:
    """Parse the JSON text up to `end`. The segments of a snapshot stay text: there may be a million of them."""
    begin = data.find(_SEGMENTS, 0, end) + len(_SEGMENTS)
    close = data.rfind(_AFTER_SEGMENTS, 0, end)
    if begin < len(_SEGMENTS) or close < begin:
        return json.loads(data[:end])
    value = json.loads(data[:begin] + data[close:end])
    value["state"]["segments"] = JsonText(memoryview(data)[begin:close])
    return value


def read_record(store: Store, spool: str, epoch: int, number: int) -> dict[str, Any]:
    """Read a record and check that it is the one that belongs there.

    Raises as `decode`, and `FileNotFoundError`.
    """
    name = record_name(epoch, number)
    where = f"{store.root}/{name}"
    record = decode(store.read(name), where, shape=_PLACE)
    stated = (record.get("spool"), record.get("epoch"), record.get("number"))
    if stated != (spool, epoch, number):
        raise record_damaged(
            f"A record of the ledger belongs elsewhere: spool, epoch and number are {stated}",
            where,
        )
    shape = {"snapshot": _SNAPSHOT, "seal": {}}.get(record["kind"], _RECORD)
    if part := misfit(record, shape):
        raise record_damaged(f"A record of the ledger has a right checksum and a wrong value: {part}", where)
    return record
