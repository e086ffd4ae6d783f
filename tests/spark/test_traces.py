"""The page about traces, run as it stands but for services and folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from connectors.testing.kafka.mock import MockKafka
from connectors.testing.pubsub import PubSubServer
from tests.support.documents import blocks

PAGE = (Path(__file__).parents[2] / "docs/how-to/traces.md").read_text(encoding="utf-8")
FIRST, SECOND = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
OF_HEADERS = "array<struct<key: string, value: binary>>"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    return spans


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as running:
        for topic in ("orders", "shouted"):
            running.create_topic(topic, 1)
        yield running


def block_run_by(test: str, changes: dict[str, str]) -> str:
    (code,) = [one.text for one in blocks(PAGE) if one.run_by.endswith(f"::{test}")]
    for before, after in changes.items():
        assert before in code
        code = code.replace(before, after)
    return code


def start(spark: SparkSession, kafka: MockKafka, folder: Path, **more: str) -> Any:
    """The query of the page, on all records that there are."""
    changes = {
        "broker:9092": kafka.endpoint,
        'includeHeaders="true"': 'includeHeaders="true", startingOffsets="earliest"',
        "/data/": f"{folder}/",
        ".start()": ".trigger(availableNow=True).start()",
        **more,
    }
    test = "test_a_batch_has_a_span_with_links_to_its_messages_whose_context_the_sink_passes_on"
    names: dict[str, Any] = {"spark": spark}
    exec(compile(block_run_by(test, changes), "traces.md", "exec"), names)
    return names["query"]


def records(spark: SparkSession, kafka: MockKafka, topic: str) -> DataFrame:
    reader = spark.read.format("kafka_py").option("kafka.bootstrap.servers", kafka.endpoint)
    return reader.option("subscribe", topic).option("includeHeaders", "true").load()


def test_a_batch_has_a_span_with_links_to_its_messages_whose_context_the_sink_passes_on(
    spark: SparkSession, kafka: MockKafka, exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    exporter.clear()
    producer = Producer({"bootstrap.servers": kafka.endpoint})
    sent = {"a": FIRST, "b": FIRST, "c": SECOND, "d": "00-not-of-w3c", "e": None, "f": "\xff"}
    for value, context in sent.items():
        headers = [("kind", b"order"), *([("traceparent", context.encode("latin-1"))] if context else [])]
        producer.produce("orders", value.encode(), headers=headers if value != "e" else None)
    producer.flush()
    start(spark, kafka, tmp_path).awaitTermination()
    (span,) = exporter.get_finished_spans()
    linked = {f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-01" for link in span.links}
    assert (len(span.links), linked) == (2, {FIRST, SECOND})
    assert (span.name, span.kind, span.parent) == ("process orders", trace.SpanKind.CONSUMER, None)
    assert span.attributes is not None
    assert span.attributes["messaging.operation.type"] == "process"
    assert span.status.is_ok
    written = {
        bytes(row.value).decode(): {header.key: bytes(header.value) for header in row.headers or []}
        for row in records(spark, kafka, "shouted").collect()
    }
    assert written == {
        value: {"kind": b"order", **({"traceparent": context.encode("latin-1")} if context else {})}
        if value != "e"
        else {}
        for value, context in sent.items()
    }


def test_a_batch_that_fails_ends_its_span_with_the_error(
    spark: SparkSession, kafka: MockKafka, exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    exporter.clear()
    producer = Producer({"bootstrap.servers": kafka.endpoint})
    producer.produce("orders", b"a")
    producer.flush()
    query = start(spark, kafka, tmp_path, **{'topic="shouted"': 'topic="shouted", noSuchOption="1"'})
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]


def test_the_context_of_a_message_passes_between_services(
    spark: SparkSession, kafka: MockKafka, tmp_path: Path
) -> None:
    names: dict[str, Any] = {
        "messages": spark.createDataFrame(
            [(bytearray(b"a"), {"googclient_traceparent": FIRST}), (bytearray(b"b"), {})],
            "payload BINARY, attributes MAP<STRING, STRING>",
        ),
        "orders": spark.createDataFrame(
            [(bytearray(b"c"), SECOND), (bytearray(b"d"), None)], "value BINARY, traceparent STRING"
        ),
    }
    exec(compile(block_run_by("test_the_context_of_a_message_passes_between_services", {}), "traces.md", "exec"), names)
    writer = names["to_kafka"].write.format("kafka_py").mode("append")
    writer.option("kafka.bootstrap.servers", kafka.endpoint).option("topic", "shouted").save()
    rows = records(spark, kafka, "shouted").collect()
    assert {(bytes(row.value), *(bytes(header.value) for header in row.headers or [])) for row in rows} == {
        (b"a", FIRST.encode()),
        (b"b",),
    }
    with PubSubServer() as server:
        server.create_subscription("projects/shop/subscriptions/out", "projects/shop/topics/out")
        writer = names["to_pubsub"].write.format("pubsub").mode("append").option("endpoint", server.endpoint)
        writer.option("topicId", "projects/shop/topics/out").option("idAttribute", "none").save()
        reader = spark.readStream.format("pubsub").option("subscriptionId", "projects/shop/subscriptions/out")
        reader = reader.option("endpoint", server.endpoint).option("spoolLocation", str(tmp_path / "spool"))
        published: set[Any] = set()
        writer = reader.option("availableNowQuiet", "100ms").load().writeStream.trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(
            lambda batch, _: published.update((bytes(row.payload), *row.attributes.items()) for row in batch.collect())
        ).start().awaitTermination()
    assert published == {(b"c", ("googclient_traceparent", SECOND)), (b"d",)}
