"""The thread that owns a ledger: it puts each record, and publishes the state after it (rules R3, R5 and R7).

Others read the published state, which never changes, without a lock. Who wants a record asks for it and waits until it
is durable; those who wait together share a record. The thread puts records and manifests, and does nothing else: what a
record makes useless is deleted by whoever calls `clean`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connectors.core.errors import ConnectorError, SpoolFencedError
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import fenced_error
from connectors.spool.ledger.fencing import Claim
from connectors.spool.ledger.records import FORMAT_VERSION, encode, record_name
from connectors.spool.ledger.segment_log import MANIFEST_FOLDER, manifest_name
from connectors.spool.ledger.state import LedgerState
from connectors.spool.store.base import Store

__all__ = ["RECORDS_RETAINED", "SNAPSHOT_EVERY", "Change", "LedgerWriter", "Request"]

SNAPSHOT_EVERY: Final = 128
"""Records between two snapshots; a start reads at most this many and one snapshot."""
RECORDS_RETAINED: Final = 256
"""Records below the newest one that are not deleted; all that a start needs is among them."""
_SHARED: Final = frozenset({"admit", "counters", "commit", "runs", "free", "forget"})
"""What requests may put into one record, if no two of them have the same key: the order does not matter then."""

Change = Callable[[LedgerState], Mapping[str, Any] | None]
"""Returns what a record is to say after a state; None for no record. It may be called again, after another state."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What a caller waits for: a record with a change, or a snapshot of another state.

    `then` is called before the state is published, if the change is in the record. It changes memory, and nothing else.
    """

    change: Change | None
    state: Callable[[LedgerState], LedgerState] | None = None
    then: Callable[[], None] = lambda: None
    done: Future[LedgerState] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A record that was not put yet, or of which that is unknown; and the state after it."""

    record: Mapping[str, Any]
    state: LedgerState
    requests: Sequence[Request]


class LedgerWriter:
    """The owner of a ledger's state.

    Attributes:
        state: the newest one whose record is durable.
    """

    def __init__(self, store: Store, spool: str, claim: Claim, state: LedgerState) -> None:
        self.state = state
        self._store = store
        self._spool = spool
        self._claim = claim
        self._dead: SpoolFencedError | None = None
        self._waiting: deque[Request] = deque()
        # Ends with this object: an executor that nobody refers to ends its thread.
        self._thread = ThreadPoolExecutor(1, "spool-ledger")
        self._garbage: deque[str] = deque()
        # What follows is changed by the thread alone; others only ask whether there is an unsettled record.
        self._unsettled: _Unsettled | None = None
        self._manifest_numbers = itertools.count()
        self._manifests = state.segments.manifest_names()
        self._snapshot_number = -1
        self._oldest_number = 0

    def ask(self, request: Request) -> LedgerState:
        """Put what is requested at this epoch's next number, and return the state after it.

        Raises `SpoolFencedError` if another writer's seal has that number. After an `OSError` it is not known whether
        the record was put: the next request settles that first, and calls `then`.
        """
        self._waiting.append(request)
        self._thread.submit(self._serve)
        return request.done.result()

    def settle(self) -> None:
        """Finish the record whose put failed, if there is one; raises as `ask`."""
        if self._unsettled is not None:
            self.ask(Request(lambda _: None))

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
                self._store.delete(names[0])
                del names[0]
        finally:
            self._garbage.extendleft(reversed(names))
        if has_manifests:
            failpoint("manifest.after_delete")

    # The thread.

    def _serve(self) -> None:
        """Serve those who wait, in the order in which they asked."""
        requests = [self._waiting.popleft() for _ in range(len(self._waiting))]
        while requests:
            together = requests[:1]
            try:
                self._settle()
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

    def _put_together(self, requests: Sequence[Request]) -> list[Request]:
        """Put one record for the first request and those that can share it; return these."""
        content: dict[str, Any] = {}
        record, state, together, changing = dict[str, Any](), self.state, list[Request](), list[Request]()
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
            self._settle()
        return together

    def _snapshot(self, state: LedgerState, requests: Sequence[Request]) -> None:
        """Put a snapshot of a state; it names manifests that are durable."""
        self.check()
        segments = state.segments.folded()
        for manifest in segments.unwritten():
            name = f"{self._claim.epoch}-{next(self._manifest_numbers)}"
            self._manifests.add(name)  # also if it is not known whether it was written
            try:
                manifest.write(self._store, self._spool, name)
            except FileNotFoundError:
                # A newer writer deleted our temporary file.
                raise self._fence(manifest_name(name)) from None
        state = replace(state, segments=segments)
        record = self._record("snapshot", {"state": state.snapshot()})
        place = {name: record[name] for name in ("epoch", "nonce", "number")}
        self._unsettled = _Unsettled(record, replace(state, **place), requests)
        self._settle()

    def _settle(self) -> None:
        """Put the record that is not settled, if there is one, and then publish the state after it."""
        if self._unsettled is None:
            return
        record, state, requests = self._unsettled.record, self._unsettled.state, self._unsettled.requests
        self._put(record)
        self._unsettled = None
        for request in requests:
            request.then()
        self.state = state
        self._discard_useless(record)

    def _put(self, record: Mapping[str, Any]) -> None:
        self.check()
        name = record_name(record["epoch"], record["number"])
        data = encode(record)
        failpoint("ledger.before_put")
        try:
            own = self._store.create(name, data) or self._store.read(name) == data
        except FileNotFoundError:
            # A newer writer deleted our temporary file.
            own = False
        if not own:
            raise self._fence(name)
        failpoint("ledger.after_put")

    def _discard_useless(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "snapshot":
            self._snapshot_number = record["number"]
            named = self.state.segments.manifest_names()
            self._garbage.extend(sorted(map(manifest_name, self._manifests - named)))
            self._manifests = named
        retained_from = min(self.state.number - RECORDS_RETAINED, self._snapshot_number)
        while self._oldest_number < retained_from:
            self._garbage.append(record_name(self._claim.epoch, self._oldest_number))
            self._oldest_number += 1

    def _record(self, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "v": FORMAT_VERSION,
            "kind": kind,
            "spool": self._spool,
            "epoch": self._claim.epoch,
            "nonce": self._claim.nonce,
            "number": self.state.number + 1,
            "base": self.state.head,
            **content,
        }

    def _fence(self, name: str) -> SpoolFencedError:
        self._dead = fenced_error(f"{self._store.root}/{name}")
        return self._dead
