"""Batch reads on a real broker: the behaviours of docs/explanation/kafka.md, by their numbers."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
)

from connectors.core.errors import CredentialsError, ServiceUnavailableError
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.datasource import KafkaBatchReader, KafkaPartition
from connectors.kafka.offsets import EARLIEST, LATEST
from connectors.kafka.options.source import KafkaReadOptions, Subscribe, parse_read_options
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range
from tests.servers.certificates import make_certificates
from tests.support.kafka_rig import PATIENCE, SOURCE, KafkaRig, text
from tests.support.kafka_tokens import TokenEndpoint
from tests.support.spark_protocol.driver import BatchRead, TaskFailedError


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(value) for value in text([row["value"] for row in rows]))


def planned(options: Mapping[str, str], *filters: Filter) -> list[KafkaPartition]:
    reader = KafkaBatchReader(CaseInsensitiveDict({**options, "pushDownPredicate": "true"}))
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark applies them too"
    return [each for each in reader.partitions() if isinstance(each, KafkaPartition)]


def test_36_everything_is_read_by_default_and_between_offsets_if_asked_for(kafka: KafkaRig) -> None:
    topic = kafka.topic(3)
    for partition in range(3):
        kafka.send(topic, range(partition * 10, partition * 10 + 5), partition)
    options = kafka.options(topic, startingOffsets=None)
    expected = [*range(5), *range(10, 15), *range(20, 25)]
    assert numbers(kafka.batch(options)) == expected
    first = {topic: {"0": -2, "1": 1, "2": 2}}
    last = {topic: {"0": 3, "1": -1, "2": 2}}
    assert numbers(kafka.batch(kafka.options(topic, startingOffsets=first, endingOffsets=last))) == [
        0,
        1,
        2,
        11,
        12,
        13,
        14,
    ]


def test_36_every_action_binds_earliest_and_latest_anew(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(4))
    with BatchRead(SOURCE, kafka.options(topic), workers=kafka.workers) as read:
        assert sum(table.num_rows for table in read.collect()) == 4
        kafka.send(topic, range(4, 6))
        assert sum(table.num_rows for table in read.collect()) == 6


@pytest.mark.usefixtures("both_paths")
def test_bytes_that_a_disk_has_changed_are_not_read_as_records(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, ["amount 100"])
    kafka.send(topic, ["amount 200"])
    (log,) = (kafka.broker.data / f"{topic}-0").glob("*.log")
    log.write_bytes(log.read_bytes().replace(b"amount 200", b"amount 900"))
    with pytest.raises(TaskFailedError, match=rf"KAFKA_RECORDS_DAMAGED.*offset 1.*CRC.*{topic}-0"):
        kafka.batch(kafka.options(topic))
    unchecked = kafka.batch(kafka.options(topic, kafka__check__crcs="false"))
    assert text([row["value"] for row in unchecked]) == ["amount 100", "amount 900"]


@pytest.mark.parametrize("by_partition", [False, True])
def test_38_what_comes_after_an_ending_time_is_not_read_however_late_tasks_run(
    kafka: KafkaRig, by_partition: bool
) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, ["before"], timestamp=1_700_000_000_000)
    end = 1_700_000_100_000
    ending = {"endingOffsetsByTimestamp": {topic: {"0": end}}} if by_partition else {"endingTimestamp": str(end)}
    with BatchRead(SOURCE, kafka.options(topic, **ending), workers=kafka.workers) as read:
        kafka.send(topic, ["late"], timestamp=end + 5)
        assert text(value for table in read.collect() for value in table["value"].to_pylist()) == ["before"]


@pytest.mark.parametrize(("splits", "gone"), [({}, 3), ({}, 10), ({"minPartitions": "4"}, 1)])
def test_37_earliest_is_what_retention_has_left_when_tasks_run_and_that_is_no_loss(
    kafka: KafkaRig, splits: dict[str, str], gone: int
) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(10))
    with BatchRead(SOURCE, kafka.options(topic, **splits), workers=kafka.workers) as read:
        kafka.delete_records(topic, gone)
        rows = [row for table in read.collect() for row in table.to_pylist()]
    assert numbers(rows) == list(range(gone, 10))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_37_offsets_between_the_parts_of_a_split_are_lost_when_retention_has_taken_them(
    kafka: KafkaRig, fail: str
) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(10))
    options = kafka.options(topic, minPartitions="4", failOnDataLoss=fail)
    with BatchRead(SOURCE, options, workers=kafka.workers) as read:
        kafka.delete_records(topic, 3)
        if fail == "true":
            with pytest.raises(TaskFailedError, match=r"KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE.*offsets \[2, 4\)"):
                read.collect()
            return
        rows = [row for table in read.collect() for row in table.to_pylist()]
    assert numbers(rows) == list(range(3, 10))


TIMES = {
    "timestamp": lambda _topic, time: {"Timestamp": str(time)},
    "timestamps": lambda topic, time: {"OffsetsByTimestamp": {topic: {"0": time}}},
    "offsets": lambda topic, time: {"Offsets": {topic: {"0": time // 1000 - 1}}},
}


@pytest.mark.parametrize(
    ("start", "end"), [pair for pair in itertools.product(TIMES, TIMES) if pair != ("offsets", "offsets")]
)
def test_38_start_and_end_by_time_in_every_mix(kafka: KafkaRig, start: str, end: str) -> None:
    topic = kafka.topic(1)
    for number in range(10):
        kafka.send(topic, [number], timestamp=number * 1000 + 1000)
    options = {f"starting{key}": value for key, value in TIMES[start](topic, 3000).items()}
    options |= {f"ending{key}": value for key, value in TIMES[end](topic, 8000).items()}
    assert numbers(kafka.batch(kafka.options(topic, **({"startingOffsets": None} | options)))) == list(range(2, 7))


def test_38_an_ending_time_that_no_record_has_reached_is_the_end(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(3), timestamp=1000)
    assert numbers(kafka.batch(kafka.options(topic, endingTimestamp="99999"))) == [0, 1, 2]


@pytest.mark.parametrize("strategy", [None, "error", "latest"])
@pytest.mark.parametrize("by_partition", [False, True])
def test_38_a_starting_time_that_no_record_has_reached_is_an_error_or_the_end(
    kafka: KafkaRig, by_partition: bool, strategy: str | None
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(3), timestamp=1000)
    kafka.send(topic, range(10, 13), 1, timestamp=9000)
    times = {"startingOffsetsByTimestamp": {topic: {"0": 5000, "1": 5000}}}
    chosen = times if by_partition else {"startingTimestamp": "5000"}
    options = kafka.options(topic, startingOffsetsByTimestampStrategy=strategy, **chosen)
    if strategy == "latest":
        assert numbers(kafka.batch(options)) == [10, 11, 12]
        return
    said = f"No offset matched from request of topic-partition {topic}-0 and timestamp 5000"
    with pytest.raises(TaskFailedError, match=said):
        kafka.batch(options)


OFFSETS = ("KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED", "offsets")
AT_TIMES = ("KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED", "timestamp-based offsets")


@pytest.mark.parametrize("named", [[0], [0, 1, 2]], ids=["one_too_few", "one_too_many"])
@pytest.mark.parametrize(
    ("option", "side", "said"),
    [
        ("startingOffsets", "start", OFFSETS),
        ("endingOffsets", "end", OFFSETS),
        ("startingOffsetsByTimestamp", "start", AT_TIMES),
        ("endingOffsetsByTimestamp", "end", AT_TIMES),
    ],
    ids=["start", "end", "start_by_time", "end_by_time"],
)
def test_41_offsets_that_name_other_partitions_are_refused_with_both_sets(
    kafka: KafkaRig, option: str, side: str, said: tuple[str, str], named: list[int]
) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(3))
    code, kind = said
    with pytest.raises(TaskFailedError) as caught:
        kafka.batch(kafka.options(topic, **{option: {topic: dict.fromkeys(map(str, named), 1)}}))
    assert f"[{code}] Partitions specified for Kafka {side} {kind} don't match what are assigned" in str(caught.value)
    specified = ", ".join(f"{topic}-{number}" for number in named)
    assert f"Specified: [{specified}] Assigned: [{topic}-0, {topic}-1]" in str(caught.value)
    assert f"({option})" in str(caught.value)


def test_41_a_start_behind_an_end_that_is_given_is_an_error(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    start, end = {topic: {"0": 5, "1": 0}}, {topic: {"0": 2, "1": -1}}
    with pytest.raises(TaskFailedError, match=rf"\[KAFKA_UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\].*{topic}-0"):
        kafka.batch(kafka.options(topic, startingOffsets=start, endingOffsets=end))


@pytest.mark.parametrize("splits", [{}, {"minPartitions": "2"}])
@pytest.mark.parametrize("loss", ["true", "false"])
def test_41_a_start_behind_a_resolved_end_is_an_error(kafka: KafkaRig, splits: dict[str, str], loss: str) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(3))
    options = kafka.options(topic, startingOffsets={topic: {"0": 8}}, failOnDataLoss=loss, **splits)
    with pytest.raises(TaskFailedError, match="KAFKA_RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"):
        kafka.batch(options)


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": None, "subscribePattern": "no-such-topic-.*"},
        {"minPartitions": "5"},
        {"startingOffsets": "here", "endingOffsets": "here"},
    ],
    ids=["no topic", "an empty topic in parts", "a start that is the end"],
)
def test_a_batch_read_that_finds_nothing_to_read_has_no_rows(kafka: KafkaRig, options: dict[str, Any]) -> None:
    topic = kafka.topic(1)
    if "startingOffsets" in options:
        kafka.send(topic, range(3))
        options = {key: {topic: {"0": 2}} for key in options}
    assert kafka.batch(kafka.options(topic, **options)) == []


@pytest.mark.usefixtures("both_paths")
def test_a_batch_read_has_no_rows_that_another_one_has_fetched(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(10))
    first = kafka.options(topic, startingOffsets={topic: {"0": 0}}, endingOffsets={topic: {"0": 5}})
    assert numbers(kafka.batch(first)) == [*range(5)]  # and what is behind them may have been fetched ahead
    kafka.delete_topic(topic)
    kafka.topic(1, topic)
    kafka.send(topic, range(20, 30))
    then = kafka.options(topic, startingOffsets={topic: {"0": 5}}, endingOffsets={topic: {"0": 10}})
    assert numbers(kafka.batch(then)) == [*range(25, 30)]


def test_42_a_split_keeps_earliest_and_latest_at_its_outer_ends(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(3))
    parts = [each.parts[0] for each in planned(kafka.options(topic, minPartitions="3"))]
    assert [(each.start, each.end) for each in parts] == [(EARLIEST, 1), (1, 2), (2, LATEST)]


def test_max_records_per_partition_splits_a_batch_read_too(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(10))
    options = kafka.options(topic, maxRecordsPerPartition="4")
    assert len(planned(options)) == 3
    assert numbers(kafka.batch(options)) == list(range(10))


def test_transactions_in_a_batch_read(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.transaction(topic, range(3))
    kafka.transaction(topic, range(3, 5), commit=False)
    kafka.wait_for_ends(topic)
    committed = kafka.options(topic, kafka__isolation__level="read_committed", kafkaConsumer__pollTimeoutMs="5000")
    assert numbers(kafka.batch(committed)) == [0, 1, 2]
    assert numbers(kafka.batch(kafka.options(topic))) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("both_paths")
@pytest.mark.parametrize(
    ("splits", "parts"),
    [({}, [(EARLIEST, LATEST)]), ({"minPartitions": "3"}, [(EARLIEST, 1), (1, 2), (2, LATEST)])],
    ids=["whole", "split"],
)
def test_a_batch_read_ends_before_the_first_open_transaction(
    kafka: KafkaRig, splits: dict[str, str], parts: list[tuple[int, int]]
) -> None:
    topic = kafka.topic(1)
    kafka.transaction(topic, range(3))  # offsets 0 to 2, and 3 is its end
    kafka.wait_for_ends(topic)
    opened = kafka.transaction(topic, range(10, 15), commit=None)
    options = kafka.options(topic, **splits)
    committed = options | {"kafka.isolation.level": "read_committed"}
    assert [(each.parts[0].start, each.parts[0].end) for each in planned(committed)] == parts  # of 4 offsets, not of 9
    assert numbers(kafka.batch(committed)) == [0, 1, 2]  # who waits for offset 9 gets an error, and no rows
    assert numbers(kafka.batch(options)) == [0, 1, 2, *range(10, 15)]
    opened.abort_transaction(PATIENCE)


def test_more_than_one_batch_of_arrow(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, range(25_000))
    rows = kafka.batch(kafka.options(topic))
    assert [row["offset"] for row in rows] == list(range(25_000))
    assert numbers(rows) == list(range(25_000))


def test_large_records_come_whole(kafka: KafkaRig) -> None:
    topic = kafka.topic(1, max_message_bytes="3000000")
    sent = [bytes([number]) * 900_000 for number in range(40)]
    kafka.send(topic, sent)
    assert [row["value"] for row in kafka.batch(kafka.options(topic))] == sent


# Filters


def test_filters_that_leave_no_range_leave_no_rows(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    assert planned(kafka.options(topic), EqualTo(("partition",), 9)) == []
    assert [*KafkaBatchReader({}).read(InputPartition(None))] == []  # as PySpark then has it


def test_filters_on_topic_and_partition_leave_tasks_out(kafka: KafkaRig) -> None:
    first, second = kafka.topic(3), kafka.topic(1)
    options = kafka.options(f"{first},{second}")
    assert len(planned(options)) == 4
    assert [str(each.parts[0].topic_partition) for each in planned(options, EqualTo(("topic",), second))] == [
        f"{second}-0"
    ]
    parts = planned(options, In(("partition",), (1, 2)))
    assert [str(each.parts[0].topic_partition) for each in parts] == [f"{first}-1", f"{first}-2"]


def test_filters_on_offset_and_timestamp_cut_ranges(kafka: KafkaRig) -> None:
    topic = kafka.topic(2)
    for number in range(10):
        kafka.send(topic, [number], timestamp=number * 1000 + 1000)
    options = kafka.options(topic)
    (part,) = [each.parts[0] for each in planned(options, GreaterThanOrEqual(("offset",), 3), LessThan(("offset",), 7))]
    assert (part.partition, part.start, part.end) == (0, 3, 7)
    since = dt.datetime.fromtimestamp(7, dt.UTC)
    (part,) = [each.parts[0] for each in planned(options, GreaterThanOrEqual(("timestamp",), since))]
    assert (part.partition, part.start, part.end) == (0, 6, 10)
    later = dt.datetime.fromtimestamp(60, dt.UTC)
    assert planned(options, GreaterThanOrEqual(("timestamp",), later)) == []


# Log-in and encryption


def secured(kafka: KafkaRig, topic: str, **options: str) -> dict[str, str]:
    return kafka.options(
        topic,
        kafka__bootstrap__servers=kafka.broker.sasl_endpoint,
        kafka__security__protocol="SASL_PLAINTEXT",
        **options,
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_log_in_by_user_and_password(kafka: KafkaRig, mechanism: str) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1, 2])
    options = secured(
        kafka,
        topic,
        kafka__sasl__mechanism=mechanism,
        kafka__sasl__username="shop",
        kafka__sasl__password="shop-secret",
    )
    assert numbers(kafka.batch(options)) == [1, 2]
    with kafka.query(options) as query:
        assert query.run_batch().rows == 2


@pytest.mark.parametrize(
    "login",
    [
        '{} required username="shop" password="shop-secret";',
        "\nkafkashaded.{} Required debug=true\n  username='shop' password=shop-secret ;",
    ],
)
def test_log_in_as_a_jvm_client_writes_it(kafka: KafkaRig, login: str) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1])
    login = login.format("org.apache.kafka.common.security.scram.ScramLoginModule")
    options = secured(kafka, topic, kafka__sasl__mechanism="SCRAM-SHA-256", kafka__sasl__jaas__config=login)
    assert numbers(kafka.batch(options)) == [1]


def test_log_in_by_tokens_of_a_class(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1, 2, 3])
    options = secured(
        kafka, topic, kafka__sasl__mechanism="OAUTHBEARER", tokenProvider="tests.support.kafka_tokens:UnsignedTokens"
    )
    assert numbers(kafka.batch(options)) == [1, 2, 3]
    with kafka.query(options) as query:
        assert query.run_batch().rows == 3


OIDC_LOGIN = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'clientId="me" clientSecret="canary-41" scope="all";'
)
OIDC: dict[str, dict[str, str]] = {
    "librdkafka": {
        "kafka__sasl__oauthbearer__method": "oidc",
        "kafka__sasl__oauthbearer__client__id": "me",
        "kafka__sasl__oauthbearer__client__secret": "canary-41",
        "kafka__sasl__oauthbearer__scope": "all",
    },
    "jvm": {
        "kafka__sasl__jaas__config": OIDC_LOGIN,
        "kafka__sasl__login__callback__handler__class": (
            "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
        ),
    },
}


def by_oidc(kafka: KafkaRig, topic: str, endpoint: TokenEndpoint, words: str) -> dict[str, str]:
    return secured(
        kafka,
        topic,
        kafka__sasl__mechanism="OAUTHBEARER",
        kafka__sasl__oauthbearer__token__endpoint__url=endpoint.url,
        fetchOffset__numRetries="1",
        **OIDC[words],
    )


@pytest.mark.parametrize("words", OIDC)
def test_log_in_by_tokens_of_an_oidc_endpoint(kafka: KafkaRig, words: str) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1, 2, 3])
    with TokenEndpoint("me", "canary-41") as endpoint:
        options = by_oidc(kafka, topic, endpoint, words)
        assert numbers(kafka.batch(options)) == [1, 2, 3]
        with kafka.query(options) as query:
            assert query.run_batch().rows == 3
    assert {tuple(form["scope"]) for form in endpoint.requests} == {("all",)}


def test_a_wrong_secret_of_an_oidc_client_is_an_error_that_does_not_show_it(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    with TokenEndpoint("me", "another") as endpoint, pytest.raises(TaskFailedError) as caught:
        kafka.batch(by_oidc(kafka, topic, endpoint, "librdkafka"))
    assert endpoint.requests == []
    assert "[KAFKA_LOG_IN]" in str(caught.value)
    assert "canary-41" not in str(caught.value)


def test_a_wrong_password_is_an_error_that_does_not_show_it(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    options = secured(
        kafka,
        topic,
        kafka__sasl__mechanism="PLAIN",
        kafka__sasl__username="shop",
        kafka__sasl__password="canary-7fa3",
        fetchOffset__numRetries="1",
    )
    with pytest.raises(TaskFailedError) as caught:
        kafka.batch(options)
    assert "[KAFKA_LOG_IN]" in str(caught.value)
    assert "canary-7fa3" not in str(caught.value)


def test_mutual_tls(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1, 2])
    folder = kafka.broker.certificates
    options = kafka.options(
        topic,
        kafka__bootstrap__servers=kafka.broker.ssl_endpoint,
        kafka__security__protocol="SSL",
        kafka__ssl__truststore__type="PEM",
        kafka__ssl__truststore__location=str(folder / "ca.pem"),
        kafka__ssl__keystore__type="PEM",
        kafka__ssl__keystore__location=str(folder / "client-all.pem"),
    )
    assert numbers(kafka.batch(options)) == [1, 2]


@pytest.mark.parametrize("space", ["\n", " "], ids=["lines", "one-line"])
def test_mutual_tls_with_certificates_in_the_options(kafka: KafkaRig, space: str) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1, 2])
    authority, certificate, key = (
        (kafka.broker.certificates / name).read_text().replace("\n", space)
        for name in ("ca.pem", "client.pem", "client.key")
    )
    options = kafka.options(
        topic,
        kafka__bootstrap__servers=kafka.broker.ssl_endpoint,
        kafka__security__protocol="SSL",
        kafka__ssl__truststore__certificates=authority,
        kafka__ssl__keystore__certificate__chain=certificate,
        kafka__ssl__keystore__key=key,
    )
    assert numbers(kafka.batch(options)) == [1, 2]


@pytest.mark.parametrize("given", ["none", "of another authority"])
def test_a_certificate_that_the_broker_refuses_is_an_error_at_once_that_names_its_options(
    kafka: KafkaRig, tmp_path: Path, given: str
) -> None:
    options = kafka.options(
        kafka.topic(1),
        kafka__bootstrap__servers=kafka.broker.ssl_endpoint,
        kafka__security__protocol="SSL",
        kafka__ssl__ca__location=str(kafka.broker.certificates / "ca.pem"),
    )
    if given != "none":
        stranger = make_certificates(tmp_path / "stranger") / "client-all.pem"
        options |= {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": str(stranger)}
    with pytest.raises(TaskFailedError, match=r"\[KAFKA_LOG_IN\].*certificate.*kafka\.ssl\.keystore") as caught:
        kafka.batch(options)
    assert "SSL alert number" in str(caught.value)


@pytest.mark.usefixtures("both_paths")
def test_a_task_whose_certificate_the_broker_refuses_ends_long_before_the_poll_timeout(kafka: KafkaRig) -> None:
    topic = kafka.topic(1)
    kafka.send(topic, [1])
    secure = {"kafka.security.protocol": "SSL", "kafka.bootstrap.servers": kafka.broker.ssl_endpoint}
    options = kafka.options(topic, kafka__ssl__ca__location=str(kafka.broker.certificates / "ca.pem"), **secure)
    settings = KafkaReadOptions(
        client=parse_read_options(options, {}, streaming=False).client, group="g", poll_timeout_ms=60_000
    )
    began = time.monotonic()
    with pytest.raises(CredentialsError, match="SSL alert number"):
        list(read_range(OffsetRange(topic, 0, 0, 1), settings))
    assert time.monotonic() - began < 30


def test_a_token_endpoint_that_is_away_is_an_error_that_passes_with_what_the_client_said(kafka: KafkaRig) -> None:
    with TokenEndpoint("me", "canary-41") as endpoint:
        options = by_oidc(kafka, kafka.topic(1), endpoint, "librdkafka")
    client = parse_read_options(options, {}, streaming=False).client
    with KafkaLookup(client, call_seconds=3.0) as lookup:
        end = time.monotonic() + PATIENCE
        while lookup._connection_errors._last is None:  # else the time may be over before the client has tried
            assert time.monotonic() < end
            lookup._consumer.poll(0.01)
        with pytest.raises(ServiceUnavailableError, match=r"Failed to acquire SASL OAUTHBEARER token: .*connect"):
            lookup.partitions(Subscribe((kafka.name(),)))


def test_an_unknown_setting_of_the_client_is_an_error_that_names_it(kafka: KafkaRig) -> None:
    with pytest.raises(TaskFailedError, match=r"\[KAFKA_SETTING\].*fetch.tiny.bytes"):
        kafka.batch(kafka.options(kafka.topic(1), kafka__fetch__tiny__bytes="1"))
