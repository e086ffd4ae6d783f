"""The sink on a real broker, at least once: the behaviours of docs/explanation/kafka.md, by their numbers."""

from __future__ import annotations

import datetime as dt
import os
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import NewTopic
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors.core.arrow import arrow_schema
from connectors.core.datasource import StreamTask
from connectors.core.errors import ConnectorError, CredentialsError, DataLossError, OffsetError, OptionError
from connectors.kafka.datasource import KafkaDataSource
from connectors.kafka.native import NativeSink, native_reason
from connectors.kafka.options.sink import parse_write_options
from connectors.kafka.schema import HEADERS_TYPE, check_columns
from connectors.kafka.sink.writer import RecordSink, close_sinks, produce_batches, stream_task
from tests.servers.java import free_port
from tests.support.kafka_rig import LOG_IN, KafkaRig, text

pytestmark = pytest.mark.usefixtures("both_paths")
ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
TYPES = {
    "topic": StringType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "partition": IntegerType(),
    "headers": HEADERS_TYPE,
    "timestamp": TimestampType(),
}


def struct(*names: str, **types: Any) -> StructType:
    return StructType([StructField(name, types.get(name, TYPES.get(name))) for name in (*names, *types)])


def options(kafka: KafkaRig, **more: str) -> dict[str, str]:
    found = {
        "kafka.bootstrap.servers": kafka.broker.endpoint,
        "kafka.topic.metadata.propagation.max.ms": "300",
    }
    return found | {key.replace("__", "."): value for key, value in more.items()}


def write(
    given: Mapping[str, str], schema: StructType, rows: Sequence[Mapping[str, Any]], *, stream: bool = False
) -> int:
    """Write rows as Spark would: the writer travels to the task as a pickle."""
    source = KafkaDataSource(dict(given))
    made = source.streamWriter(schema, overwrite=False) if stream else source.writer(schema, overwrite=False)
    writer = pickle.loads(pickle.dumps(made))
    batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=arrow_schema(schema))
    message = writer.write(iter([batch]))
    writer.commit([message]) if not stream else writer.commit([message], 0)
    return int(message.rows)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("source", ["column", "option", "both"])
def test_43_the_topic_comes_from_the_column_or_the_option_which_wins(
    kafka: KafkaRig, source: str, stream: bool
) -> None:
    wanted, other = kafka.topic(1), kafka.topic(1)
    given = options(kafka, **({} if source == "column" else {"topic": wanted}))
    schema = struct("value") if source == "option" else struct("topic", "value")
    row = {"value": b"v", "topic": wanted if source == "column" else other}
    assert write(given, schema, [row], stream=stream) == 1
    assert [message.value() for message in kafka.read_committed(wanted)] == [b"v"]
    assert kafka.read_committed(other) == []


def test_keys_and_values_may_be_text_or_bytes_or_null(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    rows = [{"key": "schlüssel", "value": "wert"}, {"key": None, "value": None}, {"key": "", "value": ""}]
    write(options(kafka, topic=topic), struct(key=StringType(), value=StringType()), rows)
    found = [(message.key(), message.value()) for message in kafka.read_committed(topic)]
    assert found == [("schlüssel".encode(), b"wert"), (None, None), (b"", b"")]


@pytest.mark.parametrize(
    ("schema", "topic", "said"),
    [
        (struct("value"), None, "topic option required when no 'topic' attribute is present. Use the topic option for"),
        (struct("key"), "t", "Required attribute 'value' not found"),
        (struct(Value=BinaryType()), "t", "Required attribute 'value' not found"),
        (struct("value", key=IntegerType()), "t", "key attribute unsupported type int. key must be a(n) string or bi"),
        (struct(value=LongType()), "t", "value attribute unsupported type bigint. value must be a(n) string or binary"),
        (struct("value", topic=IntegerType()), None, "topic attribute unsupported type int. topic must be a(n) string"),
        (struct("value", partition=LongType()), "t", "partition attribute unsupported type bigint. partition must be"),
        (struct("value", headers=ArrayType(StringType())), "t", "headers attribute unsupported type array<string>"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_44_columns_that_cannot_be_written_are_refused(
    schema: StructType, topic: str | None, said: str, stream: bool
) -> None:
    given = {"kafka.bootstrap.servers": "nowhere:1"} | ({} if topic is None else {"topic": topic})
    with pytest.raises(OptionError) as caught:
        write(given, schema, [], stream=stream)
    assert said in str(caught.value)


def test_extra_columns_are_not_looked_at(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    schema = struct("value", offset=LongType(), timestamp=StringType())
    assert write(options(kafka, topic=topic), schema, [{"value": b"v", "offset": 1, "timestamp": "x"}]) == 1


def test_45_a_row_without_a_topic_is_an_error(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    rows = [{"topic": topic, "value": b"v"}, {"topic": None, "value": b"w"}]
    with pytest.raises(ConnectorError, match="KAFKA_NULL_TOPIC_IN_DATA"):
        write(options(kafka), struct("topic", "value"), rows)


@pytest.mark.parametrize("topic", ["", "a" * 513, "a\0b"], ids=["empty", "long", "NUL"])
def test_a_row_whose_topic_cannot_be_the_name_of_one_is_an_error(kafka: KafkaRig, topic: str) -> None:
    with pytest.raises(ConnectorError, match=r"\[KAFKA_TOPIC_NAME\]"):
        write(options(kafka), struct("topic", "value"), [{"topic": topic, "value": b"v"}])


def test_46_a_partition_wins_over_the_key_and_null_leaves_it_to_the_key(kafka: KafkaRig) -> None:
    topic = kafka.topic(4)
    keys = [b"same", *(b"%d" % number for number in range(40))]
    rows: list[dict[str, Any]] = [
        {"key": b"same", "value": b"to %d" % number, "partition": number} for number in range(4)
    ]
    rows += [{"key": key, "value": b"free", "partition": None} for key in keys]
    write(options(kafka, topic=topic), struct("key", "value", "partition"), rows)
    found = [(message.value(), message.key(), message.partition()) for message in kafka.read_committed(topic, 4)]
    wanted = [(b"to %d" % number, b"same", number) for number in range(4)]
    wanted += [(b"free", key, murmur2(key) % 4) for key in keys]
    assert sorted(found) == sorted(wanted)
    assert {partition for value, _, partition in wanted if value == b"free"} == {0, 1, 2, 3}, "no partition stands out"


@pytest.mark.parametrize(
    "given",
    [{"kafka__partitioner__class": ROUND_ROBIN}, {"kafka__partitioner": "random"}],
    ids=["of the JVM", "of the client"],
)
def test_46_a_partition_wins_over_a_partitioner_that_is_given_and_null_leaves_it_to_that(
    kafka: KafkaRig, given: dict[str, str]
) -> None:
    topic = kafka.topic(4)
    target, schema = options(kafka, topic=topic, **given), struct("key", "value", "partition")
    # The client passes over partitions that it has found no leader of yet: first there is a row for each.
    write(target, schema, [{"key": b"same", "value": b"first", "partition": number} for number in range(4)])
    pair = ((b"to 3", 3), (b"free", None))
    write(target, schema, [{"key": b"same", "value": value, "partition": to} for value, to in pair * 1000])
    found = Counter((message.value(), message.partition()) for message in kafka.read_committed(topic, 4))
    assert [found.pop((b"first", number)) for number in range(4)] == [1] * 4
    assert found.pop((b"to 3", 3)) == 1000
    free = [found.pop((b"free", number), 0) for number in range(4)]
    assert sum(free) == 1000
    assert min(free) > 100, f"one key alone would be in one partition: {free}"
    assert not found


def test_a_partition_that_is_not_there_is_an_error(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    with pytest.raises(ConnectorError, match="does not exist"):
        write(options(kafka, topic=topic), struct("value", "partition"), [{"value": b"v", "partition": 7}])


def test_a_partition_that_is_not_there_is_an_error_of_a_producer_that_knows_the_topic(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    given, schema = options(kafka, topic=topic), struct("value", "partition")
    write(given, schema, [{"value": b"before", "partition": 0}])
    with pytest.raises(ConnectorError, match=rf"\[KAFKA_UNKNOWN_TOPIC_OR_PARTITION\].*{topic}-7"):
        write(given, schema, [{"value": b"v", "partition": 7}])
    assert write(given, schema, [{"value": b"after", "partition": 0}]) == 1
    assert text(message.value() for message in kafka.read_committed(topic)) == ["before", "after"]


def test_a_partition_that_was_added_is_written_by_a_producer_that_knows_the_topic(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    given, schema = options(kafka, topic=topic), struct("value", "partition")
    write(given, schema, [{"value": b"before", "partition": 0}])
    kafka.grow(topic, 3)
    rows = [{"value": b"%d" % number, "partition": number} for number in range(3)]
    assert write(given, schema, rows) == 3
    found = sorted((message.partition(), message.value()) for message in kafka.read_committed(topic, 3))
    assert found == [(0, b"0"), (0, b"before"), (1, b"1"), (2, b"2")]


def test_a_topic_that_was_deleted_is_an_error_of_a_producer_that_knows_it(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    given, schema = options(kafka, topic=topic), struct("value", "partition")
    write(given, schema, [{"value": b"v", "partition": 0}])
    kafka.delete_topic(topic)
    with pytest.raises(ConnectorError, match=rf"\[KAFKA_UNKNOWN_TOPIC_OR_PARTITION\].*{topic}-1"):
        write(given, schema, [{"value": b"v", "partition": 1}])


def test_47_headers_keep_order_duplicates_and_null(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    headers = [{"key": "b", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b""}]
    rows = [{"value": b"v", "headers": headers}, {"value": b"w", "headers": None}]
    write(options(kafka, topic=topic, includeHeaders="true"), struct("value", "headers"), rows)
    first, second = kafka.read_committed(topic)
    assert first.headers() == [("b", b"1"), ("a", None), ("b", b"")]
    assert second.headers() is None
    back = kafka.batch(kafka.options(topic, includeHeaders="true"))
    assert [row["headers"] for row in back] == [headers, None]


def test_47_the_fields_of_headers_may_be_named_in_any_case(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    fields = StructType([StructField("Key", StringType()), StructField("VALUE", BinaryType())])
    headers = [{"Key": "b", "VALUE": b"1"}, {"Key": "a", "VALUE": None}]
    schema = struct("value", headers=ArrayType(fields))
    write(options(kafka, topic=topic), schema, [{"value": b"v", "headers": headers}])
    assert [message.headers() for message in kafka.read_committed(topic)] == [[("b", b"1"), ("a", None)]]


def test_48_a_topic_that_is_not_there_fails_the_job(kafka: KafkaRig) -> None:
    with pytest.raises(ConnectorError, match=r"\[KAFKA_UNKNOWN_TOPIC_OR_PARTITION\].*no-such-topic"):
        write(options(kafka, topic="no-such-topic"), struct("value"), [{"value": b"v"}])


@pytest.mark.parametrize("rows", [1, 1000], ids=["a queue with room", "a full queue"])
def test_a_refused_log_in_is_named_long_before_records_time_out(kafka: KafkaRig, rows: int) -> None:
    given = options(kafka, topic=kafka.topic(), kafka__queue__buffering__max__messages="100") | LOG_IN
    given |= {"kafka.bootstrap.servers": kafka.broker.sasl_endpoint, "kafka.sasl.password": "wrong-secret"}
    given |= {"kafka.message.timeout.ms": "60000"}  # which is KAFKA_UNAVAILABLE
    with pytest.raises(CredentialsError, match=r"\[KAFKA_LOG_IN\]") as caught:
        write(given, struct("value"), [{"value": b"v"}] * rows)
    assert "wrong-secret" not in str(caught.value)


def test_a_refused_certificate_is_named_long_before_records_time_out(kafka: KafkaRig) -> None:
    given = options(kafka, topic=kafka.topic())
    given |= {"kafka.bootstrap.servers": kafka.broker.ssl_endpoint, "kafka.security.protocol": "SSL"}
    given |= {"kafka.ssl.ca.location": str(kafka.broker.certificates / "ca.pem")}
    given |= {"kafka.message.timeout.ms": "60000"}  # which is KAFKA_UNAVAILABLE
    with pytest.raises(CredentialsError, match=r"\[KAFKA_LOG_IN\].*SSL alert number"):
        write(given, struct("value"), [{"value": b"v"}])


def test_49_overwriting_is_refused() -> None:
    source = KafkaDataSource({"kafka.bootstrap.servers": "nowhere:1", "topic": "t"})
    with pytest.raises(OptionError, match=r"Save mode overwrite not allowed for Kafka. Allowed save modes are append"):
        source.writer(struct("value"), overwrite=True)


def test_51_a_tiny_queue_only_slows_a_large_write(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    rows = [{"value": b"%d" % number} for number in range(20_000)]
    given = options(kafka, topic=topic, kafka__queue__buffering__max__messages="100")
    assert write(given, struct("value"), rows) == 20_000
    assert text(message.value() for message in kafka.read_committed(topic)) == [str(number) for number in range(20_000)]


def test_a_record_that_is_too_large_fails_the_task_and_the_next_one_works(kafka: KafkaRig) -> None:
    topic = kafka.topic(1, max_message_bytes="10000")
    given = options(kafka, topic=topic)
    with pytest.raises(ConnectorError, match="too large"):
        write(given, struct("value"), [{"value": b"small"}, {"value": os.urandom(50_000)}])
    assert write(given, struct("value"), [{"value": b"next"}]) == 1
    assert text(message.value() for message in kafka.read_committed(topic))[-1] == "next"


def test_a_row_without_a_key_is_refused_by_a_compacted_topic_and_the_error_says_so(kafka: KafkaRig) -> None:
    topic = kafka.topic(1, cleanup_policy="compact")
    given, rows = options(kafka, topic=topic), [{"key": b"k", "value": b"first"}, {"key": None, "value": b"second"}]
    with pytest.raises(ConnectorError, match=r"\[KAFKA_RECORD_INVALID\].*1 of them without a key.*fill the column key"):
        write(given, struct("key", "value"), rows)
    with pytest.raises(ConnectorError, match=r"\[KAFKA_RECORD_INVALID\].*a null key and a value of 1 byte\..*-0\)"):
        write(given, struct("value"), [{"value": b"v"}])
    assert write(given, struct("key", "value"), [{"key": b"k", "value": None}]) == 1


def test_a_timestamp_that_a_topic_does_not_accept_is_named(kafka: KafkaRig) -> None:
    now = dt.datetime.now(dt.UTC)
    for limit, time in (("before", dt.datetime(2001, 2, 3, tzinfo=dt.UTC)), ("after", now + dt.timedelta(days=2))):
        topic = kafka.topic(1, **{f"message_timestamp_{limit}_max_ms": "3600000"})
        rows = [{"value": b"v", "timestamp": time}]
        with pytest.raises(ConnectorError, match=r"\[KAFKA_TIMESTAMP\].*INVALID_TIMESTAMP") as caught:
            write(options(kafka, topic=topic, writeTimestamps="true"), struct("value", "timestamp"), rows)
        assert f"the timestamp {time.isoformat(timespec='milliseconds')[:19]}" in str(caught.value)


NO_NAMES = pytest.mark.parametrize("name", ["two words", "..", "x" * 300, "ä"])


@NO_NAMES
def test_a_name_that_no_topic_can_have_is_said_of_the_option_and_of_the_column(kafka: KafkaRig, name: str) -> None:
    for given, row in ((options(kafka, topic=name), {}), (options(kafka), {"topic": name})):
        with pytest.raises(ConnectorError, match=r"\[KAFKA_TOPIC_NAME\].*option or the column topic"):
            write(given, struct(*row, "value"), [row | {"value": b"v"}])


@NO_NAMES
def test_such_a_name_is_said_also_once_the_client_knows_that_there_is_no_such_topic(kafka: KafkaRig, name: str) -> None:
    settings = parse_write_options(options(kafka, topic=name), {}).client
    sink = NativeSink(settings) if not native_reason() else RecordSink(settings)

    def send() -> None:
        if isinstance(sink, NativeSink):
            rows = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
            sink.send(rows, check_columns(struct("value"), name, timestamps=False))
        else:
            sink.send([(name, None, b"v", -1, 0, None)])

    try:
        send()
        with pytest.raises(ConnectorError, match="KAFKA_TOPIC_NAME"):
            sink.finish()
        with pytest.raises(ConnectorError, match=r"\[KAFKA_TOPIC_NAME\].*option or the column topic"):
            send()
    finally:
        sink.discard()


def test_a_topic_or_partition_of_a_row_that_is_not_there_names_the_columns(kafka: KafkaRig) -> None:
    rows = [{"topic": "no-such-topic", "value": b"v"}]
    with pytest.raises(
        ConnectorError, match=r"KAFKA_UNKNOWN_TOPIC_OR_PARTITION.*\(no-such-topic\).*the columns topic and"
    ):
        write(options(kafka, kafka__message__timeout__ms="3000"), struct("topic", "value"), rows)
    topic = kafka.topic(2)
    with pytest.raises(
        ConnectorError, match=rf"KAFKA_UNKNOWN_TOPIC_OR_PARTITION.*\({topic}-2\).*the columns topic and part"
    ):
        write(options(kafka, topic=topic), struct("value", "partition"), [{"value": b"v", "partition": 2}])


def test_a_record_larger_than_the_queue_is_refused_instead_of_waiting_for_room(kafka: KafkaRig) -> None:
    topic = kafka.topic(1, max_message_bytes="10000000")
    given = options(kafka, topic=topic, kafka__buffer__memory="1048576", kafka__max__request__size="5000000")
    with pytest.raises(ConnectorError, match=r"\[KAFKA_RECORD_TOO_LARGE\].*kafka.buffer.memory"):
        write(given, struct("value"), [{"value": b"x" * 2_000_000}])
    assert write(given, struct("value"), [{"value": b"x" * 1_000_000}] * 5) == 5  # one after the other
    assert len(kafka.read_committed(topic)) == 5


def test_a_batch_that_is_larger_than_the_topic_allows_is_an_error_that_says_how_to_write_smaller_ones(
    kafka: KafkaRig,
) -> None:
    topic = kafka.topic(1, max_message_bytes="20000")
    given, rows = options(kafka, topic=topic), [{"value": os.urandom(1000)}] * 200
    with pytest.raises(
        ConnectorError,
        match=r"\[KAFKA_RECORD_TOO_LARGE\].*kafka.batch.size below it, for "
        r"example to 16384",
    ):
        write(given, struct("value"), rows)
    other = kafka.topic(1, max_message_bytes="20000")
    assert write(given | {"topic": other, "kafka.batch.size": "16384"}, struct("value"), rows) == 200
    assert len(kafka.read_committed(other)) == 200


def test_round_robin_spreads_rows_over_all_partitions(kafka: KafkaRig) -> None:
    topic = kafka.topic(4)
    given = options(kafka, topic=topic, kafka__partitioner__class=ROUND_ROBIN)
    # The client passes over partitions that it has found no leader of yet: first there is a row for each.
    write(given, struct("value", "partition"), [{"value": b"first", "partition": number} for number in range(4)])
    write(given, struct("value"), [{"value": b"v"}] * 2000)
    found = [message.partition() for message in kafka.read_committed(topic, 4) if message.value() == b"v"]
    counts = Counter(found)
    assert sum(counts.values()) == 2000
    assert all(counts[partition] > 350 for partition in range(4)), counts


def test_a_record_may_be_as_large_as_with_the_jvm_client_and_the_error_of_a_larger_one_names_the_option(
    kafka: KafkaRig,
) -> None:
    topic = kafka.topic(1, max_message_bytes="3000000")
    given = options(kafka, topic=topic)
    assert write(given, struct("value"), [{"value": b"x" * 1_040_000}]) == 1
    with pytest.raises(ConnectorError, match=r"\[KAFKA_RECORD_TOO_LARGE\].*kafka.max.request.size"):
        write(given, struct("value"), [{"value": b"x" * 2_000_000}])
    assert write(given | {"kafka.max.request.size": "2500000"}, struct("value"), [{"value": b"x" * 2_000_000}]) == 1
    assert [len(message.value()) for message in kafka.read_committed(topic)] == [1_040_000, 2_000_000]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka__key__serializer": "x"}, '"key.serializer"'),
        ({"kafka__value__serializer": "x"}, '"value.serializer"'),
        ({"kafka__transactional__id": "x"}, "Kafka option 'transactional.id' is not supported"),
        ({"kafka__partitioner__class": "my.Partitioner"}, "kafka.partitioner"),
        ({"deliveryGuarantee": "twice"}, "at_least_once"),
        ({"asyncProgressTrackingEnabled": "true", "deliveryGuarantee": "exactly_once"}, "asyncProgressTrackingEnabled"),
        ({"kafka__enable__idempotence": "false", "deliveryGuarantee": "exactly_once"}, "enable.idempotence"),
        ({"kafka__acks": "1", "deliveryGuarantee": "exactly_once"}, "Must set acks to all"),
    ],
)
def test_52_bad_options_of_the_sink_are_refused(given: dict[str, str], said: str) -> None:
    raw = {"kafka.bootstrap.servers": "b:1", "topic": "t"} | {key.replace("__", "."): v for key, v in given.items()}
    with pytest.raises(OptionError) as caught:
        parse_write_options(raw, {}, streaming=True)
    assert said in str(caught.value)


@pytest.mark.parametrize("given", [{"kafka__retries": "0"}, {"kafka__max__in__flight__requests__per__connection": "6"}])
def test_what_switches_idempotence_off_does_not_fail_the_task(kafka: KafkaRig, given: dict[str, str]) -> None:
    topic = kafka.topic(1)
    assert write(options(kafka, topic=topic, **given), struct("value"), [{"value": b"x"}]) == 1
    assert text(message.value() for message in kafka.read_committed(topic)) == ["x"]


def test_a_batch_write_is_exactly_once_only_with_a_name_and_a_number() -> None:
    raw = {"kafka.bootstrap.servers": "b:1", "topic": "t", "deliveryGuarantee": "exactly_once"}
    for partly in ({}, {"txnAppId": "app"}, {"txnVersion": "1"}):
        with pytest.raises(OptionError, match=r"exactly_once is for streams.*txnAppId and txnVersion"):
            parse_write_options(raw | partly, {}, streaming=False)
    whole = raw | {"txnAppId": "app", "txnVersion": "1"}
    assert parse_write_options(whole, {}, streaming=False).txn_version == 1
    with pytest.raises(OptionError, match="this is a stream"):
        parse_write_options(whole, {}, streaming=True)
    with pytest.raises(OptionError, match=r"txnAppId.*deliveryGuarantee"):
        parse_write_options({**whole, "deliveryGuarantee": "at_least_once"}, {}, streaming=False)
    for wrong in ({"txnVersion": "-1"}, {"txnVersion": "x"}, {"txnAppId": "\u00e4"}, {"txnAppId": ""}):
        with pytest.raises(OptionError, match="OPTION_ILLEGAL"):
            parse_write_options(whole | wrong, {}, streaming=False)


def test_a_batch_write_of_a_number_that_was_written_adds_nothing(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    own = {"topic": topic, "deliveryGuarantee": "exactly_once", "txnAppId": f"app-{topic}"}

    def put(version: int, *values: bytes) -> int:
        given = options(kafka, **own, txnVersion=str(version))
        return write(given, struct("value"), [{"value": value} for value in values])

    assert put(17, b"a", b"b") == 2
    assert put(17, b"a", b"b") == 2, "they are counted as they were written before"
    with pytest.raises(DataLossError, match="KAFKA_REPLAY_DIFFERS"):
        put(17, b"a", b"c")
    assert put(40, b"c") == 1
    with pytest.raises(OffsetError, match="KAFKA_CHECKPOINT_BEHIND"):
        put(17, b"a", b"b")
    assert text(message.value() for message in kafka.read_committed(topic)) == ["a", "b", "c"]


def test_another_writer_with_other_numbers_is_another_name(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    for name in ("one", "two"):
        given = {"topic": topic, "deliveryGuarantee": "exactly_once", "txnAppId": f"{topic}-{name}", "txnVersion": "3"}
        assert write(options(kafka, **given), struct("value"), [{"value": name.encode()}]) == 1
    assert text(message.value() for message in kafka.read_committed(topic)) == ["one", "two"]


def murmur2(data: bytes) -> int:
    """The partitioner of the JVM's client, from its published algorithm, independent of librdkafka's."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for index in range(0, whole, 4):
        k = int.from_bytes(data[index : index + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ (k >> 24)) * m & mask)
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return (h ^ (h >> 15)) & 0x7FFFFFFF


def test_the_reference_of_the_partitioner_is_kafkas_own() -> None:
    # Values of UtilsTest.testMurmur2 of Apache Kafka.
    published = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: murmur2(key) for key in published} == {key: value & 0x7FFFFFFF for key, value in published.items()}


def test_53_a_key_lands_where_the_jvm_client_puts_it(kafka: KafkaRig) -> None:
    topic = kafka.topic(7)
    keys = [b"%d" % number for number in range(200)] + [b"", b"\x00\xff\xfe", "ü".encode()]
    write(options(kafka, topic=topic), struct("key", "value"), [{"key": key, "value": key} for key in keys])
    found = {message.key(): message.partition() for message in kafka.read_committed(topic, 7)}
    assert found == {key: murmur2(key) % 7 for key in keys}


def test_times_are_written_if_asked_for(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    when = dt.datetime(2020, 2, 3, 4, 5, 6, 789_000, tzinfo=dt.UTC)
    rows = [{"value": b"v", "timestamp": when}, {"value": b"w", "timestamp": None}]
    schema = struct("value", "timestamp")
    write(options(kafka, topic=topic, writeTimestamps="true"), schema, rows)
    write(options(kafka, topic=topic), schema, rows[:1])
    first, second, third = (message.timestamp()[1] for message in kafka.read_committed(topic))
    assert first == int(when.timestamp() * 1000)
    assert second > first
    assert third > first


def test_dedup_headers_name_query_batch_partition_and_row(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    given = parse_write_options(options(kafka, topic=topic), {}, streaming=True)
    schema = struct("value", "headers")
    columns = check_columns(schema, topic, timestamps=False)
    rows = [{"value": b"v", "headers": [{"key": "own", "value": b"1"}]}, {"value": b"w", "headers": None}]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
    produce_batches([batch, batch], columns, given.client, StreamTask("q", 3, 5))
    found = [message.headers() for message in kafka.read_committed(topic)]
    fixed = [("spark.query", b"q"), ("spark.batch", b"3"), ("spark.partition", b"5")]
    assert found[0] == [("own", b"1"), *fixed, ("spark.row", b"0")]
    assert found[3] == [*fixed, ("spark.row", b"3")]


def test_outside_of_a_stream_the_batch_is_not_known() -> None:
    with pytest.raises(ConnectorError, match="KAFKA_NO_BATCH_ID"):
        stream_task()


def test_nothing_is_left_in_a_queue_when_a_task_fails(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    rows = [{"topic": topic, "value": b"v"}] * 5000 + [{"topic": None, "value": b"w"}]
    with pytest.raises(ConnectorError):
        write(options(kafka, kafka__linger__ms="60000"), struct("topic", "value"), rows)
    seen = kafka.end(topic)
    close_sinks()
    assert kafka.end(topic) == seen


@pytest.mark.skipif(bool(native_reason()), reason=native_reason() or "none")
def test_rows_arrive_as_they_were_though_their_memory_is_used_again(kafka: KafkaRig) -> None:
    """The fast way hands the client addresses: a batch must live until the broker has its rows."""
    topic, count, size = kafka.topic(3), 2000, 1000
    memory = bytearray(count * size)
    schema = struct("value")

    def batches() -> Any:
        offsets = pa.array(range(0, count * size + 1, size), pa.int32()).buffers()[1]
        for number in range(4):
            memory[:] = bytes([number]) * len(memory)
            held = pa.py_buffer(bytes(memory))
            value = pa.Array.from_buffers(pa.binary(), count, [None, offsets, held])
            yield pa.RecordBatch.from_arrays([value], schema=arrow_schema(schema))

    given = parse_write_options(options(kafka, topic=topic, kafka__linger__ms="500"), {}, streaming=False)
    sink = NativeSink(given.client, most_held_bytes=3 * len(memory))
    for batch in batches():
        sink.send(batch, check_columns(schema, topic, timestamps=False))
    sink.finish()
    sink.discard()
    found = [message.value() for message in kafka.read_committed(topic, 3)]
    assert sorted(found) == [bytes([number]) * size for number in range(4) for _ in range(count)]


@pytest.mark.parametrize("absent", [True, False], ids=["absent", "silent"])
def test_a_record_that_is_not_delivered_in_time_names_the_topic_only_if_it_is_absent(
    kafka: KafkaRig, *, absent: bool
) -> None:
    given = options(kafka, kafka__delivery__timeout__ms="400", kafka__linger__ms="0", kafka__request__timeout__ms="300")
    given["kafka.topic.metadata.propagation.max.ms"] = "30000"
    topic = kafka.name() if absent else kafka.topic()
    if not absent:
        given["kafka.bootstrap.servers"] = f"127.0.0.1:{free_port()}"
    schema = struct("topic", "value")
    with pytest.raises(ConnectorError) as caught:
        write(given, schema, [{"topic": topic, "value": b"1"}])
    expected = "KAFKA_UNKNOWN_TOPIC_OR_PARTITION" if absent else "KAFKA_UNAVAILABLE"
    assert caught.value.code == expected
    assert topic in str(caught.value)


@pytest.mark.guarantee
@pytest.mark.parametrize("headers", [None, [{"key": "of", "value": b"shop"}]], ids=["without headers", "with headers"])
def test_no_row_is_lost_or_doubled_while_the_leaders_of_a_topic_begin(
    kafka: KafkaRig, headers: list[dict[str, Any]] | None
) -> None:
    # The broker refuses a record of a partition that it does not lead yet, and may take the next one.
    partitions, each = 200, 4
    close_sinks()
    given = options(kafka, kafka__linger__ms="0", kafka__batch__num__messages="1")
    schema = struct("topic", "value", "partition", *(["headers"] if headers else []))
    more = {"headers": headers} if headers else {}
    write(given, schema, [{"topic": kafka.topic(1), "value": b"", "partition": 0, **more}])  # a producer with its id
    name = kafka.name()
    making = kafka.admin.create_topics([NewTopic(name, partitions, 1)])
    rows = [
        {"topic": name, "value": b"%d" % n, "partition": part, **more}
        for n in range(each)
        for part in range(partitions)
    ]
    assert write(given, schema, rows) == len(rows)
    making[name].result()
    found = kafka.read_committed(name, partitions)
    wanted = Counter((part, b"%d" % n) for n in range(each) for part in range(partitions))
    assert Counter((message.partition(), message.value()) for message in found) == wanted
    assert all(message.headers() == ([("of", b"shop")] if headers else None) for message in found)
