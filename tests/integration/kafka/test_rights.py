"""A user with few rights, on a real broker with an authorizer: what is needed suffices, what is missing is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from connectors.kafka.options.source import parse_read_options
from connectors.kafka.source.consumer_pool import PooledConsumer
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import PartitionReader
from tests.servers.kafka_broker import USER
from tests.support.kafka_rig import LOG_IN, PATIENCE, KafkaRig, text
from tests.support.kafka_task import TaskPlan, run_commit, run_task
from tests.support.spark_protocol.driver import TaskFailedError
from tests.support.waiting import wait_for

DENIED = r"\[KAFKA_ACCESS_DENIED\]"


def as_user(kafka: KafkaRig, topic: str, **options: Any) -> dict[str, str]:
    """Options of the source for the user of SASL."""
    return kafka.options(topic, kafka__bootstrap__servers=kafka.broker.sasl_endpoint, **options) | LOG_IN


class Telling:
    """A source that notes the names of the events that pass."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.events: set[str] = set()

    def fetch(self, most: int, seconds: float) -> Any:
        found = self._source.fetch(most, seconds)
        self.events |= {event.name for event in found.events}
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


@pytest.mark.usefixtures("both_paths")
def test_a_task_reads_on_when_the_client_tells_of_a_group_without_right(guarded_kafka: KafkaRig) -> None:
    kafka = guarded_kafka
    topic = kafka.topic()
    kafka.allow(USER, topic, "DESCRIBE", "READ")
    kafka.send(topic, range(5))
    options = parse_read_options(as_user(kafka, topic), {}, streaming=True)
    consumer = PooledConsumer(options, "run")
    consumer.source = source = Telling(consumer.source)
    reader = PartitionReader(consumer, OffsetRange(topic, 0, 0, 6), options)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: sum(batch.num_rows for batch in reader.batches()))
        wait_for(lambda: "GROUP_AUTHORIZATION_FAILED" in source.events or reading.done(), PATIENCE)
        kafka.send(topic, [5])
        assert reading.result(PATIENCE) == 6
    consumer.close()


def test_rights_on_the_topic_alone_let_a_stream_run(guarded_kafka: KafkaRig) -> None:
    kafka = guarded_kafka
    topic = kafka.topic()
    kafka.allow(USER, topic, "DESCRIBE", "READ")
    with kafka.query(as_user(kafka, topic)) as query:
        for number in range(3):
            kafka.send(topic, [number])
            assert kafka.values(query, 1) == [str(number)]


def test_a_topic_that_may_be_described_and_not_read_is_an_error_of_the_task(guarded_kafka: KafkaRig) -> None:
    kafka = guarded_kafka
    topic = kafka.topic()
    kafka.send(topic, [1])
    kafka.allow(USER, topic, "DESCRIBE")
    with pytest.raises(TaskFailedError, match=DENIED):
        kafka.batch(as_user(kafka, topic))


def test_a_group_to_start_from_needs_read_on_it_and_the_error_says_so(guarded_kafka: KafkaRig) -> None:
    kafka = guarded_kafka
    topic, group = kafka.topic(), kafka.name("group")
    kafka.send(topic, [1])
    kafka.allow(USER, topic, "DESCRIBE", "READ")
    options = as_user(kafka, topic, startingOffsets="group", commitOffsetsToGroup=group)
    with kafka.query(options) as query, pytest.raises(Exception, match=f"{DENIED}.*startingOffsets=group"):
        query.run_batch()
    kafka.allow(USER, group, "READ", kind="GROUP")
    with kafka.query(options) as query:
        kafka.send(topic, [2])
        assert query.run_batch() is not None


def test_writing_exactly_once_needs_the_rights_that_the_documents_name(guarded_kafka: KafkaRig) -> None:
    kafka = guarded_kafka
    topic, prefix = kafka.topic(), kafka.name("prefix")
    options = {
        "kafka.bootstrap.servers": kafka.broker.sasl_endpoint,
        "topic": topic,
        "transactionalIdPrefix": prefix,
        **LOG_IN,
    }
    plan = TaskPlan(options, "query", 0, 0, ["a", "b"])
    assert run_task(plan) == "KAFKA_ACCESS_DENIED"
    kafka.allow(USER, topic, "DESCRIBE", "WRITE")
    assert run_task(plan) == "KAFKA_ACCESS_DENIED"
    kafka.allow(USER, prefix, "DESCRIBE", "WRITE", kind="TRANSACTIONAL_ID", names_that_begin=True)
    assert run_task(plan) == "KAFKA_ACCESS_DENIED"
    kafka.allow(USER, prefix, "READ", kind="GROUP", names_that_begin=True)
    kafka.allow(USER, topic, "READ")
    assert run_task(plan) == "written"
    assert run_commit(options, "query", 0, 1) == "committed"
    assert text(message.value() for message in kafka.read_committed(topic)) == ["a", "b"]
