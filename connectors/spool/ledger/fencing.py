"""Epochs, which decide who may write (rule R7): the lock of the spool can fail.

A process may be paused, a network file system may lose locks. So every writer claims the next epoch, seals all earlier
ones, and only then serves; a writer that was sealed finds the seal at its own next number, and stops.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from connectors.core.errors import SpoolDamagedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import RESTORE, fenced_error
from connectors.spool.ledger.records import FORMAT_VERSION, decode, encode, record_name
from connectors.spool.segments.shapes import NUMBER_NAME
from connectors.spool.store.base import Store

_SHAPE = {"spool": str, "epoch": int, "nonce": str}


@dataclass(frozen=True, slots=True)
class Claim:
    """A writer's claim: its epoch, and the nonce by which it recognises its own claim."""

    epoch: int
    nonce: str


def claimed_epochs(store: Store) -> list[int]:
    """Return the epochs that were claimed, ascending; raises `SpoolDamagedError` if claims are missing."""
    epochs = sorted(int(name) for name in store.list("epochs") if NUMBER_NAME.fullmatch(name))
    if epochs != list(range(1, len(epochs) + 1)):
        what = f"The claims of the spool are {epochs[:10]}, with gaps; claims are never deleted"
        raise SpoolDamagedError("SPOOL_CLAIM_MISSING", what, f"{store.root}/epochs", RESTORE)
    return epochs


def claim_epoch(store: Store, spool: str) -> Claim:
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
            return Claim(epoch, nonce)
        read_claim(store, spool, epoch)
        epoch += 1


def read_claim(store: Store, spool: str, epoch: int) -> Claim:
    """Read a claim; raises `SpoolDamagedError` if it is damaged or belongs elsewhere."""
    where = f"{store.root}/epochs/{epoch}"
    claim = decode(store.read(f"epochs/{epoch}"), where, "A claim", _SHAPE)
    if (claim.get("spool"), claim.get("epoch")) != (spool, epoch):
        what = f"A claim states spool {claim.get('spool')}, epoch {claim.get('epoch')}"
        raise SpoolDamagedError("SPOOL_CLAIM_DAMAGED", what, where, RESTORE)
    return Claim(epoch, claim["nonce"])


def put_seal(store: Store, spool: str, epoch: int, number: int, claim: Claim) -> bool:
    """Put a seal at a number of an older epoch; return False if the number is taken."""
    by = [claim.epoch, claim.nonce]
    seal = {"v": FORMAT_VERSION, "kind": "seal", "spool": spool, "epoch": epoch, "number": number, "by": by}
    failpoint("fence.before_seal")
    put = store.create(record_name(epoch, number), encode(seal))
    failpoint("fence.after_seal")
    return put


@contextlib.contextmanager
def while_newest(store: Store, claim: Claim) -> Iterator[None]:
    """Raise `SpoolFencedError` for damaged or missing files if there is a newer claim: a newer writer deletes files."""
    try:
        yield
    except (SpoolDamagedError, FileNotFoundError) as error:
        if max(claimed_epochs(store), default=0) > claim.epoch:
            raise fenced_error(error.where if isinstance(error, SpoolDamagedError) else store.root) from error
        raise
