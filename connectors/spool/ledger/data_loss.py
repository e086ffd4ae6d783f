"""Lost rows: they stop the query, or are given up with a record and a warning (``failOnDataLoss``, rule R9).

A damaged or missing segment that is given up goes to the quarantine: ``quarantine/<fetcher>-<n>.arrow`` is the file as
it was, ``.json`` tells what was lost. The order is: copy, record, delete; the next start repeats what a crash cut off.
A segment that was never admitted is admitted without rows; an admitted one loses its digest in a snapshot. All other
rows keep their positions.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from connectors.core.errors import ConnectorError, SpoolDamagedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import fenced_error
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.records import FORMAT_VERSION, claimed_epochs, decode, encode
from connectors.spool.ledger.segment_log import SegmentEntry
from connectors.spool.ledger.state import SKIPPED_ROWS, SKIPPED_THROUGH, LedgerState
from connectors.spool.segments.dedup_index import IdRun, RunEntry, write_run
from connectors.spool.segments.segment import SEGMENT, SegmentReader, segment_name
from connectors.spool.segments.shapes import NUMBER_NAME
from connectors.spool.store.base import Store
from connectors.spool.store.disk import QUARANTINE_FOLDER

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")
SegmentNumbers = npt.NDArray[np.int64]
_ENDING = ".arrow\n"
_LONGEST_NAME = 18 + len(".arrow")
"""Of a segment: its number has 64 bits."""
_NOTE = {"segment": str, "first": int, "end": int, "rows": int, "error": str, "time": int}


class DataLossPolicy:
    """What a stream does about lost rows: with `fail` they stop the query."""

    def __init__(self, ledger: Ledger, *, fail: bool) -> None:
        self._ledger = ledger
        self._fail = fail
        self._giving_up = threading.Lock()  # a call of Spark and the admitting thread may find the same segment
        self._verified: dict[str, int] = {}  # names of segments, and the position after their last row
        self._warned: set[str] = set()

    def quarantining(self, work: Callable[[], _Result]) -> _Result:
        """Do some work, again after each damaged segment that stops it and may be quarantined.

        Raises `SpoolDamagedError` for what may not be given up, `SpoolFencedError` if another writer took the spool.
        """
        quarantined_files: set[str] = set()
        while True:
            try:
                return work()
            except SpoolDamagedError as error:
                if error.where in quarantined_files:  # it is not a segment that could be given up
                    raise
                quarantined_files.add(error.where)
                self._give_up(error)

    def begin(self, first: int) -> int:
        """Return where a batch begins: at `first`, or at the oldest row if that is above and rows may be skipped."""
        state = self._ledger.state
        if self._fail or first >= state.oldest:
            return first

        def skip(state: LedgerState) -> Mapping[str, Any] | None:
            rows = state.oldest - max(first, state.counters.get(SKIPPED_THROUGH, 0))
            skipped = {SKIPPED_ROWS: state.counters.get(SKIPPED_ROWS, 0) + rows, SKIPPED_THROUGH: state.oldest}
            return {"counters": {**state.counters, **skipped}} if rows > 0 else None

        before, state = state, self._ledger.append(skip)
        if state.counters.get(SKIPPED_ROWS) != before.counters.get(SKIPPED_ROWS):
            _logger.warning(
                "[SPOOL_ROWS_SKIPPED] The checkpoint is at position %d, but the oldest row in the spool %s is %d. "
                "The query continues there, because failOnDataLoss is false.",
                first,
                self._ledger.store.root,
                state.oldest,
            )
        return state.oldest

    def check(self, first: int, end: int) -> None:
        """Check rows before they are planned: quarantine what is damaged, warn of what is lost.

        The task that reads a segment checks it too; without ``failOnDataLoss`` it could only fail, again and again.
        """
        due = [] if self._fail else self._ledger.state.between(first, end)
        for entry in due:
            if not entry.quarantined and entry.name not in self._verified:
                self.quarantining(partial(self._verify, entry))
        # What ends below is not read again, however long it is retained.
        self._verified = {name: last for name, last in self._verified.items() if last > first}
        for entry in self._ledger.state.between(first, end):
            if entry.quarantined and entry.name not in self._warned:
                self._warned.add(entry.name)
                _logger.warning(
                    "[SPOOL_ROWS_LOST] A batch lacks the rows at positions %d to %d: %s was quarantined.",
                    max(first, entry.base),
                    min(end, entry.end) - 1,
                    entry.name,
                )

    def _verify(self, due: SegmentEntry) -> None:
        entry = self._ledger.state.now(due)
        if entry is not None and not entry.quarantined:
            SegmentReader(self._ledger.store, entry.name, entry.digest).verify()
            self._verified[entry.name] = entry.end

    def _give_up(self, error: SpoolDamagedError) -> None:
        """Quarantine the segment that an error names, unless it was freed meanwhile; or raise the error."""
        ledger = self._ledger
        name = error.where.removeprefix(f"{ledger.store.root}/")
        if not can_be_quarantined(error):
            raise error
        with self._giving_up:
            entry = ledger.state.segments.find(name)
            waiting = entry is None and ledger.state.is_waiting(name)
            if entry is None and not waiting:
                return
            if self._fail:
                raise error
            if max(claimed_epochs(ledger.store), default=0) > ledger.claim.epoch:  # the newer writer has freed it
                raise fenced_error(error.where) from error
            ledger.settle()
            if waiting:
                ledger.quarantined_waiting[name] = _quarantine_waiting(ledger.store, name, error)
            elif entry is not None and not entry.quarantined:
                _quarantine_admitted(ledger, {name: error})


def damaged_segments(store: Store, state: LedgerState) -> dict[str, SpoolDamagedError]:
    """Return every segment that is damaged or missing, with its error; raises that of a foreign one."""
    damaged = {}
    for name, digest in expected_segments(store, state).items():
        try:
            SegmentReader(store, name, digest).verify()
        except SpoolDamagedError as error:
            if not can_be_quarantined(error):
                raise
            damaged[name] = error
    return damaged


def expected_segments(store: Store, state: LedgerState) -> dict[str, str | None]:
    """Return every segment that was not quarantined, with its digest: None if it is not admitted yet."""
    quarantined = quarantined_rows(store)
    waiting = {name: None for name in waiting_names(store, state) if name not in quarantined}
    return {entry.name: entry.digest for entry in state.segments if not entry.quarantined} | waiting


def quarantine(ledger: Ledger, damaged: Mapping[str, SpoolDamagedError]) -> None:
    """Quarantine segments of a spool that was taken over for a repair (see `take_over`)."""
    for name in (name for name in damaged if ledger.state.segments.find(name) is None):
        _quarantine_waiting(ledger.store, name, damaged[name])
    _quarantine_admitted(ledger, damaged)


def _quarantine_admitted(ledger: Ledger, damaged: Mapping[str, SpoolDamagedError]) -> None:
    """Quarantine those of the segments that are admitted: copy them, record the losses by one snapshot, delete them."""
    store = ledger.store
    entries = sorted(filter(None, map(ledger.state.segments.find, damaged)), key=lambda entry: entry.ordinal)
    added: list[IdRun] = []
    for entry in entries:
        added += [IdRun.load(store, run) for run in _keep_ids(ledger, entry)]
        _move_to_quarantine(store, entry.name, damaged[entry.name], (entry.base, entry.end), entry.admitted_rows)

    def change(state: LedgerState) -> LedgerState:
        for present in filter(None, map(state.now, entries)):
            if not present.quarantined:
                state = state.quarantined(present)
        return replace(state, runs=[*state.runs, *(run.entry for run in added)])

    def then() -> None:
        for run in added:
            ledger.index.swap(run.entry.space, [], run)
        ledger.discard([entry.name for entry in entries])

    ledger.replace_state(change, then)
    failpoint("quarantine.before_delete")
    ledger.clean()
    failpoint("quarantine.after_delete")


def can_be_quarantined(error: ConnectorError) -> bool:
    """Return whether a segment is damaged or missing; foreign files and other versions are for a person to examine."""
    return error.code == SEGMENT.damaged


def what_is_wrong(error: ConnectorError) -> str:
    """Return the text of an error without its advice, which is of no use once the segment is quarantined."""
    return str(error).removesuffix(error.action).rstrip()


def quarantined_rows(store: Store) -> dict[str, int]:
    return {note["segment"]: note["rows"] for note in read_notes(store)}


def read_notes(store: Store) -> Iterator[dict[str, Any]]:
    """Yield the notes of the quarantine, by name; raises `SpoolDamagedError` if one is damaged.

    ``first`` and ``end`` are positions, equal if the segment was never admitted; ``rows`` is 0 if it is not known;
    ``time`` is in microseconds since 1970.
    """
    for file in store.list(QUARANTINE_FOLDER):
        if file.endswith(".json"):
            name = f"{QUARANTINE_FOLDER}/{file}"
            yield decode(store.read(name), f"{store.root}/{name}", "A note of the quarantine", _NOTE)


def segment_numbers(store: Store, fetcher: str) -> SegmentNumbers:
    """Return the numbers of the durable segments of a fetcher, admitted or not, in any order."""
    names = store.names(f"inbox/{fetcher}")
    # There may be a million: where all are names of segments, no Python object is made for one.
    text = "\n".join((*names, "")).replace(_ENDING, "\n")
    if text.isascii() and text.replace("\n", "").isdecimal() and max(map(len, names)) <= _LONGEST_NAME:
        numbers = np.fromstring(text, np.int64, sep="\n")
        if len(numbers) == len(names):
            return numbers
    stems = [name.partition(".")[0] for name in names]
    return np.array([stem for stem in stems if NUMBER_NAME.fullmatch(stem)], np.str_).astype(np.int64)


def waiting_names(store: Store, state: LedgerState) -> Iterator[str]:
    """Yield the names of all segments that are not admitted, also of those that are missing between others."""
    for fetcher in store.list("inbox"):
        highest = int(segment_numbers(store, fetcher).max(initial=-1))
        for number in range(state.fetchers.get(fetcher, -1) + 1, highest + 1):
            yield segment_name(fetcher, number)


def _keep_ids(ledger: Ledger, entry: SegmentEntry) -> list[RunEntry]:
    """Write a run with the ids of a segment, if they can be read and no run has them: else duplicates would return."""
    if entry.ordinal < ledger.state.runs_through:
        return []
    try:
        keys, _ = SegmentReader(ledger.store, entry.name, entry.digest).index()
    except SpoolDamagedError:
        _logger.warning(
            "[SPOOL_IDS_LOST] The ids of %s cannot be read. If the service delivers its messages again, "
            "they give new rows.",
            entry.name,
        )
        return []
    # Never a name that compaction would choose, whose second part is a number.
    name = f"{ledger.claim.epoch}-{entry.fetcher}-{entry.number}-{secrets.token_hex(4)}"
    numbers, hashes = np.unique(keys.numbers[keys.numbered()]), np.unique(keys.hashes)
    return [write_run(ledger.store, name, ledger.state.space(entry.source), [numbers], [hashes], entry.published)]


def _quarantine_waiting(store: Store, name: str, error: SpoolDamagedError) -> int:
    """Quarantine a segment that is not admitted and return its rows; the record comes when it would be admitted."""
    rows = 0
    with contextlib.suppress(SpoolDamagedError):
        rows = SegmentReader(store, name).info.rows
    _move_to_quarantine(store, name, error, (0, 0), rows)
    failpoint("quarantine.before_delete")
    store.delete(name)
    failpoint("quarantine.after_delete")
    return rows


def _move_to_quarantine(
    store: Store, name: str, error: SpoolDamagedError, positions: tuple[int, int], rows: int
) -> None:
    """Copy a segment to the quarantine, durably, with a note; the caller records the loss and deletes the segment."""
    _, fetcher, file = name.split("/")
    base = f"{QUARANTINE_FOLDER}/{fetcher}-{file.partition('.')[0]}"
    failpoint("quarantine.before_copy")
    with contextlib.suppress(FileNotFoundError), store.writer(f"{base}.arrow") as copy:
        copy.write(store.map(name))
        copy.publish()
    first, end = positions
    note: dict[str, Any] = {"v": FORMAT_VERSION, "segment": name, "first": first, "end": end, "rows": rows}
    note |= {"error": what_is_wrong(error), "time": time.time_ns() // 1000}
    store.create(f"{base}.json", encode(note))
    failpoint("quarantine.after_copy")
    if first < end:
        loss = f"the rows at positions {first} to {end - 1} are lost"
    else:
        loss = f"its {rows or 'unknown number of'} rows never got a position and are lost, unless they come again"
    _logger.warning("[SPOOL_SEGMENT_QUARANTINED] %s is recorded as empty: %s. %s", name, loss, note["error"])
