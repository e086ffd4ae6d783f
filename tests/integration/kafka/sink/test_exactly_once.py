"""Exactly-once writes on a real broker: the behaviours of docs/explanation/kafka.md, and the windows around them."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from connectors.core.datasource import CommitMessage, StreamTask
from connectors.core.errors import ConnectorError, DataLossError, SourceGoneError
from connectors.kafka.datasource import KafkaStreamWriter
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.schema import check_columns
from connectors.kafka.sink.exactly_once import KafkaCommitMessage, finish_batch
from connectors.kafka.sink.writer import RecordSink, TransactionalSink
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.support.kafka_rig import LOG_IN, PATIENCE, KafkaRig, text
from tests.support.kafka_task import (
    SCHEMA,
    TaskPlan,
    batches,
    exactly_once,
    run_commit,
    run_process,
    run_task,
    start_process,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.guarantee

FAILPOINTS = ("kafka.fenced", "kafka.marker_read", "kafka.rows_sent", "kafka.marked", "kafka.committed")

_queries = itertools.count()


class Sink:
    """A query that writes to a topic of its own."""

    def __init__(self, kafka: KafkaRig, partitions: int = 2, **options: str) -> None:
        self.kafka = kafka
        self.partitions = partitions
        self.topic = kafka.topic(partitions)
        self.query = f"query-{next(_queries)}"
        self.options = kafka.options(topic=self.topic, **options)
        self.options.pop("subscribe", None)
        self.options.pop("startingOffsets", None)
        self.options["topic"] = self.topic

    def plan(self, batch: int, partition: int, values: str, query: str | None = None, run: str = "run") -> TaskPlan:
        return TaskPlan(self.options, query or self.query, batch, partition, values.split(), run)

    def task(self, batch: int, partition: int, values: str, query: str | None = None, run: str = "run") -> str:
        return run_task(self.plan(batch, partition, values, query, run))

    def commit(self, batch: int, partitions: int, run: str = "run") -> str:
        return run_commit(self.options, self.query, batch, partitions, run)

    def ends(self) -> int:
        """How many offsets the topic has, those of open transactions too."""
        return sum(self.kafka.end(self.topic, partition) for partition in range(self.partitions))

    def seen(self, *, is_open: bool = False) -> list[str]:
        found = self.kafka.read_committed(self.topic, self.partitions, is_open=is_open)
        return sorted(text(message.value() for message in found))


@pytest.fixture
def sink(kafka: KafkaRig) -> Sink:
    return Sink(kafka)


@pytest.mark.parametrize("point", FAILPOINTS)
def test_54_55_a_task_killed_anywhere_writes_its_rows_once(sink: Sink, point: str) -> None:
    assert run_process(sink.plan(0, 0, "a b c"), f"{point}=kill") == "killed"
    is_committed = point == "kafka.committed"
    assert sink.seen(is_open=not is_committed) == (["a", "b", "c"] if is_committed else [])
    again = sink.task(0, 0, "a b c")
    assert again == ("skipped" if point == "kafka.committed" else "written")
    assert sink.task(1, 0, "d") == "written"
    assert sink.seen() == ["a", "b", "c", "d"]


def test_56_when_the_driver_fails_to_commit_all_tasks_skip(sink: Sink) -> None:
    for partition, values in enumerate(("a b", "c", "")):
        assert sink.task(0, partition, values) == "written"
    for partition, values in enumerate(("b a", "c", "")):
        assert sink.task(0, partition, values) == "skipped"
    assert sink.commit(0, 3) == "committed"
    assert sink.seen() == ["a", "b", "c"]


class FailsToCommit(KafkaStreamWriter):
    """The driver's commit raises, and has done nothing."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        raise ConnectionResetError("the driver's commit")


class FailsWhenCommitted(KafkaStreamWriter):
    """The driver's commit raises, and has done all it does."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        raise ConnectionResetError("the driver's commit")


class Driver:
    """What Spark does with the writer of a stream: one for each call of the driver; tasks get theirs by pickle."""

    def __init__(self, sink: Sink, guarantee: str) -> None:
        self.sink = sink
        self.options = sink.options | {"deliveryGuarantee": guarantee}

    def writer(self, kind: type[KafkaStreamWriter] = KafkaStreamWriter) -> KafkaStreamWriter:
        options = parse_write_options(self.options, {}, streaming=True)
        return kind(options, check_columns(SCHEMA, options.topic, timestamps=False))

    def task(self, batch: int, partition: int, rows: Iterable[pa.RecordBatch], run: str) -> KafkaCommitMessage:
        """A task, in the context that Spark's worker gives it."""
        writer = pickle.loads(pickle.dumps(self.writer()))
        properties = {
            "sql.streaming.queryId": self.sink.query,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": run,
        }
        context = TaskContext._getOrCreate()
        context._partitionId, context._localProperties = partition, properties
        try:
            message: KafkaCommitMessage = pickle.loads(pickle.dumps(writer.write(iter(rows))))
        finally:
            TaskContext._setTaskContext(None)
        return message

    def tasks(self, batch: int, values: Sequence[str], run: str) -> list[WriterCommitMessage | None]:
        """The tasks of a batch, each with its values; what they tell the driver."""
        return [self.task(batch, number, batches(each.split()), run) for number, each in enumerate(values)]

    def fail_to_commit(
        self, kind: type[KafkaStreamWriter], messages: list[WriterCommitMessage | None], batch: int
    ) -> None:
        """The commit raises, and Spark calls abort with the messages of all tasks."""
        with pytest.raises(ConnectionResetError):
            self.writer(kind).commit(messages, batch)
        self.writer().abort(messages, batch)

    def finished(self) -> int:
        """The batch that the driver has noted last."""
        return exactly_once(self.options).markers(self.sink.query).finished().batch


def rows_and_repeats(messages: Iterable[WriterCommitMessage | None]) -> list[tuple[int, bool]]:
    """How many rows each task has, and whether an earlier attempt had written them."""
    reports = [message for message in messages if isinstance(message, CommitMessage)]
    return [(report.rows, isinstance(report, KafkaCommitMessage) and report.skipped) for report in reports]


@pytest.mark.parametrize(("kind", "finished"), [(FailsWhenCommitted, 0), (FailsToCommit, -1)])
def test_56_when_the_commit_of_the_driver_raises_abort_undoes_nothing_and_the_replay_writes_nothing(
    sink: Sink, kind: type[KafkaStreamWriter], finished: int
) -> None:
    driver = Driver(sink, "exactly_once")
    written = driver.tasks(0, ("a b", "c", ""), run="one")
    assert rows_and_repeats(written) == [(2, False), (1, False), (0, False)]
    driver.fail_to_commit(kind, written, 0)
    assert driver.finished() == finished
    assert sink.seen() == ["a", "b", "c"], "abort takes nothing away"
    again = driver.tasks(0, ("b a", "c", ""), run="two")
    assert rows_and_repeats(again) == [(2, True), (1, True), (0, True)]
    driver.writer().commit(again, 0)
    driver.writer().commit(driver.tasks(1, ("d", "", "e"), run="two"), 1)
    assert driver.finished() == 1
    assert sink.seen() == ["a", "b", "c", "d", "e"]


def test_56_abort_for_a_task_that_failed_leaves_what_the_others_wrote_and_the_replay_writes_the_rest(
    sink: Sink,
) -> None:
    driver = Driver(sink, "exactly_once")

    written = driver.task(0, 0, batches(["a", "b"]), run="one")
    assert sink.seen() == ["a", "b"]
    before = sink.ends()

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(["c", "d"])
        wait_for(lambda: sink.ends() >= before + 2)
        raise ConnectionResetError("the source of the rows")

    with pytest.raises(ConnectionResetError):
        driver.task(0, 1, broken(), run="one")
    driver.writer().abort([written, None], 0)
    assert sink.seen() == ["a", "b"]
    again = driver.tasks(0, ("a b", "c d"), run="two")
    assert rows_and_repeats(again) == [(2, True), (2, False)]
    driver.writer().commit(again, 0)
    assert sink.seen() == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("both_paths")
def test_at_least_once_abort_leaves_what_was_written_and_the_replay_writes_it_again(kafka: KafkaRig) -> None:
    sink = Sink(kafka)
    driver = Driver(sink, "at_least_once")
    written = driver.tasks(0, ("a b", "c", ""), run="one")
    driver.fail_to_commit(FailsWhenCommitted, written, 0)
    assert sink.seen() == ["a", "b", "c"]
    again = driver.tasks(0, ("a b", "c", ""), run="two")
    assert rows_and_repeats(again) == [(2, False), (1, False), (0, False)]
    driver.writer().commit(again, 0)
    assert sink.seen() == ["a", "a", "b", "b", "c", "c"]


def paused(plan: TaskPlan, flag: Path) -> subprocess.Popen[str]:
    """A task that has written its rows and marker, and has not committed them."""
    task = start_process(plan, f"kafka.marked=pause:{flag}")
    while not flag.exists():
        assert task.poll() is None
        time.sleep(0.02)
    return task


def outcome(task: subprocess.Popen[str], flag: Path) -> str:
    """What becomes of a paused task that goes on."""
    flag.unlink()
    output, _ = task.communicate(timeout=60)
    return str(json.loads(output.splitlines()[-1]))


def test_57_a_zombie_is_fenced(sink: Sink, tmp_path: Path) -> None:
    flag = tmp_path / "paused"
    zombie = paused(sink.plan(0, 0, "a b"), flag)
    assert sink.task(0, 0, "a b") == "written"
    assert outcome(zombie, flag) == "KAFKA_FENCED"
    assert sink.seen() == ["a", "b"]


def test_57_two_drivers_write_each_row_once(sink: Sink) -> None:
    outcomes: list[str] = []

    def drive() -> None:
        for batch in range(4):
            # They fence each other again and again; a driver that Spark starts anew tries as often as it takes.
            while (outcome := sink.task(batch, 0, f"{batch}a {batch}b")) not in {
                "written",
                "skipped",
                "KAFKA_CHECKPOINT_BEHIND",
            }:
                outcomes.append(outcome)

    threads = [threading.Thread(target=drive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {"KAFKA_FENCED", "KAFKA_PRODUCER_FAILED"}, "nothing but the other driver is in the way"
    assert sink.seen() == sorted(f"{batch}{letter}" for batch in range(4) for letter in "ab")


def test_57_a_call_after_the_producer_was_fenced_says_so(sink: Sink) -> None:
    settings = exactly_once(sink.options).options.client
    zombie, later = (RecordSink(settings, {"transactional.id": sink.query}) for _ in range(2))
    zombie.producer.init_transactions(PATIENCE)
    zombie.producer.begin_transaction()
    later.producer.init_transactions(PATIENCE)

    def refused() -> KafkaError:
        while True:
            try:
                zombie.producer.produce(sink.topic, b"late")
            except KafkaException as error:
                return error.args[0]
            time.sleep(0.02)

    problem = refused()
    assert problem.name() == "_FATAL", "the client has its reason, and this call does not give it"
    while (error := zombie.refusal(problem, sink.topic)).code == "KAFKA_PRODUCER_FAILED":
        time.sleep(0.02)  # the reason is on its way to where it is asked for
    assert error.code == "KAFKA_FENCED"
    assert zombie.refusal(refused(), sink.topic).code == "KAFKA_PRODUCER_FAILED", "it is told once"
    for each in (zombie, later):
        each.discard()
    assert sink.seen() == []


def test_a_partition_that_is_added_within_a_transaction_is_written_in_it(kafka: KafkaRig) -> None:
    sink = Sink(kafka, partitions=1)
    task = RecordSink(exactly_once(sink.options).options.client, {"transactional.id": sink.query})
    task.producer.init_transactions(PATIENCE)
    task.producer.begin_transaction()
    task.send([(sink.topic, None, b"a", 0, 0, None)])
    task.finish()  # so that the client knows the topic
    sink.partitions = 2
    kafka.grow(sink.topic, 2)
    task.send([(sink.topic, None, b"b", 0, 0, None), (sink.topic, None, b"c", 1, 0, None)])
    task.finish()
    assert sink.seen(is_open=True) == []
    task.producer.commit_transaction(PATIENCE)
    task.discard()
    assert sink.seen() == ["a", "b", "c"]


def threads() -> int:
    """How many threads this process has, those of C libraries too."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def test_an_attempt_closes_its_client_when_it_ends(sink: Sink) -> None:
    assert sink.task(0, 0, "a b") == "written"
    gc.collect()
    before = threads()
    gc.disable()  # it would find the clients too, after up to a hundred tasks
    try:
        for batch in range(1, 6):
            assert sink.task(batch, 0, "a b") == "written"
            assert sink.task(batch, 0, "a") == "KAFKA_REPLAY_DIFFERS"
            assert sink.commit(batch, 1, run=f"run-{batch}") == "committed"
        assert threads() < before + 5, "a client has four threads"
    finally:
        gc.enable()


def test_58_a_new_checkpoint_writes_anew(sink: Sink) -> None:
    assert sink.task(0, 0, "a") == "written"
    assert sink.task(0, 0, "a", query=f"{sink.query}-new") == "written"
    assert sink.seen() == ["a", "a"]


@pytest.mark.parametrize("again", ["a x", "a", "a b b", ""])
def test_59_a_replay_with_other_rows_is_caught(sink: Sink, again: str) -> None:
    assert sink.task(0, 0, "a b") == "written"
    assert sink.task(0, 0, again) == "KAFKA_REPLAY_DIFFERS"
    assert sink.task(0, 0, "b a") == "skipped", "the order of rows does not count"
    assert sink.seen() == ["a", "b"]


def test_60_an_empty_partition_writes_a_marker(sink: Sink) -> None:
    assert sink.task(0, 0, "") == "written"
    assert sink.task(0, 0, "") == "skipped"
    assert sink.task(1, 0, "") == "written"
    assert sink.seen() == []


def test_partitions_may_grow_between_batches(sink: Sink) -> None:
    for partition in range(8):
        assert sink.task(0, partition, f"a{partition}") == "written"
    assert sink.commit(0, 8) == "committed"
    for partition in range(16):
        assert sink.task(1, partition, f"b{partition}") == "written"
    assert sink.commit(1, 16) == "committed"
    for partition in range(4):
        assert sink.task(2, partition, f"c{partition}") == "written"
    assert sink.commit(2, 4) == "committed"
    assert len(sink.seen()) == 28


@pytest.mark.parametrize("known", [True, False])
def test_fewer_partitions_in_a_replay_are_caught_when_a_partition_beyond_them_was_written(
    sink: Sink, known: bool
) -> None:
    batch = 1 if known else 0
    if known:
        for partition in range(8):
            sink.task(0, partition, f"a{partition}")
        assert sink.commit(0, 8) == "committed"
    assert sink.task(batch, 6, "lost") == "written"
    for partition in range(4):
        assert sink.task(batch, partition, f"b{partition}") == "written"
    assert sink.commit(batch, 4, "restarted") == "KAFKA_LAYOUT_CHANGED"
    assert sink.commit(batch, 4, "restarted") == "KAFKA_LAYOUT_CHANGED", "again and again, until somebody looks"
    assert sink.commit(batch, 8, "restarted") == "committed"


@pytest.mark.parametrize("runs", [("first", "second"), ("", "")], ids=["known", "unknown"])
def test_fewer_partitions_in_a_replay_are_caught_by_a_process_that_served_the_run_before(
    sink: Sink, runs: tuple[str, str]
) -> None:
    for partition in range(4):
        sink.task(0, partition, f"a{partition}")
    assert sink.commit(0, 4, runs[0]) == "committed"
    assert sink.task(1, 7, "lost") == "written"  # of 8 partitions, before the query was stopped
    for partition in range(4):
        assert sink.task(1, partition, f"b{partition}") == "written"
    assert sink.commit(1, 4, runs[1]) == "KAFKA_LAYOUT_CHANGED"


def test_a_batch_repeated_in_more_partitions_is_found_before_these_write(sink: Sink) -> None:
    for partition in range(2):
        assert sink.task(0, partition, f"a{partition}", run="one") == "written"
    assert sink.commit(0, 2, "one") == "committed"
    for partition in (2, 3):  # Spark died before it logged the batch, and has more cores now
        assert sink.task(0, partition, f"a{partition}", run="two") == "KAFKA_LAYOUT_CHANGED"
    assert sink.seen() == ["a0", "a1"]
    for partition in range(2):
        assert sink.task(0, partition, f"a{partition}", run="three") == "skipped", "the layout is put back"
    assert sink.commit(0, 2, "three") == "committed"


def test_a_batch_repeated_in_more_partitions_is_found_by_one_that_had_an_earlier_batch(sink: Sink) -> None:
    for batch, partitions in ((0, 4), (1, 2)):
        for partition in range(partitions):
            assert sink.task(batch, partition, f"{batch}{partition}", run="one") == "written"
        assert sink.commit(batch, partitions, "one") == "committed"
    assert sink.task(1, 3, "13", run="two") == "KAFKA_LAYOUT_CHANGED"
    sink.options["onMissingMarker"] = "write"
    assert sink.task(1, 3, "13", run="two") == "KAFKA_LAYOUT_CHANGED", "no marker of it can be missing"
    assert sink.seen() == ["00", "01", "02", "03", "10", "11"]


def test_a_finished_batch_whose_marker_is_gone_is_written_only_where_that_is_asked_for(
    kafka: KafkaRig, sink: Sink
) -> None:
    for partition in range(2):
        assert sink.task(0, partition, f"a{partition}", run="one") == "written"
    assert sink.commit(0, 2, "one") == "committed"
    kafka.delete_groups(f"kafka_py-{sink.query}-1")
    assert sink.task(0, 1, "a1", run="two") == "KAFKA_LAYOUT_CHANGED"
    sink.options["onMissingMarker"] = "write"
    assert sink.task(0, 1, "a1", run="two") == "written"
    assert sink.task(0, 2, "a2", run="two") == "KAFKA_LAYOUT_CHANGED"
    assert sink.seen() == ["a0", "a1", "a1"]


def test_an_older_copy_of_a_checkpoint_is_caught_by_a_partition_without_a_marker_of_its_own(sink: Sink) -> None:
    for batch in range(3):
        assert sink.task(batch, 0, str(batch), run="one") == "written"
        assert sink.commit(batch, 1, "one") == "committed"
    assert sink.task(1, 1, "1", run="two") == "KAFKA_CHECKPOINT_BEHIND"
    assert sink.seen() == ["0", "1", "2"]


def test_a_process_looks_at_what_the_driver_noted_only_for_the_first_batch_it_has_in_a_run(sink: Sink) -> None:
    for partition in (0, 3):
        assert sink.task(0, partition, f"a{partition}", run="one") == "written"
    assert sink.commit(1, 2, "what another driver has noted") == "committed"
    assert sink.task(1, 3, "b", run="two") == "KAFKA_LAYOUT_CHANGED"
    assert sink.task(1, 3, "b", run="one") == "written", "one look for each batch would cost more than it gives"


def test_57_a_zombie_of_a_partition_that_is_no_more_is_fenced_before_the_batch_is_logged(
    sink: Sink, tmp_path: Path
) -> None:
    for partition in range(2):
        assert sink.task(0, partition, f"a{partition}", run="one") == "written"
    assert sink.commit(0, 2, "one") == "committed"
    flag = tmp_path / "paused"
    zombie = paused(sink.plan(1, 1, "b1", run="one"), flag)
    assert sink.task(1, 0, "b0 b1", run="two") == "written", "a restart with one partition"
    assert sink.commit(1, 1, "two") == "committed"
    assert outcome(zombie, flag) == "KAFKA_FENCED"
    assert sink.seen() == ["a0", "a1", "b0", "b1"]


def test_57_a_zombie_below_the_highest_marker_is_fenced_although_no_driver_noted_a_width(
    sink: Sink, tmp_path: Path
) -> None:
    assert sink.task(0, 3, "b", run="one") == "written"
    flag = tmp_path / "paused"
    zombie = paused(sink.plan(0, 2, "a", run="one"), flag)
    assert sink.task(0, 0, "a", run="two") == "written"
    assert sink.commit(0, 1, "two") == "KAFKA_LAYOUT_CHANGED"
    assert outcome(zombie, flag) == "KAFKA_FENCED"
    assert sink.seen() == ["a", "b"]


def test_partitions_beyond_the_present_ones_that_wrote_no_row_are_no_duplicates(sink: Sink) -> None:
    for partition in range(4):
        assert sink.task(0, partition, "", run="one") == "written"
    assert sink.task(0, 0, "", run="two") == "skipped"
    assert sink.commit(0, 1, "two") == "committed"


def test_all_partitions_that_wrote_too_much_are_named_in_one_error(sink: Sink) -> None:
    for partition in range(14):
        assert sink.task(0, partition, "" if partition == 1 else "a b", run="one") == "written"
    with pytest.raises(DataLossError, match="KAFKA_LAYOUT_CHANGED") as caught:
        finish_batch(exactly_once(sink.options), sink.query, 0, 1, "two")
    assert "24 rows" in caught.value.what
    named = [int(number) for number in re.findall(rf"{sink.query}-(\d+)", caught.value.where)]
    assert named == list(range(2, 12))
    assert "2 more" in caught.value.where


def test_fewer_partitions_in_a_replay_are_caught_when_a_present_partition_was_written(sink: Sink) -> None:
    assert sink.task(0, 2, "x") == "written"
    assert sink.task(0, 2, "x y") == "KAFKA_REPLAY_DIFFERS"


def test_a_missing_marker_is_an_error_only_below_the_width(kafka: KafkaRig) -> None:
    sink = Sink(kafka)
    assert sink.task(0, 0, "a") == "written"
    assert sink.commit(0, 1) == "committed"
    assert sink.task(1, 1, "b") == "written", "a partition that never was"
    sink.query = "restored"
    assert sink.task(5, 0, "c") == "KAFKA_MARKER_MISSING"
    sink.options["onMissingMarker"] = "write"
    assert sink.task(5, 0, "c") == "written"
    assert sink.seen() == ["a", "b", "c"]


def test_a_marker_that_expired_while_the_query_ran_is_missed_only_by_the_first_batch_of_a_run(
    kafka: KafkaRig, sink: Sink
) -> None:
    for partition in range(4):
        assert sink.task(0, partition, f"a{partition}") == "written"
    assert sink.commit(0, 4) == "committed"
    for batch in (1, 2):  # for long there is one partition only
        assert sink.task(batch, 0, f"b{batch}") == "written"
        assert sink.commit(batch, 1) == "committed"
    kafka.delete_groups(*(f"kafka_py-{sink.query}-{partition}" for partition in (1, 2, 3)))
    assert sink.task(3, 2, "c") == "written", "the batch before ended in this run"
    assert sink.task(3, 2, "c") == "skipped"
    assert run_task(replace(sink.plan(3, 3, "d"), run="after a restart")) == "KAFKA_MARKER_MISSING"
    assert sink.commit(3, 4) == "committed"
    assert sink.task(5, 3, "e") == "KAFKA_MARKER_MISSING", "nothing says that batch 4 ended"


def test_the_driver_looks_for_a_larger_layout_when_a_run_begins_and_when_the_layout_changes(sink: Sink) -> None:
    assert sink.task(0, 0, "a") == "written"
    assert sink.commit(0, 2, "one") == "committed"
    assert sink.task(1, 3, "what another driver has written") == "written"
    assert sink.commit(1, 1, "one") == "KAFKA_LAYOUT_CHANGED"
    assert sink.commit(1, 2, "one") == "committed", "one look for each batch would cost more than it gives"
    assert sink.commit(1, 2, "two") == "KAFKA_LAYOUT_CHANGED"


def test_an_older_copy_of_a_checkpoint_is_caught(sink: Sink) -> None:
    for batch in range(3):
        assert sink.task(batch, 0, str(batch)) == "written"
    assert sink.task(1, 0, "1") == "KAFKA_CHECKPOINT_BEHIND"


@pytest.mark.parametrize("more", [1, 0], ids=["before the last row", "after the last row"])
def test_a_transaction_that_was_open_for_too_long_names_its_limit(kafka: KafkaRig, more: int) -> None:
    sink = Sink(kafka, kafka__transaction__timeout__ms="5000", kafka__delivery__timeout__ms="4500")

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from batches(["a", "b"])
        wait_for(lambda: sink.ends() >= 2)
        kafka.wait_for_ends(sink.topic, sink.partitions)  # the broker ends it
        yield from batches(["c"] * more)

    with pytest.raises(ConnectorError) as caught:
        exactly_once(sink.options).write(slowly(), StreamTask(sink.query, 0, 0), "run")
    assert caught.value.code == "KAFKA_TRANSACTION_TIMEOUT"
    assert "kafka.transaction.timeout.ms" in caught.value.action
    assert "transaction.max.timeout.ms" in caught.value.action
    for option in ("kafka.transaction.timeout.ms", "kafka.delivery.timeout.ms"):
        del sink.options[option]
    assert sink.task(0, 0, "a b") == "written"
    assert sink.seen() == ["a", "b"]


def test_a_limit_of_transactions_that_brokers_do_not_allow_is_named(kafka: KafkaRig) -> None:
    sink = Sink(kafka, kafka__transaction__timeout__ms="900001")
    with pytest.raises(ConnectorError) as caught:
        exactly_once(sink.options).write(batches(["a"]), StreamTask(sink.query, 0, 0), "run")
    assert caught.value.code == "KAFKA_TRANSACTION_TIMEOUT"
    assert "kafka.transaction.timeout.ms" in caught.value.action
    assert "transaction.max.timeout.ms" in caught.value.action


def test_topics_from_a_column_need_a_topic_for_markers(kafka: KafkaRig) -> None:
    sink = Sink(kafka)
    assert sink.options.pop("topic") == sink.topic
    with pytest.raises(Exception, match="needs the option markerTopic"):
        exactly_once(sink.options)


@pytest.mark.parametrize("option", ["topic", "markerTopic"])
def test_a_topic_that_is_not_there_stops_the_query_on_the_driver_before_a_task_writes(
    kafka: KafkaRig, option: str
) -> None:
    sink = Sink(kafka)
    sink.options[option] = "no-such-topic"
    with pytest.raises(SourceGoneError) as caught:
        exactly_once(sink.options)
    assert caught.value.where == f"{option} no-such-topic"
    assert option in caught.value.action


def test_a_topic_for_markers_that_is_not_there_is_an_error(kafka: KafkaRig) -> None:
    sink = Sink(kafka, markerTopic="no-such-topic")
    assert sink.task(0, 0, "a") == "KAFKA_UNKNOWN_TOPIC_OR_PARTITION"
    assert sink.seen() == []


def test_a_refused_log_in_is_named_after_the_first_call(kafka: KafkaRig) -> None:
    refused = LOG_IN | {"kafka.sasl.password": "wrong-secret"}
    sink = Sink(kafka, **{key.replace(".", "__"): value for key, value in refused.items()})
    sink.options["kafka.bootstrap.servers"] = kafka.broker.sasl_endpoint
    assert sink.task(0, 0, "a") == "KAFKA_LOG_IN"


@pytest.fixture(scope="module")
def own_broker() -> Iterator[KafkaBroker]:
    """A broker that tests may kill."""
    if reason := find_broker().reason:
        pytest.skip(reason)
    with KafkaBroker(settings={"broker.session.timeout.ms": "4000"}) as broker:  # it comes back that late, and stalls
        yield broker


def test_a_broker_restart_between_batches_changes_nothing(own_broker: KafkaBroker, tmp_path: Path) -> None:
    sink = Sink(KafkaRig(own_broker, tmp_path))
    assert sink.task(0, 0, "a b") == "written"
    own_broker.restart()
    assert sink.task(0, 0, "a b") == "skipped"
    assert sink.task(1, 0, "c") == "written"
    assert sink.commit(1, 1) == "committed"
    assert sink.seen() == ["a", "b", "c"]


def test_the_driver_waits_for_a_broker_that_starts_again(own_broker: KafkaBroker, tmp_path: Path) -> None:
    sink = Sink(KafkaRig(own_broker, tmp_path))
    restarting = threading.Thread(target=own_broker.restart)
    restarting.start()
    outcomes = set()
    batches = itertools.count()
    while restarting.is_alive():
        outcomes.add(sink.commit(next(batches), 1, run="one"))
    restarting.join()
    assert outcomes | {sink.commit(next(batches), 1, run="one")} == {"committed"}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("kafka.marker_read", marks=pytest.mark.long),
        "kafka.rows_sent",
        pytest.param("kafka.marked", marks=pytest.mark.long),
    ],
)
def test_a_broker_restart_inside_a_batch_writes_its_rows_once(
    own_broker: KafkaBroker, tmp_path: Path, point: str
) -> None:
    sink = Sink(KafkaRig(own_broker, tmp_path))
    flag = tmp_path / "paused"
    task = start_process(sink.plan(0, 0, "a b c"), f"{point}=pause:{flag}")
    while not flag.exists():
        assert task.poll() is None
        time.sleep(0.02)
    own_broker.restart()
    flag.unlink()
    output, errors = task.communicate(timeout=100)
    assert task.returncode == 0, errors
    first = json.loads(output.splitlines()[-1])
    again = sink.task(0, 0, "a b c")
    assert (first, again) in {("written", "skipped"), ("KAFKA_UNAVAILABLE", "written"), ("KAFKA_ERROR", "written")}
    assert sink.seen() == ["a", "b", "c"]


def test_a_transaction_is_whole_or_not_committed_while_the_leaders_of_a_topic_begin(kafka: KafkaRig) -> None:
    # The broker refuses a record of a partition that it does not lead yet, and may take the next one.
    partitions, each = 200, 4
    given = kafka.options(deliveryGuarantee="exactly_once", kafka__batch__num__messages="1", kafka__linger__ms="0")
    settings = parse_write_options(given | {"topic": "any"}, {}, streaming=True).client
    for name in (kafka.name() for _ in range(2)):
        rows = [(name, None, b"%d" % n, part, 0, None) for n in range(each) for part in range(partitions)]
        outcome = "committed"
        try:
            with TransactionalSink(settings, kafka.name("transaction")) as transaction:
                transaction.fence()
                transaction.begin()
                making = kafka.admin.create_topics([NewTopic(name, partitions, 1)])
                transaction.sink.send(rows)
                transaction.sink.finish()
                transaction.commit()
        except ConnectorError as error:
            if (outcome := error.code) != "KAFKA_WRITE_UNCONFIRMED":
                raise
        making[name].result()
        found = Counter((message.partition(), message.value()) for message in kafka.read_committed(name, partitions))
        wanted = {"committed": Counter((row[3], row[2]) for row in rows), "KAFKA_WRITE_UNCONFIRMED": Counter()}
        assert found == wanted[outcome]
        kafka.delete_topic(name)


def test_a_row_without_a_key_for_a_compacted_topic_is_named_and_nothing_is_written(kafka: KafkaRig) -> None:
    topic = kafka.topic(1, cleanup_policy="compact")
    sink = Sink(kafka, partitions=1)
    task = StreamTask(sink.query, 0, 0)
    rows = pa.RecordBatch.from_pydict({"key": ["k", None], "value": [b"first", b"second"]}, batches(["v"])[1].schema)
    with pytest.raises(ConnectorError, match=rf"KAFKA_RECORD_INVALID.*1 of them without a key.*\({topic}-0\)"):
        exactly_once(sink.options | {"topic": topic}).write([rows], task, "run")
    assert kafka.read_committed(topic, 1) == []
