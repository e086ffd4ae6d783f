"""The ledger: admits segments once, mints positions, and forgets what is committed (rules R2 to R8).

A record is durable before Spark sees any effect of it. One thread puts records and manifests, and publishes the state
after each record, which never changes: calls of Spark read it without a lock. Callers ask for a record and wait until
it is durable; those that wait together share one. What a record makes useless is deleted by whoever calls `clean`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from connectors.core.errors import ConnectorError, SpoolDamagedError, SpoolFencedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import fenced_error
from connectors.spool.ledger.identity import SpoolIdentity
from connectors.spool.ledger.records import FORMAT_VERSION, EpochClaim, encode, record_name
from connectors.spool.ledger.segment_log import MANIFEST_FOLDER, SegmentEntry, even_sizes, manifest_name, unpack_mask
from connectors.spool.ledger.state import Layout, LedgerState, counted_loss
from connectors.spool.segments.dedup_index import DedupIndex
from connectors.spool.segments.segment import SegmentReader, segment_name
from connectors.spool.store.base import Store

SEGMENTS_A_RECORD = 64
SNAPSHOT_EVERY: Final = 128
"""Records between two snapshots; a start reads at most this many and one snapshot."""
RECORDS_RETAINED: Final = 256
"""Records below the newest one that are not deleted; all that a start needs is among them."""
_SHARED: Final = frozenset({"admit", "counters", "commit", "runs", "free", "forget"})
"""What requests may put into one record, if no two of them have the same key: the order does not matter then."""
_SIZES_CACHED = 8

Change = Callable[[LedgerState], Mapping[str, Any] | None]
"""Returns what a record is to say after a state; None for no record. It may be called again, after another state."""


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """What a caller waits for: a record with a change, or a snapshot of another state.

    `then` is called before the state is published, if the change is in the record. It changes memory, and nothing else.
    """

    change: Change | None
    state: Callable[[LedgerState], LedgerState] | None = None
    then: Callable[[], None] = lambda: None
    done: Future[LedgerState] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A record whose put has not finished, or whose outcome is unknown, with the state that follows from it."""

    record: Mapping[str, Any]
    state: LedgerState
    requests: Sequence[_Request]


class Ledger:
    """The ledger of a spool, held by its one writer; `begin` writes `state` as the first snapshot of its epoch.

    `admit` is for one thread, all else for any.

    Attributes:
        state: the newest one whose record is durable.
    """

    def __init__(
        self, store: Store, identity: SpoolIdentity, claim: EpochClaim, state: LedgerState, index: DedupIndex
    ) -> None:
        self.store = store
        self.identity = identity
        self.claim = claim
        self.state = state
        self.index = index
        self.quarantined_waiting: dict[str, int] = {}
        """Segments that were quarantined before they were admitted, and their rows; to admit them records the loss."""
        self._read_row_sizes = lru_cache(_SIZES_CACHED)(partial(read_row_sizes, store))
        self._dead: SpoolFencedError | None = None
        self._waiting: deque[_Request] = deque()
        # Ends with this object: an executor that nobody refers to ends its thread.
        self._thread = ThreadPoolExecutor(1, "spool-ledger")
        self._garbage: deque[str] = deque()
        # What follows is changed by the thread alone; others only ask whether there is an unsettled record.
        self._unsettled: _Unsettled | None = None
        self._manifest_numbers = itertools.count()
        self._manifests = state.segments.manifest_names()
        self._snapshot_number = -1
        self._oldest_number = 0

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
        if position > self.state.committed:
            failpoint("ledger.before_commit")
            self.append(lambda state: {"commit": position} if position > state.committed else None)
            failpoint("ledger.after_commit")

    def replace_state(
        self, state: Callable[[LedgerState], LedgerState], then: Callable[[], None] = lambda: None
    ) -> None:
        """Put a snapshot of another state, and make it this ledger's; raises as `append`."""
        self._ask(_Request(None, state, then=then))

    def append(self, change: Mapping[str, Any] | Change, then: Callable[[], None] = lambda: None) -> LedgerState:
        """Put a record with a change at this epoch's next number, and return the state after it.

        `then` is called before that state is published; it changes memory, and nothing else. Raises `SpoolFencedError`
        if another writer's seal has that number. After an `OSError` it is not known whether the record was put: the
        next request settles that first, and calls `then`.
        """
        return self._ask(_Request(change if callable(change) else lambda _: change, then=then))

    def _ask(self, request: _Request) -> LedgerState:
        self._waiting.append(request)
        self._thread.submit(self._serve)
        return request.done.result()

    def settle(self) -> None:
        """Finish the record whose put failed, if there is one; raises as `append`."""
        if self._unsettled is not None:
            self._ask(_Request(lambda _: None))

    def check(self) -> None:
        """Raise `SpoolFencedError` if this ledger has noticed that another writer took over."""
        if self._dead is not None:
            raise self._dead

    def discard(self, names: Sequence[str]) -> None:
        """Let `clean` delete files that no durable record names."""
        self._garbage.extend(names)

    def clean(self) -> None:
        """Delete the files that durable records have made useless. Any thread may; none has to wait for it."""
        names: list[str] = []
        with contextlib.suppress(IndexError):
            while True:
                names.append(self._garbage.popleft())
        has_manifests = any(name.startswith(f"{MANIFEST_FOLDER}/") for name in names)
        try:
            if has_manifests:
                failpoint("manifest.before_delete")
            while names:
                self.store.delete(names[0])
                del names[0]
        finally:
            self._garbage.extendleft(reversed(names))
        if has_manifests:
            failpoint("manifest.after_delete")

    def row_sizes(self, entry: SegmentEntry) -> npt.NDArray[np.int64]:
        """Return the bytes of each row of an admitted segment that is not a duplicate, in order."""
        return even_sizes(entry) if entry.quarantined else self._read_row_sizes(entry)

    def earlier_fetchers_done(self, others: Collection[str] = ()) -> bool:
        """Return whether all fetchers but `others` are gone, and all that they published is admitted (rule R3)."""
        return all(
            self.store.close_folder(f"inbox/{fetcher}", self.next_segment(fetcher))
            for fetcher in self.store.list("inbox")
            if fetcher not in others
        )

    def next_segment(self, fetcher: str) -> str:
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
                name = segment_name(fetcher, number)
                if name in self.quarantined_waiting:
                    readers.append(SegmentEntry(fetcher, number, 0, self.quarantined_waiting[name], "", None, 0, 0))
                elif self.store.exists(name):
                    reader = SegmentReader(self.store, name)
                    if reader.spool != self.identity.spool or reader.info.source >= len(self.identity.sources):
                        raise foreign_segment(reader, f"{self.store.root}/{name}")
                    readers.append(reader)
                else:
                    break
                number += 1
        return readers

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

        def change(state: LedgerState) -> Mapping[str, Any] | None:
            if state.dedup_epoch != dedup_epoch:
                return None  # a seek: what is a duplicate is decided again
            counters = {**state.counters, **{name: state.counters.get(name, 0) + n for name, n in counts.items()}}
            return {"admit": entries, "counters": counters}

        failpoint("ledger.before_admit")
        state = self.append(change, lambda: self.index.absorb(together))
        for entry in entries:
            if not state.is_waiting(entry.name):
                self.quarantined_waiting.pop(entry.name, None)
        failpoint("ledger.after_admit")

    # The thread that puts records.

    def _serve(self) -> None:
        requests = [self._waiting.popleft() for _ in range(len(self._waiting))]
        while requests:
            together = requests[:1]
            try:
                self._put_unsettled()
                if requests[0].state is not None:
                    self._snapshot(requests[0].state(self.state), together)
                else:
                    if self.state.number - self._snapshot_number >= SNAPSHOT_EVERY:
                        self._snapshot(self.state, ())
                    together = self._put_together(requests)
            except BaseException as error:  # noqa: BLE001 - it is raised where the record was asked for
                unsettled = () if self._unsettled is None else self._unsettled.requests
                for request in [request for request in unsettled if not request.done.done()] or requests[:1]:
                    request.done.set_exception(error)
            else:
                for request in together:
                    request.done.set_result(self.state)
            requests = [request for request in requests if not request.done.done()]

    def _put_together(self, requests: Sequence[_Request]) -> list[_Request]:
        """Put one record for the first request and those that can share it; return these."""
        content: dict[str, Any] = {}
        record, state, together, changing = dict[str, Any](), self.state, list[_Request](), list[_Request]()
        for request in requests:
            if request.change is None:
                break
            try:
                change = request.change(state) or {}
                if change:
                    if content and not ({*content, *change} <= _SHARED and content.keys().isdisjoint(change)):
                        break
                    shared = self._record("append", content | dict(change))
                    state = self.state.apply(shared)
                    record = shared
                    changing.append(request)
            except ConnectorError:
                if not together:
                    raise
                break  # it is raised when it is this one's turn
            content |= change
            together.append(request)
        if content:
            self._unsettled = _Unsettled(record, state, changing)
            self._put_unsettled()
        return together

    def _snapshot(self, state: LedgerState, requests: Sequence[_Request]) -> None:
        """Put a snapshot of a state; it names manifests that are durable."""
        self.check()
        segments = state.segments.folded()
        for manifest in segments.unwritten():
            name = f"{self.claim.epoch}-{next(self._manifest_numbers)}"
            self._manifests.add(name)  # also if it is not known whether it was written
            try:
                manifest.write(self.store, self.identity.spool, name)
            except FileNotFoundError:
                # A newer writer deleted our temporary file.
                raise self._fence(manifest_name(name)) from None
        state = replace(state, segments=segments)
        record = self._record("snapshot", {"state": state.snapshot()})
        place = {name: record[name] for name in ("epoch", "nonce", "number")}
        self._unsettled = _Unsettled(record, replace(state, **place), requests)
        self._put_unsettled()

    def _put_unsettled(self) -> None:
        """Put the record that is not settled, if there is one, and then publish the state after it."""
        if self._unsettled is None:
            return
        self.check()
        record = self._unsettled.record
        admitted = {"admit": [entry.to_json() for entry in record["admit"]]} if "admit" in record else {}
        name, data = record_name(record["epoch"], record["number"]), encode({**record, **admitted})
        failpoint("ledger.before_put")
        try:
            own = self.store.create(name, data) or self.store.read(name) == data
        except FileNotFoundError:
            # A newer writer deleted our temporary file.
            own = False
        if not own:
            raise self._fence(name)
        failpoint("ledger.after_put")
        settled, self._unsettled = self._unsettled, None
        for request in settled.requests:
            request.then()
        self.state = settled.state
        self._discard_useless(record)

    def _discard_useless(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "snapshot":
            self._snapshot_number = record["number"]
            named = self.state.segments.manifest_names()
            self._garbage.extend(sorted(map(manifest_name, self._manifests - named)))
            self._manifests = named
        retained_from = min(self.state.number - RECORDS_RETAINED, self._snapshot_number)
        while self._oldest_number < retained_from:
            self._garbage.append(record_name(self.claim.epoch, self._oldest_number))
            self._oldest_number += 1

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

    def _fence(self, name: str) -> SpoolFencedError:
        self._dead = fenced_error(f"{self.store.root}/{name}")
        return self._dead


def foreign_segment(reader: SegmentReader, where: str) -> SpoolDamagedError:
    what = f"The segment belongs to another spool or source: spool {reader.spool}, source {reader.info.source}"
    return SpoolDamagedError("SPOOL_SEGMENT_FOREIGN", what, where)


def read_row_sizes(store: Store, entry: SegmentEntry) -> npt.NDArray[np.int64]:
    """Return the bytes of each row of an admitted segment that is not a duplicate, in order, from its file."""
    sizes = SegmentReader(store, entry.name, entry.digest).index()[1]
    return sizes if entry.duplicate_mask is None else sizes[~unpack_mask(entry.duplicate_mask, entry.rows)]
