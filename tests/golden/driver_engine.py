"""Runs the scenarios of the traced source with the protocol driver."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tests.golden.scenarios import Scenario
from tests.golden.traced_source import TracedSource
from tests.support.spark_protocol.driver import (
    BatchRead,
    InProcessWorkers,
    ProtocolError,
    Source,
    StreamingQuery,
    Trigger,
)

IDLE_TRIGGERS = 3


class SinkFailedError(Exception):
    """The sink failed, as the scenario told it."""


class SinkHeldError(Exception):
    """The sink was to wait for ever: here it ends the query instead, and the reader sees the same."""


class DriverEngine:
    """One scenario's queries, run by the protocol driver one trigger at a time."""

    def __init__(self, scenario: Scenario, folder: Path, workers: InProcessWorkers) -> None:
        self.scenario = scenario
        self.folder = folder
        self.trace = folder / "trace.jsonl"
        self.workers = workers
        self.query: StreamingQuery | None = None
        self.finished = 0
        for label in scenario.sources:
            (folder / label).mkdir()

    def head(self, rows: int, label: str = "a") -> None:
        (self.folder / label / "head").write_text(str(rows))

    def _source(self, label: str) -> Source:
        common = {"control": str(self.folder / label), "trace": str(self.trace), "label": label}
        return Source(TracedSource, common | self.scenario.sources[label], scans=self.scenario.scans)

    def start(
        self,
        trigger: Trigger = "default",
        *,
        fail_at: int | None = None,
        hold_at: int | None = None,
        grow_at: tuple[int, int] | None = None,
    ) -> None:
        def sink(batch_id: int, _tables: Sequence[pa.Table]) -> None:
            if grow_at is not None and batch_id == grow_at[0]:
                self.head(grow_at[1])
            if batch_id == hold_at:
                raise SinkHeldError
            if batch_id == fail_at:
                raise SinkFailedError
            self.finished += 1

        first, *others = [self._source(label) for label in self.scenario.sources]
        self.finished = 0
        self.query = StreamingQuery(
            first,
            checkpoint=self.folder / "checkpoint",
            sink=sink,
            trigger=trigger,
            poll_interval=0,
            trigger_interval=0,
            other_sources=others,
            workers=self.workers,
        )
        self.query.start()

    def _running(self) -> StreamingQuery:
        if self.query is None:
            message = "no query was started"
            raise RuntimeError(message)
        return self.query

    def until_batches(self, count: int) -> None:
        self._running().run_until(lambda _batches: self.finished >= count)

    def until_held(self) -> None:
        self._until_error(SinkHeldError)

    def until_idle(self) -> None:
        idle = 0
        while idle < IDLE_TRIGGERS:
            idle = idle + 1 if self._running().run_trigger() is None else 0

    def until_failed(self) -> None:
        self._until_error((SinkFailedError, ProtocolError))

    def _until_error(self, kind: type[Exception] | tuple[type[Exception], ...]) -> None:
        try:
            for _ in itertools.repeat(None, 100):
                self._running().run_trigger()
        except kind:
            return
        message = "the query went on without an error"
        raise RuntimeError(message)

    def until_finished(self) -> None:
        self._running().process_available()
        if self._running().is_running:
            message = "the query did not end by itself"
            raise RuntimeError(message)

    def stop(self) -> None:
        self._running().close()

    def batch_read_actions(self) -> None:
        with BatchRead(self._source("a"), workers=self.workers) as read:
            for _ in range(3):
                read.collect()

    def close(self) -> None:
        """End what still runs."""
        if self.query is not None:
            self.query.close()


def run(scenario: Scenario, folder: Path, workers: InProcessWorkers) -> Path:
    """Run a scenario and return the file with its trace."""
    engine = DriverEngine(scenario, folder, workers)
    try:
        scenario.steps(engine)
    finally:
        engine.close()
    return engine.trace
