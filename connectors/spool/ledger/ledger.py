"""The ledger: admits segments once, mints positions, and forgets what is committed (rules R2 to R8).

A record is durable before Spark sees any effect of it, and a manifest before a snapshot names it. One lock guards the
state: the caller's thread commits while a background thread admits.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from connectors.core.errors import SpoolDamagedError, SpoolFencedError
from connectors.core.failpoints import failpoint
from connectors.spool.errors import fenced_error
from connectors.spool.ledger.fencing import Claim
from connectors.spool.ledger.identity import SpoolIdentity
from connectors.spool.ledger.records import FORMAT_VERSION, encode, record_name
from connectors.spool.ledger.segment_log import SegmentEntry, even_sizes, manifest_name, unpack_mask
from connectors.spool.ledger.state import Layout, LedgerState, counted_loss
from connectors.spool.segments.dedup_index import DedupIndex
from connectors.spool.segments.segment import SegmentReader, segment_name
from connectors.spool.store.base import Store

__all__ = ["Ledger", "foreign_segment", "read_row_sizes"]

SNAPSHOT_EVERY = 128
"""Records between two snapshots; a start reads at most this many and one snapshot."""
RECORDS_RETAINED = 256
"""Records below the newest one that are not deleted; all that a start needs is among them."""
SEGMENTS_A_RECORD = 64
_SIZES_CACHED = 8


class Ledger:
    """The ledger of a spool, held by its one writer; `begin` writes `state` as the first snapshot of its epoch."""

    def __init__(
        self, store: Store, identity: SpoolIdentity, claim: Claim, state: LedgerState, index: DedupIndex
    ) -> None:
        self.store = store
        self.identity = identity
        self.claim = claim
        self.state = state
        self.index = index
        self.lock = threading.RLock()
        self.aside: dict[str, int] = {}
        """Segments that were quarantined before they were admitted, and their rows; to admit them records the loss."""
        self._dead: SpoolFencedError | None = None
        self._unsettled: tuple[dict[str, Any], LedgerState | None, Callable[[], None]] | None = None
        self._manifest_numbers = itertools.count()
        self._manifests = state.segments.manifest_names()
        self._snapshot_number = -1
        self._oldest_number = 0
        self._read_row_sizes = lru_cache(_SIZES_CACHED)(partial(read_row_sizes, store))

    def begin(self) -> None:
        """Put the first record of this epoch, a snapshot: nothing is served or deleted before it."""
        with self.lock:
            self._snapshot(self.state)
            failpoint("ledger.after_first_snapshot")

    def set_layout(self, partition_bytes: int, max_partitions: int) -> None:
        """Set how later batches are cut; batches that end at or below the head keep their layout."""
        with self.lock:
            last = self.state.layouts[-1] if self.state.layouts else None
            wanted = Layout(0 if last is None else last.position, partition_bytes, max_partitions)
            if last != wanted:
                self.append({"layout": [partition_bytes, max_partitions]})

    def admit(self) -> int:
        """Admit every durable segment that is not yet admitted; return how many were.

        Raises as `append`, and `SpoolDamagedError` if a segment is damaged, missing or of another spool.
        """
        admitted = 0
        while True:
            with self.lock:
                self.settle()
                readers = self._pending(SEGMENTS_A_RECORD)
                if readers:
                    self._admit(readers)
            admitted += len(readers)
            if len(readers) < SEGMENTS_A_RECORD:
                return admitted

    def admitted_since(self, ordinal: int) -> list[SegmentEntry]:
        """Return the segments in the spool that were admitted from this ordinal on."""
        with self.lock:
            return self.state.since(ordinal)

    def commit(self, position: int) -> None:
        """Record that Spark has committed all rows below a position."""
        with self.lock:
            if position > self.state.committed:
                failpoint("ledger.before_commit")
                self.append({"commit": position})
                failpoint("ledger.after_commit")

    def replace_state(self, state: LedgerState, then: Callable[[], None]) -> None:
        """Put a snapshot of another state, make it this ledger's, and then call `then`; raises as `append`."""
        with self.lock:
            self.settle()
            self._snapshot(state, then)

    def append(self, change: Mapping[str, Any], then: Callable[[], None] = lambda: None) -> None:
        """Put a record with a change at this epoch's next number, apply it, and then call `then`.

        Raises `SpoolFencedError` if another writer's seal has that number. After an `OSError` it is not known whether
        the record was put: the next call settles that first.
        """
        with self.lock:
            self.settle()
            if self.state.number - self._snapshot_number >= SNAPSHOT_EVERY:
                self._snapshot(self.state)
            self._unsettled = (self._record("append", change), None, then)
            self.settle()
            self._trim()

    def settle(self) -> None:
        """Finish the record whose put failed, if there is one; raises as `append`."""
        with self.lock:
            if self._unsettled is not None:
                record, state, then = self._unsettled
                self._put(record)
                self._unsettled = None
                if state is None:
                    self.state.apply(record)
                else:
                    state.epoch, state.nonce, state.number = record["epoch"], record["nonce"], record["number"]
                    self.state, self._snapshot_number = state, record["number"]
                then()

    def row_sizes(self, entry: SegmentEntry) -> npt.NDArray[np.int64]:
        """Return the bytes of each row of an admitted segment that is no duplicate, in order."""
        with self.lock:
            if entry.quarantined:
                return even_sizes(entry)
            return self._read_row_sizes(entry)

    def earlier_fetchers_done(self, others: Collection[str] = ()) -> bool:
        """Return whether all fetchers but `others` are gone, and all that they published is admitted (rule R3)."""
        with self.lock:
            return all(
                self.store.close_folder(f"inbox/{fetcher}", self.next_segment(fetcher))
                for fetcher in self.store.list("inbox")
                if fetcher not in others
            )

    def next_segment(self, fetcher: str) -> str:
        """Return the name of the segment of a fetcher that is to be admitted next."""
        return segment_name(fetcher, self.state.fetchers.get(fetcher, -1) + 1)

    def check(self) -> None:
        """Raise `SpoolFencedError` if this ledger has noticed that another writer took over."""
        if self._dead is not None:
            raise self._dead

    def _pending(self, most: int) -> list[SegmentReader | SegmentEntry]:
        """Return the next segments of each fetcher in order; a quarantined one as its entry."""
        readers: list[SegmentReader | SegmentEntry] = []
        # The folder of a fetcher may be gone with its only segment.
        for fetcher in sorted({*self.store.list("inbox"), *(name.split("/")[1] for name in self.aside)}):
            number = self.state.fetchers.get(fetcher, -1) + 1
            while len(readers) < most:
                reader = self._open_segment(fetcher, number)
                if reader is None:
                    break
                readers.append(reader)
                number += 1
        return readers

    def _open_segment(self, fetcher: str, number: int) -> SegmentReader | SegmentEntry | None:
        name = segment_name(fetcher, number)
        if name in self.aside:
            return SegmentEntry(fetcher, number, 0, self.aside[name], "", None, 0, 0)
        if not self.store.exists(name):
            return None
        reader = SegmentReader(self.store, name)
        if reader.spool != self.identity.spool or reader.info.source >= len(self.identity.sources):
            raise foreign_segment(reader, f"{self.store.root}/{name}")
        return reader

    def _admit(self, readers: list[SegmentReader | SegmentEntry]) -> None:
        # A fetcher may not have made a name durable yet; a record must not name what a loss of power could remove.
        for fetcher in sorted({reader.info.fetcher for reader in readers if isinstance(reader, SegmentReader)}):
            self.store.sync_folder(f"inbox/{fetcher}")
        entries: list[SegmentEntry] = []
        counters = dict(self.state.counters)
        together = DedupIndex(self.index.horizon)
        for reader in readers:
            if isinstance(reader, SegmentEntry):
                entries.append(reader)
                counters = counted_loss(counters, reader.rows)
                continue
            info = reader.info
            keys, sizes = reader.index()
            space = self.state.space(info.source)
            duplicates = self.index.duplicates(space, keys, info.published)
            if len(readers) > 1:
                duplicates |= together.duplicates(space, keys, info.published)
            together.add(space, keys, info.published)
            entry = SegmentEntry.admitted(info, duplicates, int(sizes[~duplicates].sum()))
            entries.append(entry)
            counts = {"delivered": info.rows, "duplicates": info.rows - entry.admitted_rows, **info.counters}
            for name, count in counts.items():
                counters[name] = counters.get(name, 0) + count
        failpoint("ledger.before_admit")
        change = {"admit": [entry.to_json() for entry in entries], "counters": counters}
        self.append(change, lambda: self.index.absorb(together))
        for entry in entries:
            self.aside.pop(entry.name, None)
        failpoint("ledger.after_admit")

    def _record(self, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "v": FORMAT_VERSION,
            "kind": kind,
            "spool": self.identity.spool,
            "epoch": self.claim.epoch,
            "nonce": self.claim.nonce,
            "number": self.state.number + 1,
            "base": self.state.head,
            **content,
        }

    def _snapshot(self, state: LedgerState, then: Callable[[], None] = lambda: None) -> None:
        """Put a snapshot of a state, make it this ledger's, and then call `then`; raises as `append`.

        It names manifests that are durable. Those that it does not name are deleted once it is the newest one.
        """
        self.check()
        for manifest in state.segments.fold():
            if not manifest.name:
                name = f"{self.claim.epoch}-{next(self._manifest_numbers)}"
                self._manifests.add(name)  # also if it is not known whether it was written
                try:
                    manifest.write(self.store, self.identity.spool, name)
                except FileNotFoundError:
                    # A newer writer deleted our temporary file.
                    raise self._fence(manifest_name(name)) from None

        def finish() -> None:
            then()
            self._delete_manifests()

        self._unsettled = (self._record("snapshot", {"state": state.snapshot()}), state, finish)
        self.settle()

    def _delete_manifests(self) -> None:
        if gone := self._manifests - self.state.segments.manifest_names():
            failpoint("manifest.before_delete")
            for name in sorted(gone):
                self.store.delete(manifest_name(name))
                self._manifests.discard(name)
            failpoint("manifest.after_delete")

    def _put(self, record: dict[str, Any]) -> None:
        self.check()
        name = record_name(record["epoch"], record["number"])
        data = encode(record)
        failpoint("ledger.before_put")
        try:
            own = self.store.create(name, data) or self.store.read(name) == data
        except FileNotFoundError:
            # A newer writer deleted our temporary file.
            own = False
        if not own:
            raise self._fence(name)
        failpoint("ledger.after_put")

    def _fence(self, name: str) -> SpoolFencedError:
        self._dead = fenced_error(f"{self.store.root}/{name}")
        return self._dead

    def _trim(self) -> None:
        keep_from = min(self.state.number - RECORDS_RETAINED, self._snapshot_number)
        while self._oldest_number < keep_from:
            self.store.delete(record_name(self.claim.epoch, self._oldest_number))
            self._oldest_number += 1


def foreign_segment(reader: SegmentReader, where: str) -> SpoolDamagedError:
    """Return the error of a segment that belongs to another spool, or to a source that this one does not have."""
    what = f"A segment belongs to spool {reader.spool}, source {reader.info.source}"
    action = "Find out how it came here, and move it away if it does not belong here."
    return SpoolDamagedError("SPOOL_SEGMENT_FOREIGN", what, where, action)


def read_row_sizes(store: Store, entry: SegmentEntry) -> npt.NDArray[np.int64]:
    """Return the bytes of each row of an admitted segment that is no duplicate, in order, from its file."""
    sizes = SegmentReader(store, entry.name, entry.digest).index()[1]
    return sizes if entry.struck is None else sizes[~unpack_mask(entry.struck, entry.rows)]
