"""Rows that are gone on a real broker: each kind of loss by its name, and what goes on where rows may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException

from connectors.core.errors import DataLossError, OffsetError
from connectors.core.offsets import SENTINEL
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.source import Strategy, parse_read_options
from connectors.kafka.source.batch import Bounds, _plan, plan_batch
from connectors.kafka.source.micro_batch import KafkaStream
from connectors.kafka.source.planning import OffsetRange
from tests.support.kafka_rig import PATIENCE, KafkaRig
from tests.support.waiting import wait_for

FAST = {"fetchOffset__retryIntervalMs": "10"}


@pytest.fixture
def streams() -> Iterator[list[KafkaStream]]:
    """The streams that a test has opened; they are stopped behind it."""
    opened: list[KafkaStream] = []
    yield opened
    for each in opened:
        each.stop()


def opened(streams: list[KafkaStream], options: dict[str, str]) -> KafkaStream:
    streams.append(KafkaStream(parse_read_options(options, {}, streaming=True)))
    return streams[-1]


def delete(kafka: KafkaRig, topic: str) -> None:
    """Delete a topic, and wait until its leader has let go of it, which is later than that it is listed no more."""
    kafka.delete_topic(topic)
    wait_for(lambda: not is_led(kafka, topic), PATIENCE)


def is_led(kafka: KafkaRig, topic: str) -> bool:
    try:
        kafka.end(topic)
    except KafkaException as error:
        if "UNKNOWN" not in error.args[0].name():
            raise
        return False
    return True


def loss(kind: str, said: str) -> Any:
    """What a read fails with where no row may be lost."""
    return pytest.raises(DataLossError, match=rf"\[KAFKA_DATA_LOSS\.{kind}\].*{said}.*failOnDataLoss to false")


def test_an_added_partition_whose_first_records_are_gone_is_a_loss_or_read_from_its_first_one(
    kafka: KafkaRig, streams: list[KafkaStream], caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(3))
    options = kafka.options(topic, startingOffsets="latest", **FAST)
    strict, lax = opened(streams, options), opened(streams, options | {"failOnDataLoss": "false"})
    start = strict.latest_offset(SENTINEL, everything=True)
    kafka.grow(topic, 2)
    kafka.send(topic, range(10), 1)
    kafka.delete_records(topic, 4, 1)
    end = strict.latest_offset(start, everything=True)
    said = f"Added partition {topic}-1 starts from 4 instead of 0"
    with loss("ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO", said):
        strict.partitions(start, end)
    assert lax.partitions(start, end) == [OffsetRange(topic, 1, 4, 10)]
    assert said in caplog.text


def test_an_added_partition_that_is_gone_when_its_batch_is_planned_is_a_loss_or_left_out(
    kafka: KafkaRig, streams: list[KafkaStream], caplog: pytest.LogCaptureFixture
) -> None:
    stem = kafka.name("pattern")
    first = kafka.topic(1, f"{stem}-a")
    options = kafka.options(subscribePattern=f"{stem}-.*", startingOffsets="earliest", **FAST)
    strict, lax = opened(streams, options), opened(streams, options | {"failOnDataLoss": "false"})
    start = strict.latest_offset(SENTINEL, everything=True)
    second = kafka.topic(1, f"{stem}-b")
    kafka.send(first, range(2))
    kafka.send(second, range(5))
    end = strict.latest_offset(start, everything=True)
    assert end[second] == {"0": 5}
    delete(kafka, second)
    said = rf"Cannot find initial offsets for partitions [{second}-0]"
    with loss("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", said.replace("[", r"\[")):
        strict.partitions(start, end)
    assert lax.partitions(start, end) == [OffsetRange(first, 0, 0, 2)]
    assert said in caplog.text


@pytest.mark.parametrize(
    ("group", "kind", "also"),
    [
        ({}, "PARTITIONS_DELETED", "have been deleted "),
        (
            {"kafka__group__id": "shop"},
            "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT",
            "have been deleted; kafka.group.id is shop, which other consumers may share ",
        ),
    ],
    ids=["own_group", "group_of_the_user"],
)
def test_a_deleted_partition_is_a_loss_that_names_the_group_of_the_user_or_left_out(
    kafka: KafkaRig,
    streams: list[KafkaStream],
    caplog: pytest.LogCaptureFixture,
    group: dict[str, str],
    kind: str,
    also: str,
) -> None:
    stem = kafka.name("pattern")
    first, second = kafka.topic(1, f"{stem}-a"), kafka.topic(1, f"{stem}-b")
    options = kafka.options(subscribePattern=f"{stem}-.*", startingOffsets="earliest", **FAST, **group)
    strict, lax = opened(streams, options), opened(streams, options | {"failOnDataLoss": "false"})
    start = strict.latest_offset(SENTINEL, everything=True)
    kafka.send(first, range(2))
    kafka.delete_topic(second)
    end = strict.latest_offset(start, everything=True)
    with loss(kind, rf"Partitions \[{second}-0\] {also}"):
        strict.partitions(start, end)
    assert lax.partitions(start, end) == [OffsetRange(first, 0, 0, 2)]
    assert f"[KAFKA_DATA_LOSS.{kind}]" in caplog.text


class DeletingLookup(KafkaLookup):
    """A lookup behind whose back a topic is deleted, as soon as it has listed the partitions."""

    kafka: KafkaRig
    topic: str

    def partitions(self, strategy: Strategy) -> frozenset[TopicPartition]:
        found = super().partitions(strategy)
        delete(self.kafka, self.topic)
        return found


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("side", ["startingTimestamp", "endingTimestamp"])
def test_a_batch_read_whose_start_and_end_have_other_partitions_is_refused_with_both_sets(
    kafka: KafkaRig, side: str, fail: str
) -> None:
    first, second = kafka.topic(1), kafka.topic(1)
    for topic in (first, second):
        kafka.send(topic, range(3), timestamp=5000)
    raw = kafka.options(f"{first},{second}", failOnDataLoss=fail, **{side: "1000"})
    options = parse_read_options(raw, {}, streaming=False)
    some, both = f"[{first}-0]", f"[{first}-0, {second}-0]"
    start, end = (some, both) if side == "startingTimestamp" else (both, some)
    with DeletingLookup(options.client) as lookup:
        lookup.kafka, lookup.topic = kafka, second
        with pytest.raises(OffsetError) as caught:
            _plan(options, Bounds(), lookup)
    assert caught.value.code == "KAFKA_MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET"
    assert f"Topic partitions differ between start and end. Start: {start} End: {end}" in caught.value.what


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (
            [5],
            "KAFKA_MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
            "Pre-fetched: [{topic}-0, {topic}-1] End: [{topic}-0]",
        ),
        (
            [5, 3, 0],
            "KAFKA_MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
            "Pre-fetched: [{topic}-0, {topic}-1] End: [{topic}-0, {topic}-1, {topic}-2]",
        ),
        (
            [5, 4],
            "KAFKA_END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED",
            'than pre-fetched offset. End: {{"{topic}":{{"1":4}}}}',
        ),
    ],
    ids=["a_partition_less", "a_partition_more", "an_offset_behind"],
)
def test_a_bounded_run_refuses_an_end_that_its_start_has_not_seen_whatever_may_be_lost(
    kafka: KafkaRig, streams: list[KafkaStream], ends: list[int], code: str, said: str, fail: str
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(5))
    kafka.send(topic, range(3), 1)
    stream = opened(streams, kafka.options(topic, failOnDataLoss=fail, **FAST))
    stream.prepare_for_available_now()
    end = stream.latest_offset(SENTINEL, everything=False)
    assert end[topic] == {"0": 5, "1": 3}
    if len(ends) > 2:
        kafka.grow(topic, 3)
    kafka.send(topic, ["late"], 1)  # so that it is no offset that Kafka does not have
    with pytest.raises(OffsetError) as caught:
        stream.partitions(SENTINEL, end | {topic: {str(number): each for number, each in enumerate(ends)}})
    assert caught.value.code == code
    assert said.format(topic=topic) in caught.value.what
    assert [each.size for each in stream.partitions(SENTINEL, end)] == [5, 3]


@pytest.mark.parametrize("offsets", [(0, 15), (4, 15), (12, 15), (15, 20), (0, 10)])
def test_a_batch_without_losses_to_fail_on_ends_where_the_log_does_though_its_option_says_later(
    kafka: KafkaRig, offsets: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic()
    kafka.send(topic, range(10))
    first, last = offsets
    given = kafka.options(
        topic, startingOffsets={topic: {"0": first}}, endingOffsets={topic: {"0": last}}, failOnDataLoss="false"
    )
    options = parse_read_options(given, {}, streaming=False)
    parts = plan_batch(options, Bounds())
    assert sum(part.size for part in parts) == max(0, min(last, 10) - first)
    assert ("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE]" in caplog.text) == (last > 10)
