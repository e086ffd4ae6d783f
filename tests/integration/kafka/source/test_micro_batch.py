"""The stream source on a real broker: the behaviours of docs/explanation/kafka.md, by their numbers."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.source import parse_read_options
from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.kafka.source.micro_batch import KafkaStream
from tests.support.kafka_busy import busy_stream
from tests.support.kafka_rig import PATIENCE, SOURCE, KafkaRig, text
from tests.support.spark_protocol.driver import Batch, DriverCrashedError, ReaderFailedError, StreamingQuery

STRATEGIES = ("subscribe", "subscribePattern", "assign")
STARTS = ("latest", "earliest", "specific", "timestamps", "timestamp")


def drain(query: StreamingQuery) -> list[Batch]:
    """Run batches until there is nothing new of what was there before this call."""
    # The first trigger after this pause waits for its own answer about the newest offsets, however long that takes; an
    # idle query's would go on with the last one. No event shows the pause: it is time between two triggers.
    time.sleep(0.26)
    return query.process_available(PATIENCE)


def values(batches: Sequence[Batch]) -> list[str]:
    return [each for batch in batches for each in text(batch.values("value"))]


def sizes(batches: Sequence[Batch]) -> list[int]:
    return [batch.rows for batch in batches]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize(("strategy", "start"), list(itertools.product(STRATEGIES, STARTS)))
def test_01_every_way_to_choose_partitions_and_a_start(
    kafka: KafkaRig, strategy: str, start: str, fail_on_data_loss: str
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, ["old"], timestamp=1000)
    kafka.send(topic, ["old"], partition=1, timestamp=1000)
    cut = {"0": 2000, "1": 2000}
    chosen = {
        "subscribe": {"subscribe": topic},
        "subscribePattern": {"subscribePattern": topic.replace("-", ".")},
        "assign": {"assign": {topic: [0, 1]}},
    }[strategy]
    started = {
        "latest": {"startingOffsets": "latest"},
        "earliest": {"startingOffsets": "earliest"},
        "specific": {"startingOffsets": {topic: {"0": 1, "1": -1}}},
        "timestamps": {"startingOffsetsByTimestamp": {topic: cut}},
        "timestamp": {"startingTimestamp": "2000"},
    }[start]
    if start in {"timestamps", "timestamp"}:
        kafka.send(topic, ["new"], timestamp=2000)
        kafka.send(topic, ["new"], partition=1, timestamp=3000)
    with kafka.query(kafka.options(**chosen, **started, failOnDataLoss=fail_on_data_loss)) as query:
        found = values(drain(query))
        if start not in {"timestamps", "timestamp"}:
            kafka.send(topic, ["new"])
            kafka.send(topic, ["new"], partition=1)
            found += kafka.values(query, 2)
    assert sorted(found) == ["new", "new"] + (["old", "old"] if start == "earliest" else [])


def test_02_specific_offsets_are_read_from_and_a_restart_goes_on(kafka: KafkaRig) -> None:
    topic = kafka.topic(5)
    for partition, sent in enumerate(([-20, -21, -22], [-10, -11, -12], [0, 1, 2], [10, 11, 12], [20, 21, 22])):
        kafka.send(topic, sent, partition)
    starts = {"0": -2, "1": -1, "2": 0, "3": 1, "4": 2}
    with kafka.query(kafka.options(topic, startingOffsets={topic: starts})) as query:
        assert sorted(values(drain(query)), key=int) == ["-22", "-21", "-20", "0", "1", "2", "11", "12", "22"]
        query.restart()
        assert values(drain(query)) == []
        kafka.send(topic, [30, 31])
        assert kafka.values(query, 2) == ["30", "31"]


def test_03_partitions_added_while_running_are_read_from_their_first_record(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    with kafka.query(kafka.options(topic, startingOffsets="latest")) as query:
        drain(query)
        kafka.grow(topic, 3)
        for partition in range(3):
            kafka.send(topic, range(partition * 10, partition * 10 + 10), partition)
        assert sorted(kafka.values(query, 30), key=int) == [str(each) for each in range(30)]


def test_04_a_restart_reads_exactly_what_was_added_meanwhile(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(5))
    with kafka.query(kafka.options(topic)) as query:
        assert len(values(drain(query))) == 5
        query.stop()
        kafka.send(topic, range(5, 9), 1)
        query.restart()
        assert values(drain(query)) == ["5", "6", "7", "8"]


@pytest.mark.parametrize("options", [{}, {"startingOffsetsByTimestampStrategy": "Error"}])
def test_05_a_starting_time_that_no_record_has_reached_is_an_error(kafka: KafkaRig, options: dict[str, str]) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, ["old"], timestamp=1000)
    with (
        kafka.query(kafka.options(topic, startingTimestamp="5000", **options)) as query,
        pytest.raises(ReaderFailedError, match=f"No offset matched from request of topic-partition {topic}-0 and time"),
    ):
        drain(query)


def test_05_such_a_time_stands_for_the_end_if_asked_for(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [20, 21, 22], timestamp=1000)
    options = kafka.options(topic, startingTimestamp="5000", startingOffsetsByTimestampStrategy="LATEST")
    with kafka.query(options) as query:
        assert values(drain(query)) == []
        kafka.send(topic, [23, 24, 25], timestamp=1000)
        assert kafka.values(query, 3) == ["23", "24", "25"]


def test_06_max_offsets_per_trigger_is_shared_among_partitions_and_holds_after_a_restart(kafka: KafkaRig) -> None:
    topic = kafka.topic(3)
    kafka.send(topic, range(100, 201), 0)
    kafka.send(topic, range(10, 21), 1)
    kafka.send(topic, [1], 2)
    with kafka.query(kafka.options(topic, maxOffsetsPerTrigger="10")) as query:
        first = sorted(values([query.run_batch()]), key=int)
        assert first == [str(each) for each in (1, 10, *range(100, 108))]
        second = sorted(values([query.run_batch()]), key=int)
        assert second == [str(each) for each in (11, *range(108, 117))]
        query.restart()
        third = sorted(values([query.run_batch()]), key=int)
        assert third == [str(each) for each in (12, *range(117, 126))]
        rest = values(drain(query))
    assert sorted(map(int, first + second + third + rest)) == [1, *range(10, 21), *range(100, 201)]


def test_07_the_largest_limit_does_not_overflow(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(5))
    with kafka.query(kafka.options(topic, maxOffsetsPerTrigger=str(2**63 - 1))) as query:
        assert len(values(drain(query))) == 5


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def end_once_seen(stream: KafkaStream, start: dict[str, Any], where: TopicPartition, wanted: int) -> dict[str, Any]:
    """The end of the next batch, asked for until so many records of a partition were seen."""
    patience = time.monotonic() + PATIENCE
    while True:
        end = stream.latest_offset(start, everything=False)
        if (stream.report_latest_offset() or {})[where.topic][str(where.partition)] == wanted:
            return end
        assert time.monotonic() < patience


def test_08_a_minimum_delays_a_batch_until_there_is_enough_or_time_is_over(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    clock = Clock()
    raw = kafka.options(topic, minOffsetsPerTrigger="15", maxTriggerDelay="5s")
    stream = KafkaStream(parse_read_options(raw, {}, streaming=True), clock)
    where = TopicPartition(topic, 0)
    kafka.send(topic, range(2))
    first = stream.latest_offset({"initial": True, "v": 1}, everything=False)
    assert first[topic] == {"0": 2}
    kafka.send(topic, range(14))
    assert end_once_seen(stream, first, where, 16) == first
    kafka.send(topic, range(1))
    second = end_once_seen(stream, first, where, 17)
    assert second[topic] == {"0": 17}
    kafka.send(topic, range(3))
    assert end_once_seen(stream, second, where, 20) == second
    clock.now = 4.9
    assert end_once_seen(stream, second, where, 20) == second
    clock.now = 5.0
    assert end_once_seen(stream, second, where, 20)[topic] == {"0": 20}
    stream.stop()


def test_09_a_delay_that_is_over_makes_a_batch_of_less_than_the_minimum_and_the_maximum_still_holds(
    kafka: KafkaRig,
) -> None:
    topic = kafka.topic(1)
    clock = Clock()
    raw = kafka.options(topic, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="8", maxTriggerDelay="5s")
    stream = KafkaStream(parse_read_options(raw, {}, streaming=True), clock)
    where = TopicPartition(topic, 0)
    kafka.send(topic, range(20))
    first = stream.latest_offset({"initial": True, "v": 1}, everything=False)
    second = end_once_seen(stream, first, where, 20)
    assert (first[topic], second[topic]) == ({"0": 8}, {"0": 16})
    assert end_once_seen(stream, second, where, 20) == second, "4 are fewer than the minimum"
    clock.now = 5.0
    third = end_once_seen(stream, second, where, 20)
    assert third[topic] == {"0": 20}
    kafka.send(topic, range(4))
    assert end_once_seen(stream, third, where, 24) == third, "the delay begins anew with each batch"
    kafka.send(topic, range(7))
    assert end_once_seen(stream, third, where, 31)[topic] == {"0": 28}
    stream.stop()


def test_09_minimum_maximum_and_delay_together(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    options = kafka.options(topic, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="8", maxTriggerDelay="1h")
    kafka.send(topic, range(20))
    with kafka.query(options) as query:
        assert sizes(drain(query)) == [8, 8]
        query.idle(5)
        kafka.send(topic, range(1))
        assert query.run_batch(PATIENCE).rows == 5


def test_10_once_ignores_limits_and_available_now_keeps_them(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(15))
    options = kafka.options(topic, maxOffsetsPerTrigger="5")
    with kafka.query(options, trigger="once") as query:
        assert sizes(drain(query)) == [15]
    kafka.send(topic, range(15))
    with kafka.query(options, trigger="available_now") as query:
        assert sizes(drain(query)) == [5, 5, 5]
        assert not query.is_running


def test_10_available_now_is_not_delayed_by_a_minimum(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(15))
    options = kafka.options(topic, maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10")
    with kafka.query(options, trigger="available_now") as query:
        assert sizes(drain(query)) == [10, 5]


def test_11_available_now_does_not_read_what_comes_after_its_start(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(6))
    seen: list[int] = []

    def sink(_batch: int, tables: Sequence[Any]) -> None:
        seen.append(sum(table.num_rows for table in tables))
        kafka.send(topic, ["late"])

    with kafka.query(kafka.options(topic, maxOffsetsPerTrigger="2"), trigger="available_now", sink=sink) as query:
        drain(query)
    assert seen == [2, 2, 2]


@pytest.mark.parametrize(
    ("partitions", "rows", "said"),
    [
        (
            1,
            100,
            r"Some of partitions in Kafka topic\(s\) have been lost during running query with Trigger.AvailableNow",
        ),
        (2, 1, "report available offset which is less than end offset"),
    ],
    ids=["12_fewer_partitions", "13_fewer_rows"],
)
def test_12_13_available_now_fails_when_its_topic_is_made_anew(
    kafka: KafkaRig, partitions: int, rows: int, said: str
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(10))
    kafka.send(topic, range(10), 1)
    options = kafka.options(topic, maxOffsetsPerTrigger="4", failOnDataLoss="false")
    with kafka.query(options, trigger="available_now") as query:
        query.run_batch()
        kafka.delete_topic(topic)
        kafka.topic(partitions, topic)
        kafka.send(topic, range(rows))
        with pytest.raises(ReaderFailedError, match=said):
            drain(query)


@pytest.mark.guarantee
def test_14_a_failed_available_now_batch_is_replayed_after_partitions_were_added(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(5))
    with kafka.query(kafka.options(topic), trigger="available_now") as query:
        query.crash_at("tasks_done")
        with pytest.raises(DriverCrashedError):
            drain(query)
        kafka.grow(topic, 2)
        kafka.send(topic, [5, 6], 1)
        query.restart()
        assert sorted(values(drain(query))) == ["0", "1", "2", "3", "4", "5", "6"]


def test_15_a_topic_of_a_pattern_may_go_and_another_come(kafka: KafkaRig) -> None:
    stem = kafka.name("pattern")
    first = kafka.topic(1, f"{stem}-a")
    kafka.send(first, [1, 2, 3])
    options = kafka.options(subscribePattern=f"{stem}-.*", startingOffsets="earliest", failOnDataLoss="false")
    with kafka.query(options) as query:
        assert values(drain(query)) == ["1", "2", "3"]
        kafka.delete_topic(first)
        second = kafka.topic(1, f"{stem}-b")
        kafka.send(second, [5, 6, 7])
        assert kafka.values(query, 3) == ["5", "6", "7"]


def test_15_with_fail_on_data_loss_a_deleted_topic_stops_the_query(kafka: KafkaRig) -> None:
    stem = kafka.name("pattern")
    first = kafka.topic(1, f"{stem}-a")
    kafka.topic(1, f"{stem}-b")
    with kafka.query(kafka.options(subscribePattern=f"{stem}-.*", startingOffsets="earliest")) as query:
        drain(query)
        kafka.delete_topic(first)
        with pytest.raises(
            ReaderFailedError, match=rf"\[KAFKA_DATA_LOSS.PARTITIONS_DELETED\].*\[{first}-0\] have been"
        ):
            query.run_until(lambda _: False, PATIENCE)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_16_a_topic_made_anew_between_runs_is_seen(kafka: KafkaRig, fail: str) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1, 2])
    options = kafka.options(topic, failOnDataLoss=fail, fetchOffset__retryIntervalMs="10")
    with kafka.query(options) as query:
        drain(query)
        query.stop()
        kafka.delete_topic(topic)
        kafka.topic(1, topic)
        kafka.send(topic, [3])
        query.restart()
        if fail == "true":
            with pytest.raises(ReaderFailedError, match=r"PARTITION_OFFSET_CHANGED.*was changed from 2 to 1"):
                drain(query)
        else:
            drain(query)
            kafka.send(topic, [4])
            assert kafka.values(query, 1) == ["4"]


@pytest.mark.usefixtures("both_paths")
def test_16_a_topic_made_anew_is_read_whole_by_the_next_query_of_a_worker(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    options = kafka.options(topic)
    for run, sent in enumerate((range(100), range(3))):
        kafka.send(topic, sent)
        checkpoint = kafka.folder / f"checkpoint-{run}"
        with StreamingQuery(SOURCE, options, checkpoint=checkpoint, workers=kafka.workers, sink=None) as query:
            assert sizes(drain(query)) == [len(sent)]
        if run == 0:
            kafka.delete_topic(topic)
            kafka.topic(1, topic)
            time.sleep(1.5)  # the consumer that the worker keeps learns that its topic is gone


def test_17_no_empty_offset_is_logged_when_all_topics_are_gone(kafka: KafkaRig) -> None:
    stem = kafka.name("pattern")
    first = kafka.topic(1, f"{stem}-a")
    kafka.send(first, [1])
    options = kafka.options(subscribePattern=f"{stem}-.*", startingOffsets="earliest", failOnDataLoss="false")
    with kafka.query(options) as query:
        drain(query)
        kafka.delete_topic(first)
        query.stop()
        query.restart()
        query.idle(5)
        assert query.batch_id == 1


@pytest.mark.parametrize(
    "start",
    [{"startingOffsets": "earliest"}, {"startingOffsets": "latest"}, {"startingTimestamp": str(2**41)}],
    ids=str,
)
@pytest.mark.parametrize("restarts", [False, True])
def test_17_a_query_that_began_without_a_topic_reads_the_first_one_from_its_first_record(
    kafka: KafkaRig, start: dict[str, str], restarts: bool
) -> None:
    stem = kafka.name("pattern")
    options = kafka.options(subscribePattern=f"{stem}-.*", **{"startingOffsets": None, **start})
    with kafka.query(options) as query:
        assert query.run_batch().end == {"_start": {}, "v": 1}
        query.idle(3)
        if restarts:
            query.stop()
        kafka.send(kafka.topic(1, f"{stem}-a"), [1, 2])
        if restarts:
            query.restart()
        assert kafka.values(query, 2) == ["1", "2"]


def test_17_bounded_runs_that_began_without_a_topic_read_the_first_one_from_its_first_record(kafka: KafkaRig) -> None:
    stem = kafka.name("pattern")
    options = kafka.options(subscribePattern=f"{stem}-.*", startingOffsets="latest")
    found = []
    for sent in ([], [1, 2], [3]):
        if sent == [1, 2]:
            kafka.topic(1, f"{stem}-a")
        kafka.send(f"{stem}-a", sent)
        with kafka.query(options, trigger="available_now") as query:
            found.append(values(query.process_available()))
    assert found == [[], ["1", "2"], ["3"]]


def test_18_a_new_topic_of_the_pattern_is_read_from_its_first_record(kafka: KafkaRig) -> None:
    stem = kafka.name("pattern")
    kafka.send(kafka.topic(1, f"{stem}-a"), ["old"])
    with kafka.query(kafka.options(subscribePattern=f"{stem}-.*", startingOffsets="latest")) as query:
        drain(query)
        kafka.send(kafka.topic(2, f"{stem}-b"), range(4), 1)
        assert kafka.values(query, 4) == ["0", "1", "2", "3"]


def test_19_read_committed_sees_no_open_and_no_aborted_transaction(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    options = kafka.options(topic, kafka__isolation__level="read_committed", maxOffsetsPerTrigger="3")
    with kafka.query(options) as query:
        opened = kafka.transaction(topic, range(5), commit=None)
        assert values(drain(query)) == []
        opened.commit_transaction(PATIENCE)
        assert kafka.values(query, 5) == [str(each) for each in range(5)]
        kafka.transaction(topic, range(5, 10), commit=False)
        kafka.transaction(topic, range(10, 15))
        assert kafka.values(query, 5) == [str(each) for each in range(10, 15)]
        drain(query)
    ends = [json.loads(str(query.checkpoint.offsets(batch)[0]))[topic]["0"] for batch in range(query.batch_id)]
    assert ends == [0, 3, 6, 9, 12, 15, 18], "a batch of three offsets may hold only control records"


@pytest.mark.usefixtures("both_paths")
def test_19_batches_that_end_in_control_records_do_not_wait(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    producer = kafka.transaction(topic, [0])
    for number in range(1, 20):  # two offsets each
        producer.begin_transaction()
        producer.produce(topic, str(number).encode(), partition=0)
        producer.commit_transaction(PATIENCE)
    kafka.wait_for_ends(topic)
    committed = {"kafka__isolation__level": "read_committed", "kafkaConsumer__pollTimeoutMs": "4000"}
    options = kafka.options(topic, **committed, maxOffsetsPerTrigger="7")
    with kafka.query(options, trigger="available_now") as query:
        assert sizes(drain(query)) == [4, 3, 4, 3, 4, 2]


def test_19_control_records_alone_are_an_empty_batch(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.transaction(topic, range(2))
    kafka.wait_for_ends(topic)
    options = kafka.options(topic, startingOffsets={topic: {"0": 2}}, kafka__isolation__level="read_committed")
    with kafka.query(options) as query:
        assert [(batch.rows, batch.end[topic]) for batch in drain(query)] == [(0, {"0": 3})]


def test_20_read_uncommitted_sees_all_records(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.transaction(topic, range(3), commit=False)
    opened = kafka.transaction(topic, range(3, 5), commit=None)
    with kafka.query(kafka.options(topic)) as query:
        assert values(drain(query)) == [str(each) for each in range(5)]
    opened.abort_transaction(PATIENCE)


def test_21_what_was_fetched_ahead_does_not_leak_into_the_next_batch(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(30))
    with kafka.query(kafka.options(topic, maxOffsetsPerTrigger="7")) as query:
        batches = drain(query)
    assert sizes(batches) == [7, 7, 7, 7, 2]
    assert values(batches) == [str(each) for each in range(30)]


def test_22_null_keys_and_values_are_kept(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [None], key=b"k")
    kafka.send(topic, ["v"])
    kafka.send(topic, [b""], key=b"")
    with kafka.query(kafka.options(topic)) as query:
        (batch,) = drain(query)
    assert batch.values("key") == [b"k", None, b""]
    assert batch.values("value") == [None, b"v", b""]


def test_23_min_partitions_splits_ranges_and_keeps_the_rows(kafka: KafkaRig) -> None:
    topic = kafka.topic(3)
    for partition in range(3):
        kafka.send(topic, range(partition * 10, partition * 10 + 10), partition)
    with kafka.query(kafka.options(topic, minPartitions="6")) as query:
        (batch,) = drain(query)
    assert len(batch.tables) >= 6
    assert sorted(values([batch]), key=int) == [str(each) for each in range(30)]


def test_a_batch_of_many_small_partitions_has_each_row_once_in_far_fewer_tasks(kafka: KafkaRig) -> None:
    topic = kafka.topic(130)
    for partition in range(130):
        kafka.send(topic, [partition * 10, partition * 10 + 1], partition)
    with kafka.query(kafka.options(topic)) as query:
        (batch,) = drain(query)
    assert len(batch.tables) == 65
    assert batch.values("partition") == [partition for partition in range(130) for _ in range(2)]
    assert values([batch]) == [str(partition * 10 + row) for partition in range(130) for row in range(2)]


def test_23_max_records_per_partition_limits_a_task(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(10))
    with kafka.query(kafka.options(topic, maxRecordsPerPartition="3")) as query:
        (batch,) = drain(query)
    assert [table.num_rows for table in batch.tables] == [2, 2, 3, 3]


def test_27_columns_hold_what_was_sent(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    headers = [("b", b"1"), ("a", None), ("b", b"")]
    kafka.send(topic, ["v"], 1, key=b"k", timestamp=1234, headers=headers)
    kafka.send(topic, ["w"], 1, timestamp=5)
    with kafka.query(kafka.options(topic, includeHeaders="true")) as query:
        (batch,) = drain(query)
    (first, second) = [row for table in batch.tables for row in table.to_pylist()]
    assert first["timestamp"].timestamp() == 1.234
    del first["timestamp"]
    assert first == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestampType": 0,
        "headers": [{"key": key, "value": value} for key, value in headers],
    }
    assert second["headers"] is None


def test_27_the_brokers_own_time_has_the_type_1(kafka: KafkaRig) -> None:
    topic = kafka.topic(1, message_timestamp_type="LogAppendTime")
    kafka.send(topic, ["v"])
    with kafka.query(kafka.options(topic)) as query:
        (batch,) = drain(query)
    assert batch.values("timestampType") == [1]


def test_29_the_latest_offsets_are_reported_for_lag(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(6))
    with kafka.query(kafka.options(topic, maxOffsetsPerTrigger="2")) as query:
        batch = query.run_batch()
        reported = json.loads(str(query.reader.report_latest_offset()))
    assert batch.end[topic] == {"0": 2}
    assert reported[topic] == {"0": 6}


@pytest.mark.guarantee
@pytest.mark.parametrize("step", ["tasks_done", "offsets_logged"])
def test_31_latest_loses_nothing_when_batch_0_fails(kafka: KafkaRig, step: Any) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, ["old"])
    with kafka.query(kafka.options(topic, startingOffsets="latest")) as query:
        query.crash_at(step)
        with pytest.raises(DriverCrashedError):
            query.run_trigger()
        kafka.send(topic, ["new"])
        query.restart()
        assert kafka.values(query, 1) == ["new"]


@pytest.mark.guarantee
@pytest.mark.parametrize("step", ["offsets_logged", "planned", "tasks_done", "sink_written", "batch_committed"])
def test_31_latest_loses_nothing_of_a_partition_that_was_empty_when_the_query_was_killed(
    kafka: KafkaRig, step: Any
) -> None:
    topic = kafka.topic(3)
    with kafka.query(kafka.options(topic, startingOffsets="latest")) as query:
        query.crash_at(step)
        with pytest.raises(DriverCrashedError):
            query.run_trigger()
        for partition in (0, 1):
            kafka.send(topic, [f"first-{partition}"], partition)
        query.restart()
        found = kafka.values(query, 2)
        query.stop()
        for partition in (0, 1, 2):
            kafka.send(topic, [f"second-{partition}"], partition)
        query.start()
        found += kafka.values(query, 3)
    assert sorted(found) == ["first-0", "first-1", "second-0", "second-1", "second-2"]


@pytest.mark.guarantee
def test_31_latest_loses_nothing_when_the_tasks_of_batch_0_fail(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    failed = list[int]()

    def sink(batch: int, tables: Sequence[pa.Table]) -> None:
        if not failed:
            failed.append(batch)
            kafka.send(topic, ["meanwhile"])
            raise OSError("the target is away")
        kafka.sink(batch, tables)

    with kafka.query(kafka.options(topic, startingOffsets="latest"), sink=sink) as query:
        with pytest.raises(OSError, match="away"):
            query.run_trigger()
        kafka.send(topic, ["after"], 1)
        query.restart()
        assert sorted(kafka.values(query, 2)) == ["after", "meanwhile"]
    assert failed == [0]


def test_32_a_second_call_of_initial_offset_is_harmless(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    with kafka.query(kafka.options(topic, startingOffsets="latest")) as query:
        start = query.reader.initial_offset()
        limit = json.dumps(query.reader.default_read_limit())
        first = json.loads(query.reader.latest_offset(start, limit))
        kafka.send(topic, ["new"])
        assert query.reader.initial_offset() == start
        assert json.loads(query.reader.latest_offset(start, limit))["_start"] == first["_start"]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_34_rows_that_have_aged_out_stop_the_query_or_are_passed_over(kafka: KafkaRig, fail: str) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(50))
    with kafka.query(kafka.options(topic, failOnDataLoss=fail, maxOffsetsPerTrigger="10")) as query:
        found = values([query.run_batch()])
        kafka.delete_records(topic, 25)
        CONSUMERS.close()  # they have fetched ahead
        if fail == "true":
            with pytest.raises(
                Exception, match=r"KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE.*earliest available offset"
            ):
                drain(query)
            return
        found += values(drain(query))
    assert found == [str(each) for each in (*range(10), *range(25, 50))]


def test_35_topics_that_come_and_go_never_stop_a_query_that_may_lose_rows(kafka: KafkaRig) -> None:
    stem = kafka.name("stress")
    options = kafka.options(
        subscribePattern=f"{stem}.*",
        startingOffsets="earliest",
        failOnDataLoss="false",
        fetchOffset__retryIntervalMs="10",
        kafkaConsumer__pollTimeoutMs="10000",
    )
    topics = [kafka.topic(1 + number % 2, f"{stem}-{number}") for number in range(3)]
    found: list[str] = []
    with kafka.query(options) as query:
        for turn in range(6):
            topic = topics[turn % 3]
            kafka.send(topic, [f"{turn}-{number}" for number in range(20)])
            query.run_trigger()
            kafka.delete_topic(topic)
            kafka.topic(1 + turn % 2, topic)
            kafka.send(topic, [f"{turn}-again-{number}" for number in range(turn)])
        found = values(drain(query))
        kafka.send(topics[0], ["last"])
        while "last" not in found:
            found += values([query.run_batch(PATIENCE)])
    kept = kafka.sink.values("value")
    assert len(kept) == len(set(kept)), "a row came twice"


def test_35_topics_that_come_and_go_while_batches_are_planned_and_read_never_stop_such_a_query(kafka: KafkaRig) -> None:
    stem = kafka.name("busy")
    options = kafka.options(
        subscribePattern=f"{stem}.*",
        startingOffsets="earliest",
        failOnDataLoss="false",
        fetchOffset__retryIntervalMs="10",
        kafkaConsumer__pollTimeoutMs="10000",
    )
    topics = [kafka.topic(1 + number % 2, f"{stem}-{number}") for number in range(3)]

    def come_and_go() -> None:
        for turn in range(12):
            topic = topics[turn % 3]
            kafka.send(topic, [f"{turn}-{number}" for number in range(500)])
            kafka.delete_topic(topic)
            kafka.topic(1 + turn % 2, topic)
            kafka.send(topic, [f"{turn}-again-{number}" for number in range(turn)])

    with kafka.query(options) as query, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come_and_go)
        while not coming.done():
            query.run_trigger()
        coming.result()
        drain(query)  # up to the ends of the topics that stay, which may lie before those of the ones that went
        kafka.send(topics[0], ["last"])
        while "last" not in text(kafka.sink.values("value")):
            query.run_trigger()
    kept = kafka.sink.values("value")
    assert len(kept) == len(set(kept)), "a row came twice"


# What Spark's own source has not


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_of_a_topic_that_was_deleted_are_not_read_in_the_place_of_those_of_the_new_one(
    kafka: KafkaRig, fail: str
) -> None:
    topic = kafka.topic(1)
    with kafka.query(kafka.options(topic, startingOffsets="earliest", failOnDataLoss=fail)) as query:
        kafka.send(topic, range(6))
        assert values([query.run_batch(PATIENCE)]) == [str(number) for number in range(6)]
        kafka.send(topic, [f"old {number}" for number in range(6, 500)])
        time.sleep(0.3)  # the task's consumer fetches them ahead, which no event shows
        kafka.delete_topic(topic)
        kafka.topic(1, topic)
        kafka.send(topic, [f"new {number}" for number in range(9)])
        if fail == "true":
            with pytest.raises(ReaderFailedError, match=r"KAFKA_DATA_LOSS\.TOPIC_RECREATED"):
                query.run_batch(PATIENCE)
            return
        assert values([query.run_batch(PATIENCE)]) == ["new 6", "new 7", "new 8"]
        kafka.send(topic, ["last"])
        assert values([query.run_batch(PATIENCE)]) == ["last"]


def test_words_for_whole_topics(kafka: KafkaRig) -> None:
    first, second = kafka.topic(2), kafka.topic(2)
    for topic in (first, second):
        kafka.send(topic, ["a"])
        kafka.send(topic, ["b"], 1)
    options = kafka.options(
        subscribe=f"{first},{second}", startingOffsets={first: "earliest", second: {"0": -2, "1": -1}}
    )
    with kafka.query(options) as query:
        assert sorted(values(drain(query))) == ["a", "a", "b"]


def test_offsets_are_committed_to_a_group_and_can_be_started_from(kafka: KafkaRig) -> None:
    topic, group = kafka.topic(1), kafka.name("group")
    kafka.send(topic, range(5))
    options = kafka.options(topic, commitOffsetsToGroup=group)
    with kafka.query(options) as query:
        drain(query)
        kafka.send(topic, [5])  # one record, which cannot come in two batches
        drain(query)  # what came before is committed while its batch is built
        kafka.wait_for_group(group, topic, 5)
    other = KafkaStream(parse_read_options(options | {"startingOffsets": "group"}, {}, streaming=True))
    assert other.latest_offset({"initial": True, "v": 1}, everything=False)["_start"][topic] == {"0": 5}
    other.stop()


@pytest.mark.parametrize("available_now", [False, True])
def test_a_start_at_the_latest_of_a_busy_topic_does_not_lie_behind_its_end(
    kafka: KafkaRig, available_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic(1)
    stream = busy_stream(kafka, topic, startingOffsets="latest")
    if available_now:
        stream.prepare_for_available_now()
    sentinel = {"initial": True, "v": 1}
    end = stream.latest_offset(sentinel, everything=False)
    assert end["_start"][topic]["0"] < end[topic]["0"]
    assert stream.partitions(sentinel, end)
    assert "KAFKA_OFFSETS_RETRIED" not in caplog.text
    stream.stop()


def test_a_group_that_cannot_be_committed_to_does_not_stop_the_query(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    with kafka.query(kafka.options(topic, commitOffsetsToGroup="x" * 40_000)) as query:
        for turn in range(3):
            kafka.send(topic, [turn])
            assert kafka.values(query, 1) == [str(turn)]


@pytest.mark.parametrize("strategy", ["subscribe", "assign"])
def test_a_topic_that_is_not_there_stops_the_query(kafka: KafkaRig, strategy: str) -> None:
    chosen = {"subscribe": "no-such-topic"} if strategy == "subscribe" else {"assign": {"no-such-topic": [0]}}
    with (
        kafka.query(kafka.options(**chosen)) as query,
        pytest.raises(ReaderFailedError, match=r"\[KAFKA_UNKNOWN_TOPIC_OR_PARTITION\].*no-such-topic"),
    ):
        drain(query)


def test_a_topic_that_is_made_while_offsets_are_asked_for_is_read(kafka: KafkaRig) -> None:
    topic = kafka.name()
    options = kafka.options(topic, fetchOffset__numRetries="60", fetchOffset__retryIntervalMs="250")
    making = threading.Timer(1.0, lambda: kafka.send(kafka.topic(1, topic), [1, 2]))
    making.start()
    with kafka.query(options) as query:
        assert kafka.values(query, 2) == ["1", "2"]
    making.join()


def test_41_offsets_that_name_other_partitions_are_refused_with_both_sets(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    options = kafka.options(topic, startingOffsets={topic: {"0": 0, "7": 0}})
    with kafka.query(options) as query, pytest.raises(ReaderFailedError) as caught:
        drain(query)
    assert "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED]" in str(caught.value)
    assert f"Specified: [{topic}-0, {topic}-7] Assigned: [{topic}-0, {topic}-1]" in str(caught.value)


def test_a_compacted_topic_is_read_without_waiting_for_what_is_gone(kafka: KafkaRig) -> None:
    topic = kafka.topic(
        1,
        cleanup_policy="compact",
        segment_ms="50",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="1",
        min_compaction_lag_ms="0",
    )
    kafka.send(topic, range(100), key=b"same")
    for _ in range(3):
        time.sleep(0.1)  # the next record begins a new segment, and only old ones are compacted
        kafka.send(topic, ["99"], key=b"same")
    kafka.wait_for_compaction(topic)
    end = kafka.end(topic)
    options = kafka.options(topic, maxOffsetsPerTrigger="10", kafkaConsumer__pollTimeoutMs="5000")
    with kafka.query(options) as query:
        batches = drain(query)
    assert batches[-1].end[topic] == {"0": end}
    assert any(batch.rows == 0 for batch in batches), "a range may have nothing left"
    assert "99" in values(batches)
