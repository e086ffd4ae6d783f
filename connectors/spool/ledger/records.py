"""Records of the ledger as files, and the epochs that decide who may write them (rules R3, R7 and R9).

A record is one line of JSON and one line with its checksum. It states its spool, epoch and number, so one that was
moved, copied from another spool or restored from an old backup is detected.

Locks can fail. So a writer claims the next epoch, seals all earlier ones, and only then serves. A writer that was
sealed finds the seal at its own next number, and stops.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from connectors.core.errors import SpoolDamagedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import fenced_error, other_version, record_damaged
from connectors.spool.segments.segment import checksum
from connectors.spool.segments.shapes import (
    NUMBER_NAME,
    anything,
    is_number,
    is_time,
    is_time_range,
    misfit,
    nothing,
    optional,
)
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
_CLAIM = {"spool": str, "epoch": int, "nonce": str}


def record_name(epoch: int, number: int) -> str:
    return f"ledger/{epoch}/{number}"


def record_numbers(store: Store, epoch: int) -> list[int]:
    return sorted(int(name) for name in store.list(f"ledger/{epoch}") if NUMBER_NAME.fullmatch(name))


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
        raise record_damaged(f"{what} is not JSON of a spool", where) from None
    if not isinstance(value, dict):
        raise record_damaged(f"{what} is not an object", where)
    if type(value.get("v")) is not int or value["v"] not in (SIDE_FORMAT, FORMAT_VERSION):
        raise other_version("SPOOL_RECORD_VERSION", what, value.get("v"), FORMAT_VERSION, where)
    if part := misfit(value, shape or {}):
        raise record_damaged(f"{what} has a right checksum and a wrong value: {part}", where)
    return value


def read_record(store: Store, spool: str, epoch: int, number: int) -> dict[str, Any]:
    """Read a record and check that it is the one that belongs there; raises as `decode`, and `FileNotFoundError`."""
    name = record_name(epoch, number)
    where = f"{store.root}/{name}"
    record = decode(store.read(name), where, shape=_PLACE)
    stated = (record.get("spool"), record.get("epoch"), record.get("number"))
    if stated != (spool, epoch, number):
        raise record_damaged(f"A record of the ledger belongs elsewhere: spool, epoch and number are {stated}", where)
    shape = {"snapshot": _SNAPSHOT, "seal": {}}.get(record["kind"], _RECORD)
    if part := misfit(record, shape):
        raise record_damaged(f"A record of the ledger has a right checksum and a wrong value: {part}", where)
    return record


@dataclass(frozen=True, slots=True)
class EpochClaim:
    """A writer's claim: its epoch, and the nonce by which it recognises its own claim."""

    epoch: int
    nonce: str


def claimed_epochs(store: Store) -> list[int]:
    """Return the epochs that were claimed, ascending; raises `SpoolDamagedError` if claims are missing."""
    epochs = sorted(int(name) for name in store.list("epochs") if NUMBER_NAME.fullmatch(name))
    if epochs != list(range(1, len(epochs) + 1)):
        what = f"The claims of the spool are {epochs[:10]}, with gaps; claims are never deleted"
        raise SpoolDamagedError("SPOOL_CLAIM_MISSING", what, f"{store.root}/epochs")
    return epochs


def claim_epoch(store: Store, spool: str) -> EpochClaim:
    """Claim the next free epoch with a random nonce.

    Raises `SpoolDamagedError` if claims are missing, or the newest one is damaged or belongs to another spool.
    """
    nonce = secrets.token_hex(12)
    epoch = len(claimed_epochs(store)) + 1
    if epoch > 1:
        read_claim(store, spool, epoch - 1)
    while True:
        data = encode({"v": FORMAT_VERSION, "spool": spool, "epoch": epoch, "nonce": nonce})
        failpoint("fence.before_claim")
        name = f"epochs/{epoch}"
        if store.create(name, data) or store.read(name) == data:
            failpoint("fence.after_claim")
            return EpochClaim(epoch, nonce)
        read_claim(store, spool, epoch)
        epoch += 1


def read_claim(store: Store, spool: str, epoch: int) -> EpochClaim:
    where = f"{store.root}/epochs/{epoch}"
    claim = decode(store.read(f"epochs/{epoch}"), where, "A claim", _CLAIM)
    if (claim.get("spool"), claim.get("epoch")) != (spool, epoch):
        what = f"A claim states spool {claim.get('spool')}, epoch {claim.get('epoch')}"
        raise SpoolDamagedError("SPOOL_CLAIM_DAMAGED", what, where)
    return EpochClaim(epoch, claim["nonce"])


def put_seal(store: Store, spool: str, epoch: int, number: int, claim: EpochClaim) -> bool:
    by = [claim.epoch, claim.nonce]
    seal = {"v": FORMAT_VERSION, "kind": "seal", "spool": spool, "epoch": epoch, "number": number, "by": by}
    failpoint("fence.before_seal")
    put = store.create(record_name(epoch, number), encode(seal))
    failpoint("fence.after_seal")
    return put


@contextlib.contextmanager
def while_newest(store: Store, claim: EpochClaim) -> Iterator[None]:
    """Raise `SpoolFencedError` for damaged or missing files if there is a newer claim: a newer writer deletes files."""
    try:
        yield
    except (SpoolDamagedError, FileNotFoundError) as error:
        if max(claimed_epochs(store), default=0) > claim.epoch:
            raise fenced_error(error.where if isinstance(error, SpoolDamagedError) else store.root) from error
        raise
