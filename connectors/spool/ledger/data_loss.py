"""What ``failOnDataLoss`` decides: rows that are gone stop the query, or are given up with a record and a warning.

Rule R9 bounds what may be given up: damaged or missing segments, and a start below the oldest row. A record of the
ledger, an id run, an unknown epoch, a start above the head and another spool stop the query in any case.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from connectors.core.errors import SpoolDamagedError
from connectors.core.failpoints import failpoint
from connectors.spool.errors import fenced_error
from connectors.spool.ledger.fencing import claimed_epochs
from connectors.spool.ledger.identity import SpoolIdentity
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.quarantine import (
    can_be_quarantined,
    move_aside,
    quarantined_rows,
    rows_in_footer,
    waiting_names,
)
from connectors.spool.ledger.recovery import open_ledger, take_over
from connectors.spool.ledger.state import SKIPPED_ROWS, SKIPPED_THROUGH, LedgerState, SegmentEntry, SegmentLog
from connectors.spool.segments.id_runs import IdRun, RunEntry, write_run
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store.base import Store

__all__ = ["Losses", "damaged_segments", "open_ledger_despite_damage", "quarantine"]

_logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Losses:
    """What one stream does about lost rows.

    Args:
        ledger: of the spool.
        fail: whether lost rows stop the query.
    """

    def __init__(self, ledger: Ledger, *, fail: bool) -> None:
        self._ledger = ledger
        self._fail = fail
        self._verified: dict[str, int] = {}  # names of segments, and the position after their last row
        self._told: set[str] = set()

    def going_on(self, work: Callable[[], _Answer]) -> _Answer:
        """Do some work, again after each damaged segment that it meets and that may be quarantined.

        Raises:
            SpoolDamagedError: what may not be given up.
            SpoolFencedError: another writer took the spool over; what is missing is no loss.
        """
        given_up: set[str] = set()
        while True:
            try:
                return work()
            except SpoolDamagedError as error:
                if error.where in given_up:  # it is no segment that could be given up
                    raise
                given_up.add(error.where)
                self._give_up(error)

    def begin(self, first: int) -> int:
        """Where a batch begins: its start, or the oldest row if that is above it and may be moved up to."""
        with self._ledger.lock:
            state = self._ledger.state
            if self._fail or first >= state.oldest:
                return first
            rows = state.oldest - max(first, state.counters.get(SKIPPED_THROUGH, 0))
            if rows > 0:
                total = state.counters.get(SKIPPED_ROWS, 0) + rows
                oldest = state.oldest
                self._ledger.append({"counters": {**state.counters, SKIPPED_ROWS: total, SKIPPED_THROUGH: oldest}})
                _logger.warning(
                    "[SPOOL_ROWS_SKIPPED] The checkpoint is at position %d and the oldest row in the spool %s is %d: "
                    "going on there, because failOnDataLoss is false.",
                    first,
                    self._ledger.store.root,
                    oldest,
                )
            return state.oldest

    def check(self, first: int, end: int) -> None:
        """Look at rows before they are planned: quarantine what is damaged, tell what is lost.

        With ``failOnDataLoss`` every byte of a segment is checked by the task that reads it. Without, it is checked
        here too, once: a task could only fail, and would fail again.
        """
        with self._ledger.lock:
            due = [] if self._fail else self._ledger.state.between(first, end)
        for entry in due:
            if not entry.quarantined and entry.name not in self._verified:
                self.going_on(partial(self._verify, entry))
        with self._ledger.lock:
            state = self._ledger.state
            # What ends below is read no more, however long it is kept.
            self._verified = {name: last for name, last in self._verified.items() if last > first}
            for entry in state.between(first, end):
                if entry.quarantined and entry.name not in self._told:
                    self._told.add(entry.name)
                    _logger.warning(
                        "[SPOOL_ROWS_LOST] A batch is without the rows at positions %d to %d: %s was quarantined.",
                        max(first, entry.base),
                        min(end, entry.end) - 1,
                        entry.name,
                    )

    def _verify(self, due: SegmentEntry) -> None:
        """Check every byte of a segment, unless it was freed or quarantined meanwhile."""
        with self._ledger.lock:  # so that it is not freed under our eyes
            entry = self._ledger.state.now(due)
            if entry is not None and not entry.quarantined:
                SegmentReader(self._ledger.store, entry.name, entry.digest).verify()
                self._verified[entry.name] = entry.end

    def _give_up(self, error: SpoolDamagedError) -> None:
        """Quarantine the segment that an error names, or raise the error."""
        ledger = self._ledger
        if self._fail or not can_be_quarantined(error):
            raise error
        if max(claimed_epochs(ledger.store), default=0) > ledger.claim.epoch:  # the newer writer has freed it
            raise fenced_error(error.where) from error
        name = _name_in(ledger.store, error)
        with ledger.lock:
            ledger.settle()
            entry = ledger.state.segment(name)
            if entry is not None and not entry.quarantined:
                self._quarantine_admitted(entry, error)
            elif ledger.state.is_waiting(name):
                ledger.aside[name] = _quarantine_waiting(ledger.store, name, error)

    def _quarantine_admitted(self, entry: SegmentEntry, error: SpoolDamagedError) -> None:
        ledger = self._ledger
        runs = [IdRun.load(ledger.store, run) for run in _keep_ids(ledger, entry)]
        _move_admitted(ledger, entry, error)
        added = [run.entry for run in runs]
        state = replace(ledger.state, segments=SegmentLog(ledger.state.segments), runs=[*ledger.state.runs, *added])
        state.quarantine(entry.name)

        def then() -> None:
            for run in runs:
                ledger.index.swap(run.entry.space, [], run)
            _delete(ledger.store, [entry.name])

        ledger.replace_state(state, then)


def open_ledger_despite_damage(store: Store, identity: SpoolIdentity, *, fail: bool) -> Ledger:
    """Open a ledger; with ``fail=False``, quarantine what is in the way, if it may be given up.

    Raises:
        SpoolDamagedError: see `open_ledger`.
    """
    try:
        return open_ledger(store, identity)
    except SpoolDamagedError as error:
        if fail or not can_be_quarantined(error):
            raise
    ledger = take_over(store, identity)
    quarantine(ledger, damaged_segments(store, ledger.state))
    return open_ledger(store, identity)


def damaged_segments(store: Store, state: LedgerState) -> dict[str, SpoolDamagedError]:
    """Every segment, admitted or waiting, that is damaged or missing, with what is wrong with it.

    Raises:
        SpoolDamagedError: something is foreign, or of another kind.
    """
    aside, found = quarantined_rows(store), {}
    admitted = {entry.name: entry.digest for entry in state.segments if not entry.quarantined}
    waiting = (name for name in waiting_names(store, state) if name not in aside)
    for name in [*admitted, *waiting]:
        try:
            SegmentReader(store, name, admitted.get(name)).verify()
        except SpoolDamagedError as error:
            if not can_be_quarantined(error):
                raise
            found[name] = error
    return found


def quarantine(ledger: Ledger, damaged: dict[str, SpoolDamagedError]) -> None:
    """Quarantine segments of a spool that was taken over for a repair (see `take_over`).

    Raises:
        OSError: the disk refused; what was quarantined stays so.
        SpoolFencedError: another writer took the spool over.
    """
    admitted = [(entry, damaged[entry.name]) for entry in ledger.state.segments if entry.name in damaged]
    for name in damaged.keys() - {entry.name for entry, _ in admitted}:
        _quarantine_waiting(ledger.store, name, damaged[name])
    for entry, error in admitted:
        ledger.state.runs += _keep_ids(ledger, entry)
        _move_admitted(ledger, entry, error)
        ledger.state.quarantine(entry.name)
    ledger.begin()
    _delete(ledger.store, [entry.name for entry, _ in admitted])


def _keep_ids(ledger: Ledger, entry: SegmentEntry) -> list[RunEntry]:
    """A run with the ids of a segment, if they can be read and no run has them: else its copies would come again."""
    if entry.ordinal < ledger.state.runs_through:
        return []
    try:
        keys, _ = SegmentReader(ledger.store, entry.name, entry.digest).index()
    except SpoolDamagedError:
        _logger.warning(
            "[SPOOL_IDS_LOST] The ids of %s cannot be read: a message of it that the service delivers again after a "
            "restart comes as a new row.",
            entry.name,
        )
        return []
    # Never a name of upkeep, whose second part is a number.
    name = f"{ledger.claim.epoch}-{entry.fetcher}-{entry.number}-{secrets.token_hex(4)}"
    numbers, hashes = np.unique(keys.numbers[keys.numbered()]), np.unique(keys.hashes)
    return [write_run(ledger.store, name, ledger.state.space(entry.source), [numbers], [hashes], entry.published)]


def _move_admitted(ledger: Ledger, entry: SegmentEntry, error: SpoolDamagedError) -> None:
    move_aside(ledger.store, entry.name, error, (entry.base, entry.end), entry.kept)


def _quarantine_waiting(store: Store, name: str, error: SpoolDamagedError) -> int:
    """Quarantine a segment that is not admitted; its rows. The record comes when it is its turn to be admitted."""
    rows = rows_in_footer(store, name)
    move_aside(store, name, error, (0, 0), rows)
    _delete(store, [name])
    return rows


def _delete(store: Store, names: Iterable[str]) -> None:
    failpoint("quarantine.before_delete")
    for name in names:
        store.delete(name)
    failpoint("quarantine.after_delete")


def _name_in(store: Store, error: SpoolDamagedError) -> str:
    """The name of the file that an error is about."""
    return error.where.removeprefix(f"{store.root}/")
