"""Records of the ledger as files: one line of JSON, one line with its checksum (rules R3, R7 and R9).

Every record states its spool, epoch and number, so one that was moved, copied from another spool or restored from an
old backup is detected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from connectors.spool.errors import other_version, record_damaged
from connectors.spool.segments.segment import checksum
from connectors.spool.segments.shapes import anything, is_number, is_time, is_time_range, misfit, nothing, optional
from connectors.spool.store.base import Store

FORMAT_VERSION = 2
SIDE_FORMAT = 1
"""Of what stands beside the ledger: the lease, the places of fetchers and the list of wanted ones."""
_TAIL_BYTES = 18
"""A newline, sixteen digits, a newline."""
_MANIFEST = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")

_PLACE = {"spool": str, "epoch": int, "number": int, "kind": str}
_ONLY = {"*": nothing}
"""No other keys."""
_RUN = {"name": str, "space": str, "numbers": int, "hashes": int, "published": is_time_range, "digest": str, **_ONLY}
_SEEK = {"value": anything, "done": bool}
ENTRY: Final = {
    **dict.fromkeys(("number", "source", "rows", "kept", "bytes", "base", "bytes_before", "ordinal"), int),
    "fetcher": str,
    "digest": str,
    "struck": optional(str),
    "published": is_time_range,
    **_ONLY,
}
_STATE = {
    **dict.fromkeys(("head", "bytes", "ordinal", "runs_through", "dedup_epoch"), int),
    "commits": [int],
    "published": optional(is_time),
    "starts": [(str, int, int)],
    "layouts": [(int, int, int)],
    "fetchers": {"*": int},
    "runs": [_RUN],
    "counters": {"*": int},
    "sealed": {"*": is_number},
    "seek?": _SEEK,
    **_ONLY,
}
_MANIFEST_NAME = {"name": lambda value: type(value) is str and _MANIFEST.fullmatch(value) is not None}
_SNAPSHOT = {
    "nonce": str,
    "state": {"manifests": [{**_MANIFEST_NAME, "digest": str, **_ONLY}], "live": (int, int), **_STATE},
}
_RECORD = {
    "nonce": str,
    "base": int,
    "admit?": [anything],
    "counters?": {"*": int},
    "commit?": int,
    "layout?": (int, int),
    "seek?": _SEEK,
    "dedup_epoch?": int,
    "free?": (int, int),
    "forget?": [str],
    "runs?": {"remove": [str], "add": [_RUN], "through": int},
}


def record_name(epoch: int, number: int) -> str:
    """Return the name of a record in the store."""
    return f"ledger/{epoch}/{number}"


def encode(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file that holds a JSON object: its text, then its checksum."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return b"\n".join((text, checksum(text).encode(), b""))


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
        value = json.loads(data[:end])
    except (ValueError, RecursionError):
        raise record_damaged(f"{what} is no JSON of a spool", where) from None
    if not isinstance(value, dict):
        raise record_damaged(f"{what} is not an object", where)
    if type(value.get("v")) is not int or value["v"] not in (SIDE_FORMAT, FORMAT_VERSION):
        raise other_version("SPOOL_RECORD_VERSION", what, value.get("v"), FORMAT_VERSION, where)
    if part := misfit(value, shape or {}):
        raise record_damaged(f"{what} has a right checksum and a wrong value: {part}", where)
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
