"""Opening a spool's ledger: claim, seal, read, and delete what crashes have left (rules R7 and R9)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from connectors.core.errors import SpoolDamagedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.ledger.data_loss import (
    SegmentNumbers,
    can_be_quarantined,
    damaged_segments,
    quarantine,
    quarantined_rows,
    segment_numbers,
)
from connectors.spool.ledger.identity import SpoolIdentity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.records import (
    EpochClaim,
    claim_epoch,
    claimed_epochs,
    put_seal,
    read_record,
    record_name,
    record_numbers,
    while_newest,
)
from connectors.spool.ledger.segment_log import MANIFEST_FOLDER, SegmentEntry, manifest_name, read_segments
from connectors.spool.ledger.state import QUARANTINED_SEGMENTS, LedgerState, WriterStart
from connectors.spool.segments.dedup_index import DedupIndex
from connectors.spool.segments.segment import SegmentReader, segment_name
from connectors.spool.store.base import Store
from connectors.spool.store.disk import TEMPORARY_FOLDER


class _Reading(NamedTuple):
    state: LedgerState
    """After the last record that is no seal."""
    highest: dict[int, int]
    """The highest number of each epoch since the newest snapshot, -1 for none; it may be newer than `state`."""


def open_ledger(store: Store, identity: SpoolIdentity, *, fail: bool = True) -> Ledger:
    """Become the one writer of a spool; with ``fail=False``, quarantine what is in the way, if it may be given up.

    The caller holds the lock, where there is one. Older writers are fenced: their next record fails. Raises
    `SpoolDamagedError` if something is damaged or missing, and `SpoolFencedError` if another writer came meanwhile.
    """
    try:
        return _open_ledger(store, identity)
    except SpoolDamagedError as error:
        if fail or not can_be_quarantined(error):
            raise
    ledger = take_over(store, identity)
    quarantine(ledger, damaged_segments(store, ledger.state))
    return _open_ledger(store, identity)


def _open_ledger(store: Store, identity: SpoolIdentity) -> Ledger:
    seen = _read_newest(store, identity.spool)
    claim = claim_epoch(store, identity.spool)
    with while_newest(store, claim):
        state = _seal_and_read(store, identity.spool, claim, seen)
        index = DedupIndex()
        index.load(store, state.runs)
        inbox = {fetcher: segment_numbers(store, fetcher) for fetcher in store.list("inbox")}
        quarantined = quarantined_rows(store)
        _check_inbox(store, state, inbox, quarantined)
        _load_recent(store, state, index)
    ledger = Ledger(store, identity, claim, state, index)
    ledger.begin()
    _delete_leftovers(store, ledger, inbox)
    ledger.quarantined_waiting = {name: rows for name, rows in quarantined.items() if state.is_waiting(name)}
    return ledger


def take_over(store: Store, identity: SpoolIdentity) -> Ledger:
    """Become the one writer of a spool for a repair; no segment and no id run is read, so they may be damaged."""
    seen = _read_newest(store, identity.spool)
    claim = claim_epoch(store, identity.spool)
    state = _seal_and_read(store, identity.spool, claim, seen)
    return Ledger(store, identity, claim, state, DedupIndex())


def read_state(store: Store, spool: str) -> LedgerState:
    """Return the state of a ledger, also beside a running query; raises `SpoolDamagedError`."""
    return _read_newest(store, spool).state


def _read_newest(store: Store, spool: str) -> _Reading:
    while True:
        epochs = claimed_epochs(store)
        last = epochs[-1] if epochs else 0
        try:
            return _read_twice(store, spool, last)
        except FileNotFoundError as error:
            if claimed_epochs(store) == epochs:
                raise _missing(store, f"A record or a manifest of the ledger ({error.filename})") from None


def _read_twice(store: Store, spool: str, last_epoch: int) -> _Reading:
    """Read, and again if a file is gone: a writer deletes what is below its newest snapshot, also while it is read."""
    with contextlib.suppress(FileNotFoundError):
        return _read(store, spool, last_epoch)
    return _read(store, spool, last_epoch)


def _highest(store: Store, epoch: int) -> int:
    return max(record_numbers(store, epoch), default=-1)


def _read(store: Store, spool: str, last_epoch: int) -> _Reading:
    for epoch in range(last_epoch, 0, -1):
        numbers = record_numbers(store, epoch)
        state = _state_from_snapshot(store, spool, epoch, numbers)
        if state is not None:
            return _Reading(state, {later: _highest(store, later) for later in range(epoch, last_epoch + 1)})
    if any(record_numbers(store, epoch)[1:] for epoch in range(1, last_epoch + 1)):
        raise _missing(store, "The newest snapshot of the ledger")
    return _Reading(LedgerState(spool), {epoch: _highest(store, epoch) for epoch in range(1, last_epoch + 1)})


def _state_from_snapshot(store: Store, spool: str, epoch: int, numbers: list[int]) -> LedgerState | None:
    """Return the state after the last record of an epoch; None if the epoch has no snapshot."""
    records: list[dict[str, Any]] = []
    for number in range(max(numbers, default=-1), -1, -1):
        record = read_record(store, spool, epoch, number)
        if record["kind"] == "snapshot":
            state = LedgerState.from_snapshot(record, read_segments(store, record))
            for later in reversed(records):
                if "admit" in later:
                    later["admit"] = [SegmentEntry.from_json(value) for value in later["admit"]]
                state = state.apply(later)
            return state
        if record["kind"] != "seal":
            records.append(record)
    if records:
        raise _missing(store, "The newest snapshot of the ledger")
    return None


def _seal_and_read(store: Store, spool: str, claim: EpochClaim, seen: _Reading) -> LedgerState:
    """Seal every earlier epoch that may still be written to; return the state after them, for a new start.

    `seen` was read before the claim. A record never changes, so nothing is read again if there are no new ones.
    """
    earlier = max(seen.highest, default=0) == claim.epoch - 1
    if not earlier or any(_highest(store, epoch) != number for epoch, number in seen.highest.items()):
        seen = _read_earlier(store, spool, claim)
    state, sealed = seen.state, {}
    for epoch, number in seen.highest.items():
        ends_with_record = (epoch, number) == (state.epoch, state.number)
        sealed[str(epoch)] = _seal(store, spool, epoch, number, claim, ends_with_record=ends_with_record)
    if any(last != (state.number if int(epoch) == state.epoch else -1) for epoch, last in sealed.items()):
        # A writer put records before its seal.
        state = _read_earlier(store, spool, claim).state
    starts = [*state.starts, WriterStart(claim.nonce, state.head, state.head)]
    return replace(state, sealed=sealed, starts=starts, number=-1)


def _read_earlier(store: Store, spool: str, claim: EpochClaim) -> _Reading:
    try:
        return _read_twice(store, spool, claim.epoch - 1)
    except FileNotFoundError as error:
        raise _missing(store, f"A record or a manifest of the ledger ({error.filename})") from error


def _seal(store: Store, spool: str, epoch: int, highest: int, claim: EpochClaim, *, ends_with_record: bool) -> int:
    """Put a seal at the first free number of an epoch, unless it ends with one; return its last record's number."""
    number = highest
    if number < 0 or ends_with_record or read_record(store, spool, epoch, number)["kind"] != "seal":
        number += 1
        while not put_seal(store, spool, epoch, number, claim):
            if read_record(store, spool, epoch, number)["kind"] == "seal":
                break
            number += 1
    return number - 1


def _load_recent(store: Store, state: LedgerState, index: DedupIndex) -> None:
    for entry in state.since(state.runs_through):
        if not entry.quarantined:
            keys, _ = SegmentReader(store, entry.name, entry.digest).index()
            index.add(state.space(entry.source), keys, entry.published)


def _check_inbox(
    store: Store, state: LedgerState, inbox: Mapping[str, SegmentNumbers], quarantined: Collection[str]
) -> None:
    """Check that no segment is missing between the last admitted one and a later one, unless it was quarantined."""
    for fetcher, numbers in inbox.items():
        last = state.fetchers.get(fetcher, -1)
        waiting = set(numbers[numbers > last].tolist())
        for number in range(last + 1, max(waiting, default=-1) + 1):
            if number not in waiting and segment_name(fetcher, number) not in quarantined:
                SegmentReader(store, segment_name(fetcher, number))


def _delete_leftovers(store: Store, ledger: Ledger, inbox: Mapping[str, SegmentNumbers]) -> None:
    """Delete what earlier writers left: old records, orphaned runs and manifests, freed segments, temporary files."""
    failpoint("opening.before_clear")
    for epoch, numbers in _epochs_to_clear(store, ledger.claim.epoch):
        for number in numbers[:-1]:
            store.delete(record_name(epoch, number))
    live_runs = {run.name for run in ledger.state.runs}
    for name in _orphans(store, ledger, "ids", live_runs):
        store.delete(f"ids/{name}")
    for name in _orphans(store, ledger, MANIFEST_FOLDER, ledger.state.segments.manifest_names()):
        store.delete(manifest_name(name))
    _clear_inbox(store, ledger.state, inbox)
    clear_temporary(store)
    failpoint("opening.after_clear")


def _orphans(store: Store, ledger: Ledger, folder: str, live: Collection[str]) -> list[str]:
    """Return the files that no record names, of this writer and of earlier ones: a newer one may have begun."""
    epochs = {name: name.partition("-")[0] for name in store.list(folder) if name not in live}
    return [name for name, epoch in epochs.items() if not (epoch.isdecimal() and int(epoch) > ledger.claim.epoch)]


def _epochs_to_clear(store: Store, before: int) -> list[tuple[int, list[int]]]:
    """Return the epochs that may have useless records, ascending, with the numbers of their records.

    One that has nothing but its seal, at a number above 0, was cleared by an earlier start, and all below it before it.
    """
    epochs = []
    for epoch in range(before - 1, 0, -1):
        numbers = record_numbers(store, epoch)
        if len(numbers) == 1 and numbers[0] > 0:
            break
        epochs.append((epoch, numbers))
    return epochs[::-1]


def _clear_inbox(store: Store, state: LedgerState, inbox: Mapping[str, SegmentNumbers]) -> None:
    """Delete segments that were freed, and the folders of fetchers that died before their first segment."""
    admitted = {fetcher: state.fetchers[fetcher] for fetcher in inbox if fetcher in state.fetchers}
    for fetcher in inbox.keys() - admitted.keys():
        if store.close_folder(f"inbox/{fetcher}", segment_name(fetcher, 0)):
            store.remove_unlocked_folder(f"inbox/{fetcher}")
    present = {fetcher: inbox[fetcher][inbox[fetcher] <= last] for fetcher, last in admitted.items()}
    if not state.counters.get(QUARANTINED_SEGMENTS) and sum(map(len, present.values())) == len(state.segments):
        return  # As always but after a crash; only then are the names of all segments compared.
    live = {entry.name for entry in state.segments if not entry.quarantined}
    for fetcher, numbers in present.items():
        for name in (segment_name(fetcher, number) for number in numbers.tolist()):
            if name not in live:
                store.delete(name)


def clear_temporary(store: Store) -> None:
    """Delete the temporary files of processes that are gone; also while fetchers start and end."""
    running = {fetcher for fetcher in store.list("inbox") if store.is_locked(f"inbox/{fetcher}")}
    for name in store.temporary_files():
        owner = name.partition("-")[0]
        # A fetcher locks its folder before it writes: one that started after the first check is seen by this one.
        if owner != store.owner and owner not in running and not store.is_locked(f"inbox/{owner}"):
            store.delete(f"{TEMPORARY_FOLDER}/{name}")


def _missing(store: Store, what: str) -> SpoolDamagedError:
    return SpoolDamagedError("SPOOL_RECORD_MISSING", f"{what} is missing", f"{store.root}/ledger")
