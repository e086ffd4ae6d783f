"""Calls of Spark and admission never wait for compaction, whatever a store takes for it; and what calls do wait for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from connectors.core.offsets import SENTINEL
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.recovery import read_state
from connectors.spool.stream.admission import StartedFetching
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.object_store.model import Request
from tests.support.spool_streams import open_stream, start_nothing
from tests.support.spool_writing import ObjectSpool
from tests.support.waiting import wait_for

LONGEST = 30.0
"""Seconds after which a call counts as one that hangs."""
FOLDER = "of/tests/"
QUIET = 1.1
_Result = TypeVar("_Result")


@dataclass
class Held:
    """Requests of one kind for names of one folder are not answered from `begin` until `release`."""

    kind: str
    folder: str
    begun: threading.Event = field(default_factory=threading.Event)
    waits: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, request: Request) -> None:
        # A request that deletes has the names in its body.
        named = request.key.startswith(FOLDER + self.folder) or f"<Key>{FOLDER}{self.folder}".encode() in request.body
        if self.begun.is_set() and request.kind == self.kind and named:
            self.waits.set()
            self.released.wait()


def answered(work: Callable[[], _Result]) -> _Result:
    """Return what some work returns, in a thread of its own; fails if it does not return."""
    done: Future[_Result] = Future()
    threading.Thread(target=lambda: done.set_result(work()), daemon=True).start()
    return done.result(LONGEST)


@dataclass
class Query:
    """A query over a spool on an object store, to which segments are published by hand."""

    spool: ObjectSpool
    stream: SpoolStream
    report: Callable[[], None]
    at: Mapping[str, Any] = field(default_factory=lambda: SENTINEL)
    count: int = 0

    def publish(self) -> None:
        self.spool.write([str(self.count)], published=1_000_000 + self.count)
        self.count += 1
        self.report()

    def batch(self) -> None:
        """Publish a row, and read it as Spark does: the batch before is committed when this one is planned."""
        self.publish()
        wait_for(lambda: self.stream.report_latest_offset()["position"] == self.count, LONGEST)
        end = self.stream.latest_offset(self.at, None)
        assert end["position"] == self.count
        [[part]] = self.stream.partitions(self.at, end)
        assert (part.position, part.rows) == (self.count - 1, 1)
        if self.at != SENTINEL:
            self.stream.commit(self.at)
        self.at = end


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@contextlib.contextmanager
def query(server: ObjectStoreServer, compaction: CompactionSettings) -> Iterator[Query]:
    spool = ObjectSpool(server=server)
    spool.identity()
    reports: list[Callable[[], None]] = []

    def start(ledger: Ledger, report: Callable[[], None]) -> StartedFetching:
        reports.append(report)
        return start_nothing(ledger, report)

    with open_stream(spool.root, start, access=spool.access(), compaction=compaction) as stream:
        wait_for(lambda: stream._background.compaction)
        yield Query(spool, stream, reports[0])


@pytest.mark.parametrize(
    ("kind", "folder", "compaction"),
    [
        pytest.param("PUT", "ids/", CompactionSettings(free_segments=2), id="ids are written"),
        pytest.param("GET", "ids/", CompactionSettings(free_segments=2), id="ids are loaded"),
        pytest.param("DELETE", "inbox/", CompactionSettings(free_segments=2), id="segments are deleted"),
        pytest.param("DELETE", "ids/", CompactionSettings(recent_ids=1, merge=2), id="merged runs are deleted"),
    ],
)
def test_calls_are_answered_and_rows_are_admitted_while_the_store_holds_up_compaction(
    server: ObjectStoreServer, kind: str, folder: str, compaction: CompactionSettings
) -> None:
    held = Held(kind, folder)
    server.interrupt = held
    with query(server, compaction) as running:
        running.batch()
        held.begun.set()
        try:
            wait_for(lambda: answered(running.batch) or held.waits.is_set())
            for _ in range(3):
                answered(running.batch)
            committed = running.count - 1
            state = read_state(running.spool.store, running.spool.identity().spool)
            assert (state.head, state.committed) == (running.count, committed), "what was returned is durable"
        finally:
            held.released.set()
        answered(running.batch)


def test_a_call_waits_for_rows_when_none_were_new_for_a_second_and_returns_those_that_come(
    server: ObjectStoreServer,
) -> None:
    with query(server, CompactionSettings()) as running:
        running.batch()
        assert running.stream.latest_offset(running.at, 10) == running.at
        time.sleep(QUIET)
        publishing = threading.Timer(0.3, running.publish)
        publishing.start()
        calls, end = 0, running.at
        while end == running.at:
            calls, end = calls + 1, running.stream.latest_offset(running.at, 10)
        publishing.join()
        assert end["position"] == running.count
        assert calls < 20, "Spark asks a hundred times a second if no call waits"


def test_a_state_is_seen_only_when_its_record_is_durable(server: ObjectStoreServer) -> None:
    held = Held("PUT", "ledger/")
    server.interrupt = held
    with query(server, CompactionSettings()) as running, ThreadPoolExecutor(1) as spark:
        running.batch()
        held.begun.set()
        try:
            running.publish()
            assert held.waits.wait(LONGEST)
            assert running.stream.report_latest_offset()["position"] == 1
            assert answered(lambda: running.stream.latest_offset(running.at, None))["position"] == 1
            commit = spark.submit(running.stream.commit, running.at)
            assert read_state(running.spool.store, running.spool.identity().spool).head == 1
            assert not commit.done(), "it is durable when it returns"
        finally:
            held.released.set()
        commit.result(LONGEST)
        state = read_state(running.spool.store, running.spool.identity().spool)
        assert (state.committed, running.stream._ledger.state.committed) == (1, 1)
        wait_for(lambda: running.stream.report_latest_offset()["position"] == 2, LONGEST)
