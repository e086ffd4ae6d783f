"""What the processes of Spark's driver send and log beside their answer: PySpark's workers as they are, without a JVM.

A Spark whose workers send no empty profile needs none of `withhold_empty_profiles`; the first test fails there.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.core.datasource import ConnectorSource, showing_secrets
from connectors.kafka.datasource import KafkaDataSource
from connectors.kinesis.datasource import KinesisDataSource
from connectors.pubsub.datasource import PubSubDataSource
from connectors.testing.kafka.mock import MockKafka
from tests.support.planner_process import (
    PlainSource,
    commit_batch,
    commit_stream,
    create,
    plan_stream,
    plan_write,
    push_filters,
    sends_no_update,
)

pytestmark = [
    pytest.mark.skipif(
        find_spec("pyspark.sql.worker.utils") is None, reason="workers before Spark 4.2 have no profiles"
    ),
    pytest.mark.may_skip_in_ci("workers before Spark 4.2 have no profiles"),
]

PROFILER = {"spark.sql.pyspark.dataSource.profiler": "perf"}
READS: list[tuple[type[ConnectorSource], dict[str, str]]] = [
    (KafkaDataSource, {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}),
    (KinesisDataSource, {"streamName": "orders", "region": "us-east-1", "endpointUrl": "http://127.0.0.1:1"}),
    (
        PubSubDataSource,
        {"subscriptionId": "projects/a/subscriptions/b", "endpoint": "127.0.0.1:1", "spoolLocation": "/nowhere/s"},
    ),
]
WRITES: list[tuple[type[ConnectorSource], dict[str, str], str]] = [
    (KafkaDataSource, {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"}, "value"),
    (KinesisDataSource, {"region": "us-east-1", "endpointUrl": "http://127.0.0.1:1"}, "data"),
    (PubSubDataSource, {"topicId": "projects/a/topics/b", "endpoint": "127.0.0.1:1"}, "payload"),
]


def test_this_spark_sends_empty_profiles_of_sources_that_do_not_withhold_them() -> None:
    assert create(PlainSource, {}).updates == {-1: {}, -2: {}}


@pytest.mark.parametrize(("source", "options"), READS)
def test_a_source_that_is_built_or_planned_sends_no_empty_profile(
    source: type[DataSource], options: dict[str, str]
) -> None:
    created = create(source, options)
    assert created.updates == {}
    assert sends_no_update(plan_stream(created))


@pytest.mark.parametrize(("source", "options"), READS)
def test_with_spark_s_profiler_on_the_profiles_of_a_source_arrive(
    source: type[DataSource], options: dict[str, str]
) -> None:
    sent = create(source, options, PROFILER).updates
    assert sorted(sent) == [-2, -1]
    assert all(sent.values())


@pytest.mark.parametrize(("source", "options", "column"), WRITES)
def test_a_write_that_is_planned_or_committed_sends_no_empty_profile(
    source: type[DataSource], options: dict[str, str], column: str
) -> None:
    names = ("stream", "partitionKey") if source is KinesisDataSource else ()
    rows = StructType([*(StructField(name, StringType()) for name in names), StructField(column, BinaryType())])
    assert sends_no_update(plan_write(source, options, rows, streaming=True))
    assert sends_no_update(plan_write(source, options, rows, streaming=False))
    built = source(CaseInsensitiveDict(options))
    assert sends_no_update(commit_stream(built, rows))
    assert sends_no_update(commit_batch(built.writer(rows, overwrite=False)))


def test_filters_that_are_pushed_send_no_empty_profile() -> None:
    with MockKafka() as kafka:
        kafka.create_topic("orders", 2)
        options = {"kafka.bootstrap.servers": kafka.endpoint, "subscribe": "orders"}
        assert sends_no_update(push_filters(KafkaDataSource(CaseInsensitiveDict(options))))


SECRETS: list[tuple[type[ConnectorSource], dict[str, str], str]] = [
    (KafkaDataSource, READS[0][1], "kafka.sasl.password"),
    (KinesisDataSource, {**READS[1][1], "awsAccessKey": "env:SHOP_SECRET"}, "awsSecretKey"),
    (PubSubDataSource, {**READS[2][1], "spoolLocation": "s3://shop/spool", "spoolKeyId": "id"}, "spoolSecret"),
]


@pytest.mark.parametrize(("source", "options", "secret"), SECRETS)
def test_a_session_that_hides_nothing_is_warned_of_a_secret_that_is_given_itself_and_of_no_other(
    source: type[ConnectorSource],
    options: dict[str, str],
    secret: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "canary-71b")
    file = tmp_path / "secret"
    file.write_text("canary-71b")

    def logged(kind: type[DataSource], value: str) -> str:
        create(kind, {**options, secret: value})
        return capsys.readouterr().err

    warned = logged(showing_secrets(source), "canary-71b")
    assert f"[SPARK_SHOWS_SECRETS] {source.name()}: the option {secret.lower()} " in warned.lower().replace(
        "[spark_shows_secrets]", "[SPARK_SHOWS_SECRETS]"
    )
    assert "canary-71b" not in warned
    for value in ("env:SHOP_SECRET", f"file:{file}"):
        assert "SPARK_SHOWS_SECRETS" not in logged(showing_secrets(source), value)
    assert "SPARK_SHOWS_SECRETS" not in logged(source, "canary-71b")


def test_a_sink_in_a_session_that_hides_nothing_is_warned_of_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    source, options, column = WRITES[0]
    rows = StructType([StructField(column, BinaryType())])
    for streaming in (True, False):
        plan_write(showing_secrets(source), {**options, "kafka.sasl.password": "canary-71b"}, rows, streaming=streaming)
        logged = capsys.readouterr().err
        assert "[SPARK_SHOWS_SECRETS] kafka_py: the option kafka.sasl.password" in logged
        assert "canary-71b" not in logged
