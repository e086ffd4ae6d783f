"""The ledger: admits segments once, mints positions, and forgets what is committed (rules R2 to R8).

A record is durable before Spark sees any effect of it. Calls of Spark read the newest published state, and never wait
for one another's work: one thread admits, one compacts, one merges; `LedgerWriter` puts the records of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from connectors.core.errors import SpoolDamagedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.ledger.fencing import Claim
from connectors.spool.ledger.identity import SpoolIdentity
from connectors.spool.ledger.segment_log import SegmentEntry, even_sizes, unpack_mask
from connectors.spool.ledger.state import Layout, LedgerState, counted_loss
from connectors.spool.ledger.writer import Change, LedgerWriter, Request
from connectors.spool.segments.dedup_index import DedupIndex
from connectors.spool.segments.segment import SegmentReader, segment_name
from connectors.spool.store.base import Store

__all__ = ["Ledger", "foreign_segment", "read_row_sizes"]

SEGMENTS_A_RECORD = 64
_SIZES_CACHED = 8


class Ledger:
    """The ledger of a spool, held by its one writer; `begin` writes `state` as the first snapshot of its epoch.

    `admit` is for one thread, all else for any.
    """

    def __init__(
        self, store: Store, identity: SpoolIdentity, claim: Claim, state: LedgerState, index: DedupIndex
    ) -> None:
        self.store = store
        self.identity = identity
        self.claim = claim
        self.index = index
        self.quarantined_waiting: dict[str, int] = {}
        """Segments that were quarantined before they were admitted, and their rows; to admit them records the loss."""
        self._writer = LedgerWriter(store, identity.spool, claim, state)
        self._read_row_sizes = lru_cache(_SIZES_CACHED)(partial(read_row_sizes, store))

    @property
    def state(self) -> LedgerState:
        """The newest state whose record is durable; it never changes."""
        return self._writer.state

    def begin(self) -> None:
        """Put the first record of this epoch, a snapshot: nothing is served or deleted before it."""
        self.replace_state(lambda state: state)
        failpoint("ledger.after_first_snapshot")

    def set_layout(self, partition_bytes: int, max_partitions: int) -> None:
        """Set how later batches are cut; batches that end at or below the head keep their layout."""

        def change(state: LedgerState) -> Mapping[str, Any] | None:
            last = state.layouts[-1] if state.layouts else None
            wanted = Layout(0 if last is None else last.position, partition_bytes, max_partitions)
            return None if last == wanted else {"layout": [partition_bytes, max_partitions]}

        self.append(change)

    def admit(self) -> int:
        """Admit every durable segment that is not yet admitted; return how many were.

        Raises as `append`, and `SpoolDamagedError` if a segment is damaged, missing or of another spool.
        """
        admitted = 0
        while True:
            self.settle()
            first, readers = self.state.ordinal, self._pending(SEGMENTS_A_RECORD)
            if readers:
                self._admit(readers)
            admitted += self.state.ordinal - first
            if len(readers) < SEGMENTS_A_RECORD:
                return admitted

    def commit(self, position: int) -> None:
        """Record that Spark has committed all rows below a position."""
        if position > self.state.committed:
            failpoint("ledger.before_commit")
            self.append(lambda state: {"commit": position} if position > state.committed else None)
            failpoint("ledger.after_commit")

    def replace_state(
        self, state: Callable[[LedgerState], LedgerState], then: Callable[[], None] = lambda: None
    ) -> None:
        """Put a snapshot of another state, and make it this ledger's; raises as `append`."""
        self._writer.ask(Request(None, state, then=then))

    def append(self, change: Mapping[str, Any] | Change, then: Callable[[], None] = lambda: None) -> LedgerState:
        """Put a record with a change, and return the state after it; see `LedgerWriter.ask`."""
        return self._writer.ask(Request(change if callable(change) else lambda _: change, then=then))

    def settle(self) -> None:
        """Finish the record whose put failed, if there is one; raises as `append`."""
        self._writer.settle()

    def check(self) -> None:
        """Raise `SpoolFencedError` if this ledger has noticed that another writer took over."""
        self._writer.check()

    def discard(self, names: Sequence[str]) -> None:
        """Let `clean` delete files that no durable record names."""
        self._writer.discard(names)

    def clean(self) -> None:
        """Delete the files that durable records have made useless."""
        self._writer.clean()

    def row_sizes(self, entry: SegmentEntry) -> npt.NDArray[np.int64]:
        """Return the bytes of each row of an admitted segment that is no duplicate, in order."""
        return even_sizes(entry) if entry.quarantined else self._read_row_sizes(entry)

    def earlier_fetchers_done(self, others: Collection[str] = ()) -> bool:
        """Return whether all fetchers but `others` are gone, and all that they published is admitted (rule R3)."""
        return all(
            self.store.close_folder(f"inbox/{fetcher}", self.next_segment(fetcher))
            for fetcher in self.store.list("inbox")
            if fetcher not in others
        )

    def next_segment(self, fetcher: str) -> str:
        """Return the name of the segment of a fetcher that is to be admitted next."""
        return segment_name(fetcher, self.state.fetchers.get(fetcher, -1) + 1)

    def _pending(self, most: int) -> list[SegmentReader | SegmentEntry]:
        """Return the next segments of each fetcher in order; a quarantined one as its entry."""
        readers: list[SegmentReader | SegmentEntry] = []
        # The folder of a fetcher may be gone with its only segment.
        for fetcher in sorted(
            {*self.store.list("inbox"), *(name.split("/")[1] for name in list(self.quarantined_waiting))}
        ):
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
        if name in self.quarantined_waiting:
            return SegmentEntry(fetcher, number, 0, self.quarantined_waiting[name], "", None, 0, 0)
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
        dedup_epoch = self.state.dedup_epoch
        entries: list[SegmentEntry] = []
        counts: Counter[str] = Counter()
        together = DedupIndex(self.index.horizon)
        for reader in readers:
            if isinstance(reader, SegmentEntry):
                entries.append(reader)
                counts.update(counted_loss({}, reader.rows))
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
            counts.update({"delivered": info.rows, "duplicates": info.rows - entry.admitted_rows, **info.counters})
        admitted = [entry.to_json() for entry in entries]

        def change(state: LedgerState) -> Mapping[str, Any] | None:
            if state.dedup_epoch != dedup_epoch:
                return None  # a seek: what is a duplicate is decided again
            counters = {**state.counters, **{name: state.counters.get(name, 0) + n for name, n in counts.items()}}
            return {"admit": admitted, "counters": counters}

        failpoint("ledger.before_admit")
        state = self.append(change, lambda: self.index.absorb(together))
        for entry in entries:
            if not state.is_waiting(entry.name):
                self.quarantined_waiting.pop(entry.name, None)
        failpoint("ledger.after_admit")


def foreign_segment(reader: SegmentReader, where: str) -> SpoolDamagedError:
    """Return the error of a segment that belongs to another spool, or to a source that this one does not have."""
    what = f"A segment belongs to spool {reader.spool}, source {reader.info.source}"
    action = "Find out how it came here, and move it away if it does not belong here."
    return SpoolDamagedError("SPOOL_SEGMENT_FOREIGN", what, where, action)


def read_row_sizes(store: Store, entry: SegmentEntry) -> npt.NDArray[np.int64]:
    """Return the bytes of each row of an admitted segment that is no duplicate, in order, from its file."""
    sizes = SegmentReader(store, entry.name, entry.digest).index()[1]
    return sizes if entry.struck is None else sizes[~unpack_mask(entry.struck, entry.rows)]
