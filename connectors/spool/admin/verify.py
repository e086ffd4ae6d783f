"""Verification of a spool: every byte of every file, read only, also beside a running query (rule R9).

A query checks what it reads, when it reads it. This checks all the rest too: the mark at the end of a segment's rows,
the index of a segment whose ids are in a run, rows that are committed and not freed, old records, claims.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa

from connectors.core.errors import ConnectorError, SpoolDamagedError, SpoolError
from connectors.spool.admin.survey import NOT_FOUND, is_spool_file, require_identity
from connectors.spool.ledger.data_loss import expected_segments, read_notes, waiting_names
from connectors.spool.ledger.identity import IS_CACHE, SpoolIdentity
from connectors.spool.ledger.ledger import foreign_segment
from connectors.spool.ledger.records import claimed_epochs, read_claim, read_record, record_name, record_numbers
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.state import LedgerState
from connectors.spool.segments.dedup_index import IdRun, run_name
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.segments.shapes import NUMBER_NAME
from connectors.spool.store import open_store
from connectors.spool.store.base import Store
from connectors.spool.store.disk import QUARANTINE_FOLDER, TEMPORARY_FOLDER

_HISTORY = "Nothing to restore. If no one has changed the file, check the disk."


class Severity(StrEnum):
    """How bad a finding is."""

    DAMAGE = "damage"  # a query stops with it, now or when it reads it
    LOSS = "loss"  # given up, and recorded
    NOTE = "note"  # harmless: the next start of a query clears it away, or nothing reads it


@dataclass(frozen=True, slots=True)
class FileFinding:
    """Something that is not as it should be, in a file of the spool.

    Its code is that of the error that a query stops with, or names the kind of finding.
    """

    severity: Severity
    file: str
    code: str
    what: str
    action: str = ""

    @classmethod
    def of(cls, file: str, error: ConnectorError, severity: Severity = Severity.DAMAGE) -> FileFinding:
        """Return the finding for an error; a note is history, so the advice of the error does not hold."""
        if severity is Severity.NOTE:
            what = f"{error.what}. A newer one replaces it, so no query reads it"
            return cls(severity, file, error.code, what, _HISTORY)
        return cls(severity, file, error.code, error.what, error.action)


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification found, damage first; `spool` is None if its identity cannot be read."""

    spool: str | None
    files: int
    bytes: int
    findings: tuple[FileFinding, ...]

    @property
    def sound(self) -> bool:
        return not any(finding.severity is Severity.DAMAGE for finding in self.findings)


def verify(path: str) -> Verification:
    """Check every byte of a spool. Changes nothing, takes no lock, and may run beside a query.

    Raises `ConnectorError` if there is no spool or its store cannot be used, and `OSError` if that does not answer.
    """
    store = open_store(path, "verify")
    findings: list[FileFinding] = []
    identity: SpoolIdentity | None = None
    try:
        # Before anything is listed: a folder that is no spool may hold millions of files.
        identity = require_identity(store)
    except SpoolError as error:
        if error.code in {NOT_FOUND, IS_CACHE}:
            raise
        findings.append(FileFinding.of("spool.json", error))
    files = store.sizes()
    if identity is not None:
        findings += _check_all(store, identity)
    findings += _check_names(store, files)
    order = list(Severity)
    findings.sort(key=lambda finding: (order.index(finding.severity), finding.file))
    return Verification(identity.spool if identity else None, len(files), sum(files.values()), tuple(findings))


def _check_all(store: Store, identity: SpoolIdentity) -> list[FileFinding]:
    findings = [*_check_claims(store, identity), *_check_notes(store)]
    if identity.location != store.location:
        what = f"The spool was created in {identity.location}. Adopt it before a query runs on it here"
        findings.append(FileFinding(Severity.NOTE, "spool.json", "SPOOL_MOVED", what, "connectors spool adopt"))
    try:
        state = read_state(store, identity.spool)
    except SpoolError as error:
        records = list(_check_records(store, identity, Severity.DAMAGE))
        name = store.name_of(error.where)
        return [*findings, *(records or [FileFinding.of(name if is_spool_file(store, name) else "ledger", error)])]
    except OSError as error:
        what = f"It cannot be read: {error.strerror}"
        return [*findings, FileFinding(Severity.DAMAGE, "ledger", "SPOOL_UNREADABLE", what)]
    findings += _check_records(store, identity, Severity.NOTE)
    live = [*_check_segments(store, identity, state), *_check_runs(store, state)]
    if live:
        # A running query frees segments and merges runs meanwhile: what it has deleted is not missing.
        now = read_state(store, identity.spool)
        names = {entry.name for entry in now.segments} | {run_name(run.name) for run in now.runs}
        names |= set(waiting_names(store, now))
        live = [finding for finding in live if finding.file in names]
    return findings + live


def _check_claims(store: Store, identity: SpoolIdentity) -> Iterator[FileFinding]:
    try:
        epochs = claimed_epochs(store)
    except SpoolError as error:
        yield FileFinding.of("epochs", error)
        return
    for epoch in epochs:
        # Only the newest claim is read by a start.
        severity = Severity.DAMAGE if epoch == epochs[-1] else Severity.NOTE
        try:
            read_claim(store, identity.spool, epoch)
        except SpoolError as error:
            yield FileFinding.of(f"epochs/{epoch}", error, severity)


def _check_records(store: Store, identity: SpoolIdentity, severity: Severity) -> Iterator[FileFinding]:
    """Check every record; where the state can be read, a damaged one is below the newest snapshot, and history."""
    for epoch in map(int, filter(NUMBER_NAME.fullmatch, store.list("ledger"))):
        for number in record_numbers(store, epoch):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, below a new snapshot
                try:
                    read_record(store, identity.spool, epoch, number)
                except SpoolError as error:
                    yield FileFinding.of(record_name(epoch, number), error, severity)


def _check_segments(store: Store, identity: SpoolIdentity, state: LedgerState) -> Iterator[FileFinding]:
    for name, digest in expected_segments(store, state).items():
        try:
            _check_segment(store, identity, name, digest)
        except SpoolError as error:
            yield FileFinding.of(name, error)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            what = f"A segment with correct checksums cannot be read: {type(error).__name__}: {error}"
            yield FileFinding.of(name, SpoolDamagedError("SPOOL_SEGMENT_DAMAGED", what, name))


def _check_segment(store: Store, identity: SpoolIdentity, name: str, digest: str | None) -> None:
    reader = SegmentReader(store, name, digest)
    reader.verify()
    info, rows = reader.info, sum(len(batch) for _, batch in reader.batches(0, reader.info.rows))
    keys, sizes = reader.index()
    if not rows == len(keys) == len(sizes) == info.rows or int(sizes.sum()) != info.bytes:
        what = f"A segment should have {info.rows} rows, but its blocks have {rows} and its index has {len(keys)}"
        raise SpoolDamagedError("SPOOL_SEGMENT_DAMAGED", what, f"{store.root}/{name}")
    if reader.spool != identity.spool or info.source >= len(identity.sources):
        raise foreign_segment(reader, f"{store.root}/{name}")


def _check_runs(store: Store, state: LedgerState) -> Iterator[FileFinding]:
    for entry in state.runs:
        name = run_name(entry.name)
        try:
            run = IdRun.load(store, entry)
        except SpoolError as error:
            yield FileFinding.of(name, error)
            continue
        ascending = {"numbers": run.numbers[:-1] < run.numbers[1:], "hashes": run.hashes[:-1] < run.hashes[1:]}
        for kind, ascends in ascending.items():
            if not bool(np.all(ascends)):
                what = f"The {kind} of a run of ids do not ascend, so searches would miss some"
                yield FileFinding(Severity.DAMAGE, name, "SPOOL_ID_RUN_DAMAGED", what, "Report this as a bug.")


def _check_notes(store: Store) -> Iterator[FileFinding]:
    """Report what was given up; a damaged note is reported under its own name."""
    try:
        for note in read_notes(store):
            place = f" at positions {note['first']} to {note['end'] - 1}" if note["first"] < note["end"] else ""
            what = f"{note['rows'] or 'an unknown number of'} rows{place}: {note['error']}"
            yield FileFinding(Severity.LOSS, note["segment"], "SPOOL_SEGMENT_QUARANTINED", what)
    except SpoolError as error:
        yield FileFinding.of(QUARANTINE_FOLDER, error)


def _check_names(store: Store, files: dict[str, int]) -> Iterator[FileFinding]:
    """Report files that are not part of a spool, left over, or open to others."""
    for name in files:
        try:
            mode = store.permissions(name)
        except FileNotFoundError:
            continue
        if not is_spool_file(store, name):
            yield FileFinding(
                Severity.NOTE, name, "SPOOL_STRANGE_FILE", "It is not part of a spool, and nothing reads it"
            )
        elif name.startswith(f"{TEMPORARY_FOLDER}/"):
            what = "It is being written, or its process died while writing it"
            yield FileFinding(Severity.NOTE, name, "SPOOL_TEMPORARY_FILE", what)
        elif mode is not None and mode & 0o077:
            what = f"Users other than its owner may use it (mode {mode:o})"
            yield FileFinding(Severity.NOTE, name, "SPOOL_OPEN_TO_OTHERS", what, "chmod -R go= on the spool")
