"""Record anew, with a real Spark, the traces that the protocol driver must reproduce.

Usage: ``python -m tests.golden.record [SCENARIO ...]``, in the root of the repository. One local Spark session runs the
scenarios one after the other, about two minutes for all, and writes one JSON file each into ``tests/golden/traces``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.golden.scenarios import SCENARIOS, TRACES, Scenario, folded_trace, read_events
from tests.golden.traced_source import TracedSource

PATIENCE = 60.0
"""Seconds to wait for anything a scenario waits for."""
IDLE_CALLS = 4
"""Calls of latestOffset in a row, with one answer and nothing else between, that count as idle."""


def local_session() -> SparkSession:
    """A Spark session on this machine, two cores, no user interface."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    session.dataSource.register(TracedSource)
    return session


class Sink:
    """What foreachBatch calls: collects the rows, then fails, waits or lets the source grow as told."""

    def __init__(self, fail_at: int | None, hold_at: int | None, grow: Callable[[int], None]) -> None:
        self.fail_at = fail_at
        self.hold_at = hold_at
        self.grow = grow
        self.finished = 0
        self.held = threading.Event()
        self.released = threading.Event()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        frame.collect()
        self.grow(batch_id)
        if batch_id == self.fail_at:
            message = "this sink fails as told"
            raise RuntimeError(message)
        if batch_id == self.hold_at:
            self.held.set()
            self.released.wait(PATIENCE)
        self.finished += 1


class SparkEngine:
    """Runs the queries of one scenario with Spark."""

    def __init__(self, session: SparkSession, scenario: Scenario, folder: Path) -> None:
        self.session = session
        self.scenario = scenario
        self.folder = folder
        self.trace = folder / "trace.jsonl"
        self.query: StreamingQuery | None = None
        self.sink: Sink | None = None
        for label in scenario.sources:
            (folder / label).mkdir()

    def head(self, rows: int, label: str = "a") -> None:
        new = self.folder / label / "head.new"
        new.write_text(str(rows))
        new.rename(self.folder / label / "head")

    def _options(self, label: str) -> dict[str, str]:
        common = {"control": str(self.folder / label), "trace": str(self.trace), "label": label}
        return common | self.scenario.sources[label]

    def _stream(self) -> DataFrame:
        streams = [
            self.session.readStream.format("traced").options(**self._options(label)).load()
            for label in self.scenario.sources
        ]
        answer = streams[0]
        for other in streams[1:] + [streams[0]] * (self.scenario.scans - 1):
            answer = answer.union(other)
        return answer

    def start(
        self,
        trigger: str = "default",
        *,
        fail_at: int | None = None,
        hold_at: int | None = None,
        grow_at: tuple[int, int] | None = None,
    ) -> None:
        def grow(batch_id: int) -> None:
            if grow_at is not None and batch_id == grow_at[0]:
                self.head(grow_at[1])

        self.sink = Sink(fail_at, hold_at, grow)
        writer = self._stream().writeStream.foreachBatch(self.sink)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        if trigger == "once":
            writer = writer.trigger(once=True)
        elif trigger == "available_now":
            writer = writer.trigger(availableNow=True)
        elif trigger == "processing_time":
            writer = writer.trigger(processingTime="100 milliseconds")
        self.query = writer.start()

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                message = f"{self.scenario.name}: {what} did not happen in {PATIENCE} s"
                raise TimeoutError(message)
            time.sleep(0.02)

    def _query(self) -> StreamingQuery:
        if self.query is None:
            message = "no query was started"
            raise RuntimeError(message)
        return self.query

    def _sink(self) -> Sink:
        if self.sink is None:
            message = "no query was started"
            raise RuntimeError(message)
        return self.sink

    def until_batches(self, count: int) -> None:
        self._wait(lambda: self._sink().finished >= count or not self._query().isActive, f"batch {count}")

    def until_held(self) -> None:
        self._wait(self._sink().held.is_set, "the held batch")

    def until_idle(self) -> None:
        def idle() -> bool:
            for label in self.scenario.sources:
                calls = [
                    event
                    for event in read_events(self.trace)
                    if event["source"] == label and event["role"] == "source" and event["call"] != "reportLatestOffset"
                ][-IDLE_CALLS:]
                if len(calls) < IDLE_CALLS or any(call != calls[0] for call in calls):
                    return False
                if calls[0]["call"] != "latestOffset":
                    return False
            return True

        self._wait(idle, "idle polling")

    def _ended(self) -> BaseException | None:
        query = self._query()
        self._wait(lambda: not query.isActive, "the end of the query")
        return query.exception()

    def until_failed(self) -> None:
        if self._ended() is None:
            message = f"{self.scenario.name}: the query ended without an error"
            raise RuntimeError(message)
        self._settle()

    def until_finished(self) -> None:
        if (error := self._ended()) is not None:
            raise error
        self._settle()

    def stop(self) -> None:
        query = self._query()
        release = threading.Timer(1.0, self._sink().released.set)
        release.start()
        query.stop()
        release.cancel()
        self._sink().released.set()
        self._settle()

    def _settle(self) -> None:
        """Wait until nothing is written to the trace any more."""
        size = -1
        while size != (size := self.trace.stat().st_size):
            time.sleep(0.3)

    def batch_read_actions(self) -> None:
        frame = self.session.read.format("traced").options(**self._options("a")).load()
        frame.count()
        frame.collect()
        frame.filter("value % 2 = 0").collect()


def record(session: SparkSession, scenario: Scenario) -> dict[str, Any]:
    """Run one scenario and return what is stored."""
    with tempfile.TemporaryDirectory() as folder:
        engine = SparkEngine(session, scenario, Path(folder))
        scenario.steps(engine)
        trace = folded_trace(read_events(engine.trace))
    return {"spark": pyspark.__version__, "scenario": scenario.name, "shows": scenario.shows, "trace": trace}


def main(names: list[str]) -> None:
    """Record the named scenarios, or all."""
    session = local_session()
    for scenario in SCENARIOS:
        if not names or scenario.name in names:
            started = time.monotonic()
            stored = record(session, scenario)
            (TRACES / f"{scenario.name}.json").write_text(json.dumps(stored, indent=1) + "\n")
            sys.stdout.write(f"{scenario.name}: {time.monotonic() - started:.1f} s\n")
            sys.stdout.flush()
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
