"""Repairs of a spool that no query uses: quarantine, adopt, wipe (rules R4, R7 and R9).

Each takes the lock of the spool first, so a running query is never touched, and claims an epoch before it changes the
ledger, so a writer that was only paused can write nothing more.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from connectors.core.errors import ConnectorError, SpoolDamagedError, SpoolError, SpoolInUseError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.admin.survey import is_spool_file, is_there, open_spool, require_identity
from connectors.spool.fetching.placement import PLACEMENT_FOLDER
from connectors.spool.ledger.data_loss import can_be_quarantined, damaged_segments, quarantine, what_is_wrong
from connectors.spool.ledger.identity import WIPING, SpoolIdentity, read_identity, replace_identity
from connectors.spool.ledger.recovery import read_state, take_over
from connectors.spool.ledger.segment_log import MANIFEST_FOLDER
from connectors.spool.ledger.state import LedgerState
from connectors.spool.ledger.writer_lock import LEASE_NAME, LOCK_NAME, writer_lock
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.store.disk import IDENTITY_NAME, QUARANTINE_FOLDER, TEMPORARY_FOLDER

_SEGMENT_NAME = re.compile(r"inbox/[^/]+/\d+(?:\.arrow)?")
_FOLDERS = ("epochs", "ledger", "inbox", PLACEMENT_FOLDER, "ids", MANIFEST_FOLDER, QUARANTINE_FOLDER, TEMPORARY_FOLDER)
"""In the order in which they are wiped."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A segment that is quarantined, or would be.

    Its rows had the positions from `first` to before `end`, which are equal if it was never admitted. Those that were
    `committed` are in the sink, and only a replay lacks them.
    """

    segment: str
    first: int
    end: int
    committed: int
    error: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """An adoption from an old to a new location, and whether a spool of this id at the old one was stopped for good."""

    spool: str
    old: str
    new: str
    fenced: bool


@dataclass(frozen=True, slots=True)
class Wiping:
    """How many files were deleted, and what was left: names that are not part of a spool.

    Or the location itself, if it is empty and cannot be removed: a link, the root of a disk, the working folder.
    """

    files: int
    left: tuple[str, ...]


def losses_of_repair(path: str) -> list[Loss]:
    """Return what `repair` would quarantine, and raise as it does. Changes nothing."""
    store, identity = open_spool(path, "repair")
    state = read_state(store, identity.spool)
    return _losses(state, damaged_segments(store, state))


def repair(path: str) -> list[Loss]:
    """Quarantine every segment that is damaged or missing; return what was given up. Raises as `adopt` does."""
    with _repairing(path) as (store, identity, state):
        return _quarantine(store, identity, damaged_segments(store, state))


def quarantine_named(path: str, names: Sequence[str]) -> list[Loss]:
    """Quarantine the segments of these names. Raises as `adopt` does, and if one is whole or unknown."""
    with _repairing(path) as (store, identity, state):
        damaged = dict(_damage(store, state, store.name_of(name)) for name in names)
        return _quarantine(store, identity, damaged)


def adopt(path: str) -> Adoption:
    """Make a spool that was moved or copied here the one that queries use; the one at the old location is fenced.

    It keeps its id, so its checkpoints continue with it. Raises `SpoolInUseError` if a query uses it, and
    `SpoolDamagedError` if its ledger is damaged, here or there; `SpoolError` if there is no spool here.
    """
    with _repairing(path) as (store, identity, _):
        new, old = store.location, identity.location
        fenced = False
        if old != new:
            fenced = not _is_same_folder(old, new) and _fence_old_location(identity, old, new)
            replace_identity(store, replace(identity, location=new))
        return Adoption(identity.spool, old, new, fenced)


def old_place(path: str) -> str | None:
    """Return where a spool was before it came here, if that cannot be seen from here; else None."""
    store, identity = open_spool(path, "adopt")
    location = identity.location
    return None if location == store.location or _can_see(location) else location


def wipe(path: str, access: StoreAccess | None = None) -> Wiping:
    """Delete the files of a spool, and nothing else; also of a spool that an interrupted wiping has left.

    The identity goes first, so that no query uses what a crash leaves. A file tells the next wiping that this was a
    spool. Raises `SpoolInUseError` if a query or a fetcher uses it, `SpoolError` if there is no spool.
    """
    store = open_store(path, access=access)
    if not _is_half_wiped(store):
        require_identity(store)
    with _unused(store):
        store.create(WIPING, b"")
        failpoint("wipe.before_identity")
        files = int(store.exists(IDENTITY_NAME))
        store.delete(IDENTITY_NAME)
        failpoint("wipe.after_identity")
        files += _wipe_files(store)
        failpoint("wipe.before_end")
        if store.has_locks:
            store.delete(LOCK_NAME)
    if not store.has_locks:
        store.delete(LEASE_NAME)  # only now: to release the lease writes it
    store.delete(WIPING)
    left = sorted(name for name in store.sizes() if not is_spool_file(store, name))
    return Wiping(files, tuple(left or store.remove_root()))


@contextlib.contextmanager
def unused(path: str) -> Iterator[SpoolIdentity]:
    """Return the identity of a spool, which no query or fetcher can use meanwhile; raises as `wipe` does."""
    store, identity = open_spool(path)
    with _unused(store):
        yield identity


@contextlib.contextmanager
def _unused(store: Store) -> Iterator[None]:
    with _locked(store):
        if busy := [name for name in store.folders("inbox") if store.is_locked(f"inbox/{name}")]:
            what = f"A fetcher is still writing to this spool: {busy[0]}"
            raise SpoolInUseError("SPOOL_IN_USE", what, store.location)
        yield


def _is_half_wiped(store: Store) -> bool:
    """Return whether an earlier wiping was interrupted; a file of the same name with content is not one of a spool."""
    with contextlib.suppress(FileNotFoundError):
        return store.read(WIPING) == b""
    return False


def _wipe_files(store: Store) -> int:
    """Delete the files of a spool, folder by folder, then the empty folders; return how many files there were."""
    last = {WIPING, LOCK_NAME, LEASE_NAME}
    names = [name for name in store.sizes() if is_spool_file(store, name) and name not in last]
    place = {folder: index for index, folder in enumerate(_FOLDERS)}
    for name in sorted(names, key=lambda name: (place.get(name.partition("/")[0], len(place)), name)):
        store.delete(name)
    for folder in _FOLDERS:
        store.remove_empty_folders(folder)
    return len(names)


@contextlib.contextmanager
def _locked(store: Store) -> Iterator[None]:
    lock = writer_lock(store, os.getpid())
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _repairing(path: str) -> Iterator[tuple[Store, SpoolIdentity, LedgerState]]:
    """Open a spool that no query uses, and none can begin to use meanwhile; read its state."""
    store, identity = open_spool(path)
    with _locked(store):
        yield store, identity, read_state(store, identity.spool)


def _damage(store: Store, state: LedgerState, name: str) -> tuple[str, SpoolDamagedError]:
    """Return what is wrong with a segment; raise if it is whole, or none."""
    where, entry = f"{store.root}/{name}", state.segments.find(name)
    exists = entry is not None or (_SEGMENT_NAME.fullmatch(name) and state.is_waiting(name) and store.exists(name))
    if not exists:
        raise SpoolError("SPOOL_NO_SUCH_SEGMENT", "The spool has no segment of this name", where)
    quarantined = entry is not None and entry.quarantined
    if not quarantined:
        try:
            SegmentReader(store, name, None if entry is None else entry.digest).verify()
        except SpoolDamagedError as error:
            if can_be_quarantined(error):
                return name, error
            raise
    what = "The segment is already quarantined" if quarantined else "Nothing is wrong with the segment"
    raise SpoolError("SPOOL_SEGMENT_WHOLE", what, where)


def _quarantine(store: Store, identity: SpoolIdentity, damaged: dict[str, SpoolDamagedError]) -> list[Loss]:
    if not damaged:
        return []
    ledger = take_over(store, identity)
    losses = _losses(ledger.state, damaged)
    quarantine(ledger, damaged)
    return losses


def _losses(state: LedgerState, damaged: dict[str, SpoolDamagedError]) -> list[Loss]:
    losses = []
    for name, error in damaged.items():
        entry = state.segments.find(name)
        first, end = (0, 0) if entry is None else (entry.base, entry.end)
        committed = min(max(state.committed - first, 0), end - first)
        losses.append(Loss(name, first, end, committed, what_is_wrong(error)))
    return losses


def _fence_old_location(identity: SpoolIdentity, old: str, new: str) -> bool:
    """Stop the spool of this id at its old location for good, if there is one."""
    if not _can_see(old):
        return False
    store = open_store(old)
    there = read_identity(store)
    if there is None or there.spool != identity.spool or there.location != old:
        return False
    with _locked(store):
        take_over(store, there)
        replace_identity(store, replace(there, location=new))
    return True


def _is_same_folder(old: str, new: str) -> bool:
    """Return whether the old location leads to this very spool, by a link or a mount: no other one is to be fenced."""
    if "://" in old or "://" in new:
        return False
    with contextlib.suppress(OSError):
        return Path(old).samefile(new)
    return False


def _can_see(location: str) -> bool:
    if "://" in location:
        with contextlib.suppress(ConnectorError, OSError):
            open_store(location, "adopt").exists(IDENTITY_NAME)
            return True
        return False
    return is_there(location)
