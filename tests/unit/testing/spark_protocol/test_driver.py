"""The protocol driver does what Spark does: it reproduces recorded traces, and each seen fact is a test of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from connectors.testing.spark_protocol.driver import (
    STEPS,
    AttemptsDifferError,
    BatchRead,
    DriverCrashedError,
    DriverProcess,
    FolderSink,
    InProcessWorkers,
    NoBatchError,
    ProtocolError,
    QueryEndedError,
    ReaderDiedError,
    ReaderFailedError,
    ReaderProcess,
    ReaderTimeoutError,
    ReplayDiffersError,
    Source,
    Step,
    StreamingQuery,
    TaskFailedError,
    TaskWorkers,
    UnexpectedBatchError,
    descendants,
    digest,
    is_running,
)
from tests.golden.driver_engine import run
from tests.golden.scenarios import SCENARIOS, TRACES, Scenario, folded_trace, read_events
from tests.golden.traced_source import SCHEMA
from tests.golden.troubled_source import TroubledSource
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


def test_reader_lives_in_one_process_for_the_life_of_the_query(traced: Traced) -> None:
    with traced.query() as query:
        pid = query.reader.pid
        for rows in (1, 2, 3):
            traced.head(rows)
            query.run_batch()
            assert query.reader.pid == pid
        assert pid not in (os.getpid(), *traced.workers.pids)


def test_reader_has_no_spark_session_and_no_checkpoint_location(traced: Traced) -> None:
    with traced.query() as query:
        query.run_batch()
    (created,) = traced.calls("DataSource.__init__")
    assert created["args"] == [["control"]]
    assert SparkSession.getActiveSession() is None


@pytest.mark.guarantee
def test_reader_is_killed_at_once_when_the_query_stops_and_stop_is_not_called(traced: Traced) -> None:
    with traced.query() as query:
        query.run_batch()
        reader = query.reader
        query.stop()
        assert not reader.alive
    assert [event["args"] for event in traced.calls("signal")] == [["SIGTERM"]]
    assert traced.calls("stop") == []


def test_stop_is_called_after_the_reader_raised(traced: Traced) -> None:
    traced.head(-1)
    with traced.query({"variant": "raise_in_latest"}) as query, pytest.raises(ReaderFailedError, match="no offset"):
        query.run_batch()
    assert len(traced.calls("stop")) == 1


def test_constructors_run_in_the_source_process_and_in_a_planner_and_tasks_get_its_pickled_copy(traced: Traced) -> None:
    with traced.query() as query:
        for rows in (2, 4, 6):
            traced.head(rows)
            query.run_batch()
    assert [event["role"] for event in traced.calls("DataSourceStreamReader.__init__")] == ["source", "planner"]
    assert {event["role"] for event in traced.calls("read")} == {"task"}


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


def test_reader_between_calls_ends_with_its_killed_parent(traced: Traced) -> None:
    with _driver(traced) as driver:
        driver.wait_for("batch")
        (reader,) = driver.reader_pids
        driver.kill()
        _until(lambda: not is_running(reader))


def test_child_that_holds_a_pipe_from_the_reader_sees_its_end(traced: Traced) -> None:
    with traced.query({"child": "yes"}) as query:
        query.run_batch()
        (child,) = query.reader.descendants()
        query.kill()
        _until(lambda: not is_running(child))


# Offsets


def test_initial_offset_is_called_more_than_once_and_never_persisted(traced: Traced) -> None:
    with traced.query() as query:
        query.crash_at("batch_committed")
        with pytest.raises(DriverCrashedError):
            query.run_batch()
        assert [event["role"] for event in traced.calls("initialOffset")] == ["source", "source"]
        query.restart()
        query.idle(3)
        assert len(traced.calls("initialOffset")) == 2
    assert query.checkpoint.offsets(0) == ['{"_start": 0, "pos": 0}']


def test_first_batch_is_built_even_without_data_and_the_sentinel_can_be_logged(traced: Traced) -> None:
    traced.head(-1)
    with traced.query() as query:
        batch = query.run_trigger()
        assert batch is not None
        assert (batch.batch_id, batch.rows, batch.start) == (0, 0, None)
        assert query.checkpoint.offsets(0) == ['{"initial": true}']
        query.idle(3)


def test_sentinel_is_logged_in_later_batches_while_another_source_has_data(traced: Traced) -> None:
    traced.head(-1)
    with traced.query() as query:
        for number in range(3):
            batch = query.run_trigger(force=True)
            assert batch is not None
            assert query.checkpoint.offsets(number) == ['{"initial": true}']
        traced.head(2)
        batch = query.run_batch()
        assert batch.starts == ('{"initial": true}',)
        assert batch.end == {"_start": 0, "pos": 2}
        assert batch.values("value") == [0, 1]


def test_source_without_new_data_is_not_planned_in_a_batch_of_another_source(traced: Traced) -> None:
    traced.head(2)
    with traced.query() as query:
        query.run_batch()
        planned = len(traced.calls("partitions"))
        batch = query.run_trigger(force=True)
        assert batch is not None
        assert batch.tables == ()
        assert len(traced.calls("partitions")) == planned


def test_offsets_are_compared_as_json_text(traced: Traced) -> None:
    traced.head(3)
    with traced.query({"variant": "other_key_order"}) as query:
        query.run_batch()
        with pytest.raises(UnexpectedBatchError):
            query.idle(1)
        assert query.run_batch().rows == 0


def test_none_is_logged_as_null_and_handed_to_partitions(traced: Traced) -> None:
    traced.head(-1)
    with traced.query({"variant": "none"}) as query:
        for start in (query.restart, lambda: None):
            with pytest.raises(ReaderFailedError, match="cannot plan"):
                query.run_trigger()
            start()
    assert query.checkpoint.offsets(0) == ["null"]
    assert traced.calls("partitions")[-1]["args"] == [{"initial": True}, None]


def test_unfinished_batch_is_planned_after_a_restart_before_any_latest_offset(traced: Traced) -> None:
    traced.head(2)
    with traced.query() as query:
        query.run_batch()
        traced.head(5)
        query.crash_at("offsets_logged")
        with pytest.raises(DriverCrashedError):
            query.run_batch()
        traced.trace.unlink()
        query.restart()
        batch = query.run_trigger()
        assert batch is not None
        assert batch.replayed
        assert batch.values("value") == [2, 3, 4]
    assert [event["call"] for event in traced.calls("partitions", "latestOffset")] == ["partitions"]


def test_commit_is_called_only_while_the_next_batch_is_built(traced: Traced) -> None:
    traced.head(2)
    with traced.query() as query:
        query.run_batch()
        query.idle(5)
        assert traced.calls("commit") == []
        query.restart()
        query.idle(5)
        assert traced.calls("commit") == []
        traced.head(3)
        query.crash_at("offsets_logged")
        with pytest.raises(DriverCrashedError):
            query.run_batch()
        assert traced.calls("commit") == [], "the offsets of the next batch are logged first"
        query.restart()
        query.run_batch()
        assert traced.calls("commit") == [], "the replayed batch commits nothing"
        traced.head(4)
        query.run_batch()
        assert [event["args"] for event in traced.calls("commit")] == [[{"pos": 3}]]


def test_idle_polling_pauses_ten_milliseconds(traced: Traced) -> None:
    with traced.query() as query:
        query.run_batch()
        assert query.poll_interval == 0.01
        started = time.monotonic()
        query.idle(10)
        assert time.monotonic() - started >= 0.1


def test_once_asks_a_single_time_with_read_all_available_and_without_prepare(traced: Traced) -> None:
    traced.head(7)
    with traced.query({"limit": "2"}, trigger="once") as query:
        assert query.run_trigger().values("value") == [*range(7)]
        assert not query.is_running
        with pytest.raises(QueryEndedError):
            query.run_trigger()
    assert [event["args"][1] for event in traced.calls("latestOffset")] == [["ReadAllAvailable"]]
    assert traced.calls("prepareForTriggerAvailableNow") == []


def test_available_now_ends_at_the_first_answer_equal_to_start(traced: Traced) -> None:
    traced.head(5)
    with traced.query({"limit": "2"}, trigger="available_now") as query:
        assert [batch.rows for batch in query.process_available()] == [2, 2, 1]
        assert not query.is_running
    answers = traced.calls("latestOffset")
    assert len(answers) == 4
    assert answers[-1]["result"] == [["pos", 5]]
    assert len(traced.calls("prepareForTriggerAvailableNow")) == 1


def test_available_now_refuses_a_reader_that_does_not_support_it(traced: Traced) -> None:
    query = traced.query({"variant": "old_signature"}, trigger="available_now")
    with pytest.raises(ProtocolError, match="SupportsTriggerAvailableNow"):
        query.start()
    query.close()


def test_batch_read_is_planned_once_and_every_action_reads_the_same_partitions(traced: Traced) -> None:
    traced.head(5)
    with BatchRead(TroubledSource, traced.options(), workers=traced.workers) as read:
        first = read.collect()
        traced.head(9)
        assert read.collect() == first
    assert [table.column("value").to_pylist() for table in first] == [[0, 1], [2, 3, 4]]
    assert len(traced.calls("partitions")) == 1


# Tasks


def test_tasks_run_in_workers_that_are_used_again(traced: Traced) -> None:
    pids = traced.workers.pids
    with traced.query() as query:
        for rows in range(1, 6):
            traced.head(rows)
            query.run_batch()
        query.restart()
    assert traced.workers.pids == pids
    assert all(map(is_running, pids))


def test_option_keys_arrive_lower_cased(traced: Traced) -> None:
    with traced.query({"someOption": "Value"}) as query:
        query.run_batch()
    assert "someoption" in traced.calls("DataSource.__init__")[0]["args"][0]


def test_in_process_workers_give_the_same_rows(traced: Traced) -> None:
    traced.head(9)
    with traced.query(workers=InProcessWorkers()) as query:
        assert query.run_batch().values("value") == [*range(9)]


def test_later_batch_of_another_schema_fails_although_spark_looks_at_the_first_only(traced: Traced) -> None:
    traced.head(4)
    with traced.query({"variant": "other_schema"}) as query, pytest.raises(TaskFailedError, match=r"batch 1 .* schema"):
        query.run_batch()
    assert not query.is_running


def test_partition_read_twice_with_other_rows_is_found(traced: Traced) -> None:
    traced.head(4)
    with traced.query({"variant": "other_rows"}, task_attempts=2) as query, pytest.raises(AttemptsDifferError):
        query.run_batch()


def test_worker_that_dies_in_a_task_fails_the_query(traced: Traced) -> None:
    traced.head(4)
    mine = TaskWorkers(1)
    with traced.query(workers=mine) as query:
        os.kill(mine.pids[0], signal.SIGKILL)
        with pytest.raises(TaskFailedError, match="ended"):
            query.run_batch()
    mine.close()


def test_union_of_a_source_with_itself_is_one_reader_and_two_scans(traced: Traced) -> None:
    traced.head(2)
    source = Source(SOURCE, traced.options(), scans=2)
    with StreamingQuery(source, checkpoint=traced.folder / "checkpoint", workers=traced.workers) as query:
        assert query.run_batch().values("value") == [0, 1, 0, 1]
        assert len(query.readers) == 1


def test_schema_of_the_user_replaces_that_of_the_source(traced: Traced) -> None:
    source = Source(TroubledSource, traced.options(), schema=SCHEMA)
    with StreamingQuery(source, checkpoint=traced.folder / "checkpoint", workers=traced.workers) as query:
        traced.head(1)
        assert query.run_batch().rows == 1


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


def test_failing_sink_ends_the_query_and_the_batch_is_replayed(traced: Traced) -> None:
    def sink(batch_id: int, tables: Sequence[pa.Table]) -> None:
        if not traced.sink.batch_ids():
            traced.sink(batch_id, tables)
            raise ZeroDivisionError
        traced.sink(batch_id, tables)

    traced.head(3)
    with traced.query(sink=sink) as query:
        with pytest.raises(ZeroDivisionError):
            query.run_batch()
        assert not query.is_running
        query.restart()
        assert query.run_batch().replayed
    assert traced.sink.values("value") == [0, 1, 2]


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


def test_driver_process_leaves_no_process_when_its_own_parent_is_killed(traced: Traced) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, json.dumps({"options": traced.options(), "folder": str(traced.folder)})],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    _until((traced.folder / "sink" / "0000000000").exists)
    below = descendants(parent.pid)
    assert len(below) >= 3  # driver, worker, reader
    parent.kill()
    parent.wait()
    _until(lambda: not any(map(is_running, below)))


_PARENT = f"""
import json, sys, time
from connectors.testing.spark_protocol.driver import DriverProcess
asked = json.loads(sys.argv[1])
folder = asked["folder"]
driver = DriverProcess({SOURCE!r}, asked["options"], checkpoint=folder + "/checkpoint", sink=folder + "/sink")
time.sleep(60)
"""


def test_driver_process_that_fails_shows_its_error(traced: Traced) -> None:
    traced.head(-1)
    with _driver(traced, options={"variant": "raise_in_latest"}) as driver:
        with pytest.raises(ProtocolError, match="this reader has no offset"):
            driver.wait_for("batch")
        assert driver.wait(30) == 1


# Failures of the reader process


def test_reader_that_is_killed_ends_the_query_like_a_reset_connection(traced: Traced) -> None:
    with traced.query() as query:
        query.run_batch()
        os.kill(query.reader.pid, signal.SIGKILL)
        with pytest.raises(ReaderDiedError, match="-9"):
            query.run_trigger()
        assert not query.is_running


def test_reader_failpoint_comes_from_the_reader_environment_only(traced: Traced) -> None:
    with traced.query({"failpoint": "traced.latest"}) as query:
        query.run_batch()
        query.restart(reader_environment={"CONNECTORS_FAILPOINTS": "traced.latest=kill:3"})
        with pytest.raises(ReaderDiedError):
            query.idle(3)
        query.restart(reader_environment={})
        query.idle(5)


def test_call_that_does_not_come_back_is_ended_after_its_time(traced: Traced) -> None:
    pause = traced.folder / "pause"
    with traced.query({"pause": str(pause)}) as query:
        # Only now: a start takes longer on a busy machine.
        query.reader.call_timeout = 3.0
        query.reader._socket.settimeout(3.0)
        with pytest.raises(ReaderTimeoutError, match=r"latestOffset took longer than 3\.0 s"):
            query.run_batch()
    assert not query.reader.alive


def test_output_of_the_reader_is_kept(traced: Traced) -> None:
    traced.head(-1)
    with traced.query({"variant": "print"}) as query:
        query.run_batch()
    assert "a line on standard output" in query.reader.log
    assert "a line on standard error" in query.reader.log


def test_hung_up_reader_ends_by_itself(traced: Traced) -> None:
    with traced.query() as query:
        query.crash_at("tasks_done", hang_up_only=True)
        with pytest.raises(DriverCrashedError):
            query.run_batch()
        assert query.reader.wait(60)
    assert len(traced.calls("stop")) == 1


def test_source_that_cannot_be_made_fails_at_the_start(traced: Traced) -> None:
    query = traced.query({"variant": "no_source"})
    with pytest.raises(TaskFailedError, match="this source cannot be made"):
        query.start()
    query.close()


def test_reader_that_cannot_be_made_fails_at_the_start(traced: Traced) -> None:
    query = traced.query({"variant": "no_reader"})
    with pytest.raises(ReaderFailedError, match="this reader cannot be made"):
        query.start()
    query.close()
    assert all(not reader.alive for reader in query.readers)


def test_simple_reader_is_refused(traced: Traced) -> None:
    with (
        traced.query({"variant": "simple"}) as query,
        pytest.raises(ProtocolError, match="simple stream readers"),
    ):
        query.run_batch()


# Waiting


def test_run_batch_without_data_gives_up(traced: Traced) -> None:
    with traced.query() as query:
        query.run_batch()
        with pytest.raises(NoBatchError):
            query.run_batch(timeout=0.1)


def test_process_available_gives_up_on_a_source_that_never_ends(traced: Traced) -> None:
    with traced.query({"variant": "other_key_order"}) as query, pytest.raises(NoBatchError, match="without end"):
        query.process_available(timeout=0.5)


def test_processing_time_polls_once_an_interval(traced: Traced) -> None:
    with traced.query(trigger="processing_time", trigger_interval=0.2) as query:
        with pytest.raises(NoBatchError):
            query.run_until(lambda batches: len(batches) > 1, timeout=0.5)
        assert len(traced.calls("latestOffset")) <= 3


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


def test_sink_counts_a_batch_anew_that_another_one_has_replaced(tmp_path: Path) -> None:
    sink, other = FolderSink(tmp_path), FolderSink(tmp_path)
    sink(0, [_table([1, 2])])
    sink(1, [_table([3])])
    assert sink.rows() == 3
    other(0, [_table([1, 2, 4])])
    other(2, [_table([5])])
    assert sink.rows() == other.rows() == 5
    (tmp_path / f"{1:010d}").unlink()
    assert sink.rows() == 4


def test_old_batches_leave_the_checkpoint(traced: Traced) -> None:
    with traced.query(workers=InProcessWorkers()) as query:
        for _ in range(120):
            query.run_trigger(force=True)
        logged = sorted(int(path.name) for path in (query.checkpoint.folder / "offsets").iterdir())
        assert logged == [*range(20, 120)]
        query.restart()
        assert query.batch_id == 120


def test_checkpoint_of_another_number_of_sources_is_refused(traced: Traced) -> None:
    with traced.query() as query:
        query.run_batch()
    two = traced.query(other_sources=[Source(TroubledSource, traced.options())])
    with pytest.raises(ProtocolError, match="1 sources and the query has 2"):
        two.start()
    two.close()


def test_memory_and_process_of_the_reader_can_be_watched(traced: Traced) -> None:
    with traced.query() as query:
        reader: ReaderProcess = query.reader
        assert reader.resident_bytes() > 10_000_000
        query.kill()
        assert reader.resident_bytes() == 0
        assert not is_running(reader.pid)


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
