"""The protocol driver does what Spark does: it reproduces recorded traces, and each seen fact is a test of its own."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.golden.driver_engine import run
from tests.golden.scenarios import SCENARIOS, TRACES, Scenario, folded_trace, read_events
from tests.golden.troubled_source import TroubledSource
from tests.support.spark_protocol.driver import (
    STEPS,
    AttemptsDifferError,
    DriverCrashedError,
    DriverProcess,
    FolderSink,
    InProcessWorkers,
    ReplayDiffersError,
    Step,
    StreamingQuery,
    TaskFailedError,
    TaskWorkers,
    digest,
    is_running,
)
from tests.support.waiting import wait_for

SOURCE = "tests.golden.troubled_source:TroubledSource"


@pytest.fixture(scope="module")
def workers() -> Iterator[TaskWorkers]:
    made = TaskWorkers(2)
    yield made
    made.close()


class Traced:
    """A traced source in a folder, and queries over it."""

    def __init__(self, folder: Path, workers: InProcessWorkers) -> None:
        self.folder = folder
        self.workers = workers
        self.trace = folder / "trace.jsonl"
        self.sink = FolderSink(folder / "sink")
        self.head(0)

    def head(self, rows: int) -> None:
        (self.folder / "head").write_text(str(rows))

    def options(self, **changes: str) -> dict[str, str]:
        return {"control": str(self.folder), "trace": str(self.trace)} | changes

    def query(self, options: Mapping[str, str] | None = None, **settings: Any) -> StreamingQuery:
        defaults = {"checkpoint": self.folder / "checkpoint", "sink": self.sink, "workers": self.workers}
        return StreamingQuery(TroubledSource, self.options() | dict(options or {}), **(defaults | settings))

    def calls(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.trace) if event["call"] in names]


@pytest.fixture
def traced(tmp_path: Path, workers: TaskWorkers) -> Traced:
    return Traced(tmp_path, workers)


# The traces


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_driver_reproduces_the_trace_recorded_from_spark(
    scenario: Scenario, tmp_path: Path, workers: TaskWorkers
) -> None:
    recorded = json.loads((TRACES / f"{scenario.name}.json").read_text())
    assert folded_trace(read_events(run(scenario, tmp_path, workers))) == recorded["trace"]


def test_every_trace_has_its_scenario_and_names_the_version_of_spark() -> None:
    stored = {path.stem: json.loads(path.read_text()) for path in TRACES.glob("*.json")}
    assert set(stored) == {scenario.name for scenario in SCENARIOS}
    assert {trace["spark"] for trace in stored.values()} == {"4.3.0"}


# Processes


@pytest.mark.guarantee
def test_reader_is_killed_at_once_when_the_query_stops_and_stop_is_not_called(traced: Traced) -> None:
    with traced.query() as query:
        query.run_batch()
        reader = query.reader
        query.stop()
        assert not reader.alive
    assert [event["args"] for event in traced.calls("signal")] == [["SIGTERM"]]
    assert traced.calls("stop") == []


@pytest.mark.guarantee
def test_reader_inside_a_call_outlives_its_killed_parent_until_the_call_ends(traced: Traced) -> None:
    traced.head(1)
    pause = traced.folder / "pause"
    with _driver(traced, options={"pause": str(pause)}) as driver:
        driver.wait_for("started")
        _until(pause.exists)
        (reader,) = driver.reader_pids
        driver.kill()
        time.sleep(0.5)  # no event shows that a process goes on
        assert is_running(reader)
        pause.unlink()
        _until(lambda: not is_running(reader))


# Offsets


# Tasks


def test_later_batch_of_another_schema_fails_although_spark_looks_at_the_first_only(traced: Traced) -> None:
    traced.head(4)
    with traced.query({"variant": "other_schema"}) as query, pytest.raises(TaskFailedError, match=r"batch 1 .* schema"):
        query.run_batch()
    assert not query.is_running


def test_partition_read_twice_with_other_rows_is_found(traced: Traced) -> None:
    traced.head(4)
    with traced.query({"variant": "other_rows"}, task_attempts=2) as query, pytest.raises(AttemptsDifferError):
        query.run_batch()


# Crashes and replays


@pytest.mark.guarantee
@pytest.mark.parametrize("step", STEPS)
def test_crash_at_a_step_is_followed_by_a_restart_that_loses_and_doubles_nothing(traced: Traced, step: Step) -> None:
    with traced.query({"limit": "3"}) as query:
        traced.head(2)
        query.run_batch()
        traced.head(6)
        query.crash_at(step, batch_id=1)
        with pytest.raises(DriverCrashedError):
            query.process_available()
        assert not query.reader.alive
        query.restart()
        query.process_available()
        traced.head(9)
        query.process_available()
    outcome = traced.sink.lost_and_doubled(range(9), "value")
    assert (outcome.lost, outcome.doubled) == ([], [])


def test_replay_with_other_rows_is_found(traced: Traced) -> None:
    traced.head(4)
    with traced.query({"variant": "other_rows"}) as query:
        query.crash_at("tasks_done")
        with pytest.raises(DriverCrashedError):
            query.run_batch()
        query.restart()
        with pytest.raises(ReplayDiffersError):
            query.run_batch()


def test_replay_with_other_partitions_is_found(traced: Traced) -> None:
    traced.head(4)
    with traced.query() as query:
        query.crash_at("sink_written")
        with pytest.raises(DriverCrashedError):
            query.run_batch()
    with (
        traced.query({"parts": "3"}) as query,
        pytest.raises(ReplayDiffersError, match=r"\[2, 2\].*\[1, 1, 2\]"),
    ):
        query.run_batch()


@pytest.mark.guarantee
def test_driver_process_killed_at_a_failpoint_is_followed_by_a_replay(traced: Traced) -> None:
    traced.head(6)
    environment = {"CONNECTORS_FAILPOINTS": "protocol.tasks_done=kill:2"}
    with _driver(traced, options={"limit": "2"}, environment=environment) as driver:
        assert driver.wait(30) == -signal.SIGKILL
        (reader,) = driver.reader_pids
        _until(lambda: not is_running(reader))
        batches = [event for event in driver.events if event["event"] == "batch"]
        assert [event["rows"] for event in batches] == [2]
    with _driver(traced, options={"limit": "2"}, batches=2) as driver:
        assert driver.wait_for("batch")["replayed"]
        driver.wait_for("ended")
        assert driver.wait(30) == 0
    assert traced.sink.values("value") == [*range(6)]


# Failures of the reader process


# Waiting


# Sink and checkpoint


def _table(values: Sequence[int | None]) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.int64())})


def test_digest_sees_rows_order_and_partitions_and_not_chunks() -> None:
    whole = digest([_table([1, None, 3])])
    pieces = pa.concat_tables([_table([0, 1]).slice(1), _table([None]), _table([3])])
    assert digest([pieces]) == whole
    assert digest([_table([1, 3, None])]) != whole
    assert digest([_table([1, None, 4])]) != whole
    assert digest([_table([1]), _table([None, 3])]) != whole
    assert digest([_table([1, None, 3]), _table([])]) != whole


def test_sink_replaces_a_batch_and_counts_lost_and_doubled(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path)
    sink(0, [_table([1, 2]), _table([3])])
    sink(0, [_table([1]), _table([2, 3])])
    sink(1, [])
    sink(2, [_table([3, 5, 7])])
    assert sink.batch_ids() == [0, 1, 2]
    assert [batch.num_rows for batch in sink.partitions(0)] == [1, 2]
    assert sink.rows() == 6
    assert sink.table().column("value").to_pylist() == sink.values("value")
    outcome = sink.lost_and_doubled(range(6), "value")
    assert outcome.lost == [0, 4]
    assert outcome.doubled == [3, 7]


def _driver(
    traced: Traced,
    *,
    options: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    batches: int | None = None,
) -> DriverProcess:
    return DriverProcess(
        SOURCE,
        traced.options() | dict(options or {}),
        checkpoint=traced.folder / "checkpoint",
        sink=traced.folder / "sink",
        environment=environment,
        batches=batches,
    )


def _until(condition: Any, seconds: float = 60.0) -> None:
    wait_for(condition, seconds)
