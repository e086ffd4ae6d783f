"""Options of the Kafka sink: what the producer gets of them, and what is refused."""

from __future__ import annotations

import logging

import pytest

from connectors.core.errors import OptionError
from connectors.kafka.client.factory import open_producer
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.sink import parse_write_options

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9"}


def written(given: dict[str, str], **options: str) -> ClientSettings:
    raw = BROKER | {"topic": "orders"} | options | {f"kafka.{name}": value for name, value in given.items()}
    return parse_write_options(raw, {}, streaming=True).client


@pytest.mark.parametrize(("text", "kilobytes"), [("67108864", "65536"), (" 2048 ", "2"), ("0", "1")])
def test_the_memory_of_the_producer_is_bytes(text: str, kilobytes: str) -> None:
    assert written({"buffer.memory": text}).get("queue.buffering.max.kbytes") == kilobytes


@pytest.mark.parametrize("text", ["64m", "-1", "1.5", "", "64_000", "²"])
def test_a_memory_of_the_producer_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        written({"buffer.memory": text})
    assert caught.value.code == "OPTION_ILLEGAL"
    assert f"The option kafka.buffer.memory cannot be {text!r}" in caught.value.what
    assert "67108864" in caught.value.action


@pytest.mark.parametrize("prefix", ["заказы", "größe", "a\tb", "a\x7fb"])
def test_a_prefix_of_transactions_that_the_client_would_refuse_in_every_task_is_refused_at_once(prefix: str) -> None:
    with pytest.raises(OptionError, match="transactionalIdPrefix") as caught:
        written({}, deliveryGuarantee="exactly_once", transactionalIdPrefix=prefix)
    assert caught.value.code == "OPTION_ILLEGAL"
    assert "printable characters of ASCII" in caught.value.action


def test_a_prefix_of_transactions_may_have_any_printable_character_of_ascii() -> None:
    printable = "".join(map(chr, range(33, 127)))
    assert written({}, deliveryGuarantee="exactly_once", transactionalIdPrefix=f"a {printable}").plain


def test_the_time_of_a_record_follows_from_retry_timeout() -> None:
    def milliseconds(**options: str) -> str | None:
        raw = {"kafka.bootstrap.servers": "b:9092", "topic": "t", **options}
        return parse_write_options(raw, {}, streaming=True).client.get("delivery.timeout.ms")

    assert milliseconds() == "600000"
    assert milliseconds(retryTimeout="1m") == "60000"
    assert milliseconds(deliveryGuarantee="exactly_once") == "600000"
    assert milliseconds(deliveryGuarantee="exactly_once", retryTimeout="1h") == "900000"
    assert milliseconds(**{"kafka.delivery.timeout.ms": "7000"}) == "7000"


DEFAULT_PARTITIONER = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"


@pytest.mark.parametrize("name", ["com.acme.RoundRobinPartitioner", "x.DefaultPartitioner", "DefaultPartitioner"])
def test_a_partitioner_that_is_not_kafkas_own_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(OptionError, match=f"The partitioner {name} is a class of the JVM"):
        written({"partitioner.class": name})


# Idempotence: what ProducerConfig of kafka-clients 3.9 makes of the same settings

SWITCHED_OFF = [
    {"retries": "0"},
    {"retries": "+00"},
    {"message.send.max.retries": "0"},
    {"max.in.flight.requests.per.connection": "6"},
    {"max.in.flight": "1000000"},
    {"acks": "1"},
    {"acks": "0"},
    {"request.required.acks": "1"},
    {"retries": "0", "max.in.flight.requests.per.connection": "6"},
]


@pytest.mark.parametrize("given", SWITCHED_OFF, ids=str)
def test_what_an_idempotent_producer_cannot_have_switches_idempotence_off(given: dict[str, str]) -> None:
    settings = written(given)
    assert settings.get("enable.idempotence") == "false"
    # As whole numbers are written everywhere: librdkafka reads others by the rules of C.
    assert {name: settings.get(name) for name in given} == {**given, **({"retries": "0"} if "retries" in given else {})}
    open_producer(settings, {})


@pytest.mark.parametrize("given", SWITCHED_OFF, ids=str)
def test_with_idempotence_asked_for_it_is_refused_in_the_jvm_clients_words(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"Must set (retries|acks|max\.in\.flight[a-z.]*) to") as caught:
        written({**given, "enable.idempotence": "true"})
    assert "or give kafka.enable.idempotence=false" in caught.value.action


@pytest.mark.parametrize("given", SWITCHED_OFF, ids=str)
def test_with_transactions_it_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="exactly_once needs an idempotent producer") as caught:
        written(given, deliveryGuarantee="exactly_once")
    assert caught.value.action == f"Leave kafka.{next(iter(given))} out."


@pytest.mark.parametrize("given", SWITCHED_OFF, ids=str)
def test_without_idempotence_all_of_it_may_be_given(given: dict[str, str]) -> None:
    open_producer(written({**given, "enable.idempotence": "false"}), {})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"retries": "1"},
        {"acks": "-1"},
        {"acks": "ALL"},
        {"max.in.flight.requests.per.connection": "5"},
        {"enable.idempotence": "true", "retries": "3", "acks": "all", "max.in.flight.requests.per.connection": "1"},
    ],
    ids=str,
)
def test_the_producer_is_idempotent_otherwise(given: dict[str, str]) -> None:
    for guarantee in ("at_least_once", "exactly_once"):
        settings = written(given, deliveryGuarantee=guarantee)
        assert settings.get("enable.idempotence") == "true"
        open_producer(settings, {})


def test_that_idempotence_is_off_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            written({"max.in.flight": "77"})
    assert [record.getMessage() for record in caplog.records] == [
        "[KAFKA_IDEMPOTENCE_OFF] Idempotence will be disabled because max.in.flight is set to 77."
    ]


# Partitioners and compression


@pytest.mark.parametrize(
    ("given", "partitioner"),
    [
        ({}, "murmur2_random"),
        ({"partitioner.ignore.keys": "false"}, "murmur2_random"),
        ({"partitioner.ignore.keys": "True"}, "random"),
        ({"partitioner.class": DEFAULT_PARTITIONER}, "murmur2_random"),
        ({"partitioner.class": "org.apache.kafka.clients.producer.UniformStickyPartitioner"}, "random"),
        ({"partitioner.ignore.keys": "true", "partitioner.class": DEFAULT_PARTITIONER}, "murmur2_random"),
        ({"partitioner.class": f"kafkashaded.{DEFAULT_PARTITIONER}"}, "murmur2_random"),
        ({"partitioner.ignore.keys": "true", "partitioner": "fnv1a"}, "fnv1a"),
    ],
    ids=str,
)
def test_partitioners_of_the_jvm_client_are_translated(given: dict[str, str], partitioner: str) -> None:
    assert written(given).get("partitioner") == partitioner


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({"compression.type": "zstd", "compression.zstd.level": "3", "compression.gzip.level": "9"}, "3"),
        ({"compression.codec": "gzip", "compression.gzip.level": " -1 "}, "-1"),
        ({"compression.type": "snappy", "compression.lz4.level": "99"}, None),
        ({"compression.lz4.level": "9"}, None),
        ({"compression.type": "lz4", "compression.lz4.level": "9", "compression.level": "2"}, "2"),
    ],
    ids=str,
)
def test_the_level_of_the_codec_in_use_is_taken(given: dict[str, str], level: str | None) -> None:
    settings = written(given)
    assert settings.get("compression.level") == level
    open_producer(settings, {})


@pytest.mark.parametrize("value", ["13", "-2", "high"])
def test_a_level_that_librdkafka_has_not_is_refused_by_the_name_that_was_given(value: str) -> None:
    with pytest.raises(OptionError, match=f"kafka.compression.zstd.level cannot be '{value}'") as caught:
        written({"compression.type": "zstd", "compression.zstd.level": value})
    assert "to 12" in caught.value.action


def test_a_record_may_be_as_large_as_with_the_jvm_client_unless_a_size_is_given() -> None:
    assert written({}).get("message.max.bytes") == str(1 << 20)
    assert written({"max.request.size": "2000000"}).get("message.max.bytes") == "2000000"
    assert written({"message.max.bytes": "500000"}).get("message.max.bytes") == "500000"


@pytest.mark.parametrize("size", ["max.request.size", "message.max.bytes"])
@pytest.mark.parametrize("queue", [{"buffer.memory": "2048000"}, {"queue.buffering.max.kbytes": "2000"}], ids=str)
def test_no_record_may_be_larger_than_the_queue(size: str, queue: dict[str, str]) -> None:
    assert written({size: "5000000", **queue}).get("message.max.bytes") == "2048000"
    assert written({size: "1500000", **queue}).get("message.max.bytes") == "1500000"


@pytest.mark.parametrize(
    ("given", "stays"),
    [
        ({}, "1"),
        ({"partitioner.class": ROUND_ROBIN}, "0"),
        ({"partitioner.class": ROUND_ROBIN, "sticky.partitioning.linger.ms": "7"}, "7"),
        ({"sticky.partitioning.linger.ms": "20"}, "20"),
    ],
    ids=str,
)
def test_rows_without_a_key_go_to_one_partition_for_a_short_time(given: dict[str, str], stays: str) -> None:
    assert written(given).get("sticky.partitioning.linger.ms") == stays


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        ({}, "600000"),
        ({"linger.ms": "700000"}, "730000"),
        ({"delivery.timeout.ms": "5000"}, "5000"),
        ({"message.timeout.ms": "5000"}, None),
        ({"queue.buffering.max.ms": "700000"}, "730000"),
        ({"linger.ms": "700000.5"}, "730001"),
        ({"request.timeout.ms": "700000"}, "700000"),
        ({"linger.ms": "5000", "request.timeout.ms": "900000"}, "905000"),
    ],
    ids=str,
)
def test_a_record_may_take_as_long_as_an_outage_and_no_less_than_with_the_jvm_client(
    given: dict[str, str], milliseconds: str | None
) -> None:
    settings = written(given)
    assert settings.get("delivery.timeout.ms") == milliseconds
    open_producer(settings, {})


def test_in_a_transaction_a_record_may_take_no_longer_than_the_transaction() -> None:
    settings = written({"transaction.timeout.ms": "20000"}, deliveryGuarantee="exactly_once")
    assert settings.get("delivery.timeout.ms") == "20000"
    open_producer(settings, {"transactional.id": "t"})


@pytest.mark.parametrize("name", ["markerTopic", "onMissingMarker", "transactionalIdPrefix"])
def test_an_option_of_exactly_once_is_refused_without_it(name: str) -> None:
    raw = {"kafka.bootstrap.servers": "b:1", "topic": "t", name: "fail"}
    with pytest.raises(OptionError, match=f"The options {name} and deliveryGuarantee conflict"):
        parse_write_options(raw, {}, streaming=True)
