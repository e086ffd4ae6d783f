"""What every stream reader must do, because of how Spark calls it; one run for each connector.

The tests are plain functions of a harness and workers, so that `test_wrong_readers.py` can run each against a reader
that breaks just what it is about.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from tests.contract.harness import SourceHarness
from tests.contract.queries import all_gone, latest, limit_of, query_of, read_until, sink_of
from tests.support.spark_protocol.driver import (
    STEPS,
    Batch,
    BatchRead,
    DriverCrashedError,
    DriverProcess,
    InProcessWorkers,
    LostAndDoubled,
    Source,
    Step,
    StreamingQuery,
    Trigger,
    descendants,
    is_running,
)

PARENT_DEATH_SECONDS = 2.0
CHILDREN_SECONDS = 5.0
BUSY_SECONDS = 15.0
"""What a busy machine may add until a process is gone and we see it."""
in_each_log = pytest.mark.parametrize("name", ["", "orders_1"], ids=["log-1", "log-2"])
"""Restarts from an offset log of version 1 and, since it names its source, of version 2."""
READ_ALL = '{"_type": "ReadAllAvailable"}'


def crash(harness: SourceHarness, query: StreamingQuery, step: Step) -> None:
    """Run triggers until the query crashes at a step, as told."""
    query.crash_at(step)
    with contextlib.suppress(DriverCrashedError):
        query.run_until(lambda _batches: False, timeout=harness.patience)


def _rows(query: StreamingQuery, workers: InProcessWorkers, start: str, end: str) -> list[list[object]]:
    """The rows of each partition of a range, planned now by this query's reader."""
    stream = query._streams[0]
    plan = workers.plan(stream.created, streaming=True)
    tables = workers.read([(plan, partition) for partition in query.reader.partitions(start, end)])
    return [table.to_pylist() for table in tables]


# Constructors


def test_constructors_keep_only_options_and_pickle(harness: SourceHarness) -> None:
    asked = {
        "source": harness.source,
        "options": {key.lower(): value for key, value in harness.options().items()},
        "folder": str(harness.folder),
        "batch_read": harness.batch_read,
    }
    command = [sys.executable, "-m", "tests.contract.constructor_probe"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_option_keys_in_any_case_give_the_same_rows(harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = harness.publish(3)
    shouted = {key.upper(): value for key, value in harness.options().items()}
    with query_of(harness, workers, shouted) as query:
        assert sorted(read_until(query, keys, harness)) == sorted(keys)


# The sentinel


def test_initial_offset_is_one_constant(harness: SourceHarness, workers: InProcessWorkers) -> None:
    with query_of(harness, workers) as query:
        first = query.reader.initial_offset()
        assert query.reader.initial_offset() == first
        harness.publish(2)
        query.run_batch(harness.patience)
        assert query.reader.initial_offset() == first
        query.kill()
        query.restart()
        assert query.reader.initial_offset() == first


def test_initial_offset_does_not_ask_the_service(harness: SourceHarness, workers: InProcessWorkers) -> None:
    with harness.stalled(), query_of(harness, workers, call_timeout=min(30, harness.patience)) as query:
        assert isinstance(json.loads(query.reader.initial_offset()), dict)


def test_end_offset_carries_start_exactly_when_its_start_is_the_sentinel(
    harness: SourceHarness, workers: InProcessWorkers
) -> None:
    keys = harness.publish(2)
    with query_of(harness, workers) as query:
        read_until(query, keys, harness)
        more = harness.publish(2)
        assert set(read_until(query, more, harness)) == set(more)
        query.kill()
        query.restart()
        sentinel = query.reader.initial_offset()
        from_sentinel = latest(query.reader, sentinel)
        assert "_start" in json.loads(from_sentinel), "an end computed from the sentinel, in whatever batch"
        ends = [query.checkpoint.offsets(number)[0] for number in range(query.batch_id)]
        for start, end in pairwise([sentinel, *ends]):
            assert ("_start" in json.loads(str(end))) == (start == sentinel), f"from {start} to {end}"


def test_partitions_of_the_sentinel_and_an_end_begin_at_the_resolved_start(
    harness: SourceHarness, workers: InProcessWorkers
) -> None:
    keys = harness.publish(4)
    with query_of(harness, workers) as query:
        batch = query.run_until(lambda batches: any(each.rows for each in batches), harness.patience)[-1]
        sentinel = query.reader.initial_offset()
        first = query.checkpoint.offsets(0)[0]
        assert first is not None
        planned = _rows(query, workers, sentinel, first)
        assert planned == [part.to_pylist() for part in sink_of(harness).partitions(0)]
        assert set(batch.values(harness.key)) <= set(keys)


def test_partitions_of_two_sentinels_are_empty(harness: SourceHarness, workers: InProcessWorkers) -> None:
    harness.publish(2)
    with query_of(harness, workers) as query:
        sentinel = query.reader.initial_offset()
        assert query.reader.partitions(sentinel, sentinel) == []


def test_commit_of_the_sentinel_does_nothing(harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = harness.publish(3)
    with query_of(harness, workers) as query:
        query.reader.commit(query.reader.initial_offset())
        assert sorted(read_until(query, keys, harness)) == sorted(keys)


@pytest.mark.guarantee
@in_each_log
def test_failed_batch_0_is_replayed_with_the_same_rows_after_a_restart(
    harness: SourceHarness, workers: InProcessWorkers, name: str
) -> None:
    keys = harness.publish(4)
    with query_of(harness, workers, name=name) as query:
        crash(harness, query, "tasks_done")
        more = harness.publish(3)
        query.restart()
        replay = query.run_trigger()  # raises if the rows differ from those of the first run
        assert replay is not None
        assert replay.replayed
        assert replay.batch_id == 0
        rest = [key for key in keys + more if key not in replay.values(harness.key)]
        assert sorted(read_until(query, rest, harness)) == sorted(rest)


@pytest.mark.parametrize("step", ["offsets_logged", "batch_committed"])
@in_each_log
def test_latest_is_pinned_by_the_first_batch(
    harness: SourceHarness, workers: InProcessWorkers, name: str, step: Step
) -> None:
    harness.publish(3)
    with query_of(harness, workers, harness.latest_options(), name=name) as query:
        crash(harness, query, step)
        keys = harness.publish(4)
        query.restart()
        assert sorted(read_until(query, keys, harness)) == sorted(keys)


@in_each_log
def test_latest_is_pinned_when_the_sentinel_was_logged_by_an_earlier_batch(
    harness: SourceHarness, workers: InProcessWorkers, name: str
) -> None:
    harness.publish(2)
    with query_of(harness, workers, harness.latest_options(), name=name) as query:
        sentinel = query.reader.initial_offset()
        query.stop()
        query.checkpoint.log_offsets(0, [sentinel])
        query.checkpoint.log_commit(0)
        query.restart()
        batch = query.run_batch(harness.patience)
        assert batch.starts == (sentinel,)
        assert "_start" in batch.end
        keys = harness.publish(3)
        query.restart()
        assert sorted(read_until(query, keys, harness)) == sorted(keys)


# Nothing new


@in_each_log
def test_nothing_new_returns_the_start_unchanged(harness: SourceHarness, workers: InProcessWorkers, name: str) -> None:
    keys = harness.publish(2)
    with query_of(harness, workers, name=name) as query:
        read_until(query, keys, harness)
        query.process_available(harness.patience)
        query.idle(20)
        more = harness.publish(2)
        read_until(query, more, harness)
        query.process_available(harness.patience)
        query.idle(20)
        query.restart()
        query.idle(20)


def test_first_batch_without_data_resolves_the_sentinel(harness: SourceHarness, workers: InProcessWorkers) -> None:
    with query_of(harness, workers) as query:
        batch = query.run_batch(harness.patience)
        assert batch.rows == 0
        assert "_start" in batch.end
        query.idle(20)
        keys = harness.publish(3)
        assert sorted(read_until(query, keys, harness)) == sorted(keys)


@in_each_log
def test_latest_offset_is_never_none(harness: SourceHarness, workers: InProcessWorkers, name: str) -> None:
    triggers: tuple[Trigger, ...] = ("default", "once", "available_now")
    with query_of(harness, workers, name=name) as query:
        query.run_batch(harness.patience)
        read_until(query, harness.publish(2), harness)
        start = str(query.checkpoint.offsets(query.batch_id - 1)[0])
        for trigger in triggers:
            query.restart(trigger=trigger)
            limit = READ_ALL if trigger == "once" else limit_of(query.reader)
            for asked in (start, query.reader.initial_offset()):
                assert isinstance(json.loads(query.reader.latest_offset(asked, limit)), dict)
                assert isinstance(json.loads(query.reader.latest_offset(asked, limit)), dict)


# Offsets as text


def test_offsets_are_text_with_sorted_keys(harness: SourceHarness, workers: InProcessWorkers) -> None:
    texts: list[str] = []
    keys = harness.publish(2)
    with query_of(harness, workers) as query:
        reader = query.reader
        texts.append(reader.initial_offset())
        texts.append(latest(reader, texts[0]))
        read_until(query, keys, harness)
        texts.append(latest(reader, str(query.checkpoint.offsets(0)[0])))
        read_until(query, harness.publish(2), harness)
        number = query.checkpoint.latest_offsets
        assert number is not None
        texts += [str(text) for batch in range(number + 1) for text in query.checkpoint.offsets(batch)]
        texts.append(latest(reader, texts[-1]))
        if (reported := reader.report_latest_offset()) is not None:
            texts.append(reported)
    for text in texts:
        assert text == json.dumps(json.loads(text), sort_keys=True)


# Limits and triggers


def test_default_read_limit_is_never_read_all_available(harness: SourceHarness, workers: InProcessWorkers) -> None:
    for options in (harness.options(), harness.limited_options(3)):
        with query_of(harness, workers, options) as query:
            assert query.reader.default_read_limit()["_type"] != "ReadAllAvailable"


def test_rate_limit_cuts_batches(harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = harness.publish(10)
    with query_of(harness, workers, harness.limited_options(3)) as query:
        assert sorted(read_until(query, keys, harness)) == sorted(keys)
    sink = sink_of(harness)
    sizes = [sum(part.num_rows for part in sink.partitions(batch)) for batch in sink.batch_ids()]
    assert max(sizes) <= 3


def test_a_named_source_keeps_its_limit_repeats_its_batch_and_goes_on(
    harness: SourceHarness, workers: InProcessWorkers
) -> None:
    keys = harness.publish(7)
    named = Source(harness.source, harness.limited_options(3), name="orders_1")
    folder = harness.folder.parent
    with StreamingQuery(named, checkpoint=folder / "checkpoint", sink=sink_of(harness), workers=workers) as query:
        read_until(query, keys, harness)
        query.crash_at("tasks_done", query.batch_id)
        keys += harness.publish(4)
        with pytest.raises(DriverCrashedError):
            query.run_until(lambda _: False, harness.patience)
        crashed = query.batch_id
        query.restart()
        again = query.run_trigger()
        assert again is not None
        assert (again.batch_id, again.replayed) == (crashed, True)
        read_until(query, set(keys) - set(sink_of(harness).values(harness.key)), harness)
        assert (query.checkpoint.folder / "offsets" / "0").read_text().startswith("v2\n{}\norders_1:{")
    sink = sink_of(harness)
    assert sink.lost_and_doubled(keys, harness.key) == LostAndDoubled([], [])
    assert max(sum(part.num_rows for part in sink.partitions(batch)) for batch in sink.batch_ids()) <= 3


@in_each_log
def test_first_call_after_a_start_waits_for_a_fresh_answer(
    harness: SourceHarness, workers: InProcessWorkers, name: str
) -> None:
    keys = harness.publish(4)
    with query_of(harness, workers, name=name) as query:
        first = query.run_trigger()
        assert first is not None
        assert first.rows > 0
        read_until(query, set(keys) - set(first.values(harness.key)), harness)
        query.stop()
        more = harness.publish(4)
        query.start()
        second = query.run_trigger()
        assert second is not None
        assert set(second.values(harness.key)) <= set(more)


def test_available_now_reads_what_was_there_and_ends(harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = harness.publish(7)
    sink = sink_of(harness)

    def growing_sink(batch_id: int, tables: Sequence[pa.Table]) -> None:
        sink(batch_id, tables)
        harness.publish(1)

    options = harness.limited_options(3)
    with query_of(harness, workers, options, trigger="available_now", sink=growing_sink) as query:
        batches = query.process_available(harness.patience)
        assert not query.is_running
    assert all(batch.rows <= 3 for batch in batches)
    assert set(keys) <= set(sink.values(harness.key))


def test_available_now_without_data_ends(harness: SourceHarness, workers: InProcessWorkers) -> None:
    with query_of(harness, workers, trigger="available_now") as query:
        assert sum(batch.rows for batch in query.process_available(harness.patience)) == 0
        assert not query.is_running


def test_once_reads_all_there_is_in_one_batch(harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = harness.publish(7)
    with query_of(harness, workers, harness.limited_options(3), trigger="once") as query:
        batch = query.run_trigger()
        assert batch is not None
        assert sorted(batch.values(harness.key)) == sorted(keys)
        assert not query.is_running


# Planning and reading


def test_planning_is_a_pure_function_of_the_offsets(harness: SourceHarness, workers: InProcessWorkers) -> None:
    with query_of(harness, workers) as query:
        first = read_until(query, harness.publish(5), harness)
        second = read_until(query, harness.publish(5), harness)
        last = query.batch_id - 1
        end = query.checkpoint.offsets(last)[0]
        start = query.checkpoint.offsets(last - 1)[0]
        assert start is not None
        assert end is not None
        planned = _rows(query, workers, start, end)
        assert [row[harness.key] for part in planned for row in part] == (first + second)[-sum(map(len, planned)) :]
        assert _rows(query, workers, start, end) == planned, "planned twice in one process"
        harness.publish(2)
        query.kill()
        query.restart()
        assert _rows(query, workers, start, end) == planned, "planned in a new process before any latestOffset"
        latest(query.reader, end)
        assert _rows(query, workers, start, end) == planned, "planned after a latestOffset"


@in_each_log
def test_unfinished_batch_is_planned_again_alike_before_any_latest_offset(
    harness: SourceHarness, workers: InProcessWorkers, name: str
) -> None:
    with query_of(harness, workers, name=name) as query:
        read_until(query, harness.publish(3), harness)
        keys = harness.publish(5)
        crash(harness, query, "tasks_done")
        more = harness.publish(2)
        query.restart()
        replay = query.run_trigger()  # raises if the rows differ from those of the first run
        assert replay is not None
        assert replay.replayed
        rest = [key for key in keys + more if key not in replay.values(harness.key)]
        assert sorted(read_until(query, rest, harness)) == sorted(rest)


def test_reading_a_partition_twice_gives_identical_rows(harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = harness.publish(9)
    with query_of(harness, workers, task_attempts=2) as query:  # raises if the rows differ
        assert sorted(read_until(query, keys, harness)) == sorted(keys)


def test_every_batch_has_exactly_the_declared_schema(harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = harness.publish(9)
    with query_of(harness, workers) as query:
        batches: list[Batch] = query.run_until(
            lambda got: sum(each.rows for each in got) >= len(keys), harness.patience
        )
        declared = query._streams[0].created.arrow_schema
        assert all(table.schema.equals(declared) for batch in batches for table in batch.tables)


# Idle


def test_idle_latest_offset_is_answered_from_memory(harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = harness.publish(3)
    with query_of(harness, workers, call_timeout=min(30, harness.patience)) as query:
        read_until(query, keys, harness)
        query.process_available(harness.patience)
        query.idle(3)
        with harness.stalled():
            query.idle(50)  # a call that asks the service hangs, and raises ReaderTimeoutError


# Crashes


@pytest.mark.guarantee
@pytest.mark.parametrize("step", STEPS)
@in_each_log
def test_no_row_is_lost_or_doubled_when_the_query_crashes(
    harness: SourceHarness, workers: InProcessWorkers, name: str, step: Step
) -> None:
    keys = harness.publish(4)
    sink = sink_of(harness)
    with query_of(harness, workers, harness.limited_options(4), name=name) as query:
        query.run_batch(harness.patience)
        keys += harness.publish(5)
        crash(harness, query, step)
        keys += harness.publish(2)
        query.restart()
        query.run_until(lambda _batches: sink.rows() >= len(keys), harness.patience)
        query.process_available(harness.patience)
    outcome = sink.lost_and_doubled(keys, harness.key)
    assert outcome.lost == []
    assert outcome.doubled == []


# Processes


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_children_are_gone_soon_after_the_reader(harness: SourceHarness, workers: InProcessWorkers, end: str) -> None:
    keys = harness.publish(3)
    with query_of(harness, workers) as query:
        read_until(query, keys, harness)
        children = query.reader.descendants()
        getattr(query, end)()
        assert all_gone(children, min(CHILDREN_SECONDS + BUSY_SECONDS, harness.patience))


@pytest.mark.guarantee
@in_each_log
def test_start_at_once_after_a_kill_works(harness: SourceHarness, workers: InProcessWorkers, name: str) -> None:
    with query_of(harness, workers, name=name) as query:
        for _ in range(3):
            keys = harness.publish(2)
            assert set(keys) <= set(read_until(query, keys, harness))
            query.kill()
            query.restart()


def _driver(harness: SourceHarness) -> DriverProcess:
    return DriverProcess(
        harness.source,
        harness.options(),
        checkpoint=harness.folder.parent / "checkpoint",
        sink=harness.folder.parent / "sink",
    )


def test_reader_ends_soon_after_its_idle_parent_was_killed(harness: SourceHarness) -> None:
    harness.publish(3)
    with _driver(harness) as driver:
        driver.wait_for("batch")
        (reader,) = driver.reader_pids
        children = descendants(reader)
        driver.kill()
        assert all_gone([reader], min(PARENT_DEATH_SECONDS + BUSY_SECONDS, harness.patience))
        assert all_gone(children, min(CHILDREN_SECONDS + BUSY_SECONDS, harness.patience))


def wait_until_idle(pid: int) -> None:
    """Wait until a process has used next to no processor time for a second: it waits for something."""
    used, since = processor_ticks(pid), time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.1)
        if (now := processor_ticks(pid)) > used + 2:
            used, since = now, time.monotonic()


def processor_ticks(pid: int) -> int:
    """Clock ticks of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_blocking_wait_ends_soon_after_the_parent_was_killed(harness: SourceHarness) -> None:
    harness.publish(3)
    with harness.stalled(), _driver(harness) as driver:
        (reader,) = driver.reader_pids
        wait_until_idle(reader)  # the driver goes on to the first latestOffset at once, which waits for the service
        assert is_running(reader)
        children = descendants(reader)
        driver.kill()
        assert all_gone([reader], min(PARENT_DEATH_SECONDS + BUSY_SECONDS, harness.patience))
        assert all_gone(children, min(CHILDREN_SECONDS + BUSY_SECONDS, harness.patience))


# Batch reads


def test_batch_read_is_planned_once(batch_harness: SourceHarness, workers: InProcessWorkers) -> None:
    keys = batch_harness.publish(7)
    with query_of(batch_harness, workers) as query:
        read_until(query, keys, batch_harness)
    with BatchRead(batch_harness.source, batch_harness.batch_options(), workers=workers) as read:
        first = [table.to_pylist() for table in read.collect()]
        assert sorted(row[batch_harness.key] for part in first for row in part) == sorted(keys)
        batch_harness.publish(3)
        assert [table.to_pylist() for table in read.collect()] == first
