"""`from_mixed` and `to_mixed` in Spark: one job for three formats, with bad records beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

from connectors.bad_records import split_bad_records
from connectors.mixed import from_mixed, to_mixed
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.documents import blocks
from tests.support.mixed_rig import DETAILS, MEMBERS, ORDER, TOPIC, MixedTopic

ROOT = Path(__file__).parents[2]
COLUMNS = "value BINARY, key STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


@pytest.fixture(scope="module")
def topic() -> Iterator[MixedTopic]:
    with SchemaRegistryServer() as running:
        yield MixedTopic(running)


def rows_of(topic: MixedTopic) -> list[tuple[bytes | None, str, Any]]:
    return [
        (topic.order_message(1), "order", None),
        (topic.click_message(2), "click", None),
        (topic.payment_message(3), "payment", None),
        (None, "null", None),
        (topic.refund_message(), "refund", None),
        (topic.frame(topic.order, b"\x02"), "bad order", None),
        (topic.frame(topic.click, b'{"page": '), "bad click", None),
    ]


def test_a_stream_of_three_formats_is_decoded_and_its_bad_records_go_elsewhere(
    spark: SparkSession, topic: MixedTopic, tmp_path: Path
) -> None:
    spark.createDataFrame(rows_of(topic), COLUMNS).coalesce(1).write.parquet(str(tmp_path / "in"))
    events = spark.readStream.schema(COLUMNS).parquet(str(tmp_path / "in"))
    event = from_mixed("value", MEMBERS, options=DETAILS, schemaRegistry=topic.registry, headers="headers")
    good: list[Row] = []
    query = (
        events.withColumn("event", event)
        .writeStream.foreachBatch(
            split_bad_records(
                lambda batch, _: good.extend(batch.collect()), "event", badRecordsPath=str(tmp_path / "bad")
            )
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    by_key = {row["key"]: row["event"] for row in good}
    assert set(by_key) == {"order", "click", "payment", "null"}
    assert by_key["null"] is None
    assert by_key["order"].asDict(recursive=True) == {
        "type": "order",
        "order": {"id": 1, "lines": [{"sku": "s0", "count": 0}], "tags": {"a": "1"}, "note": None},
        "payment": None,
        "click": None,
    }
    assert by_key["click"]["click"] == Row(page="/2", at=Row(x=2))
    assert by_key["payment"]["payment"]["id"] == "p3"
    bad = {row["key"]: row["bad_record"] for row in spark.read.parquet(str(tmp_path / "bad")).collect()}
    assert {key: (row["code"], row["schema"], row["subject"]) for key, row in bad.items()} == {
        "refund": ("MIXED_TYPE_UNKNOWN", str(topic.payment), None),
        "bad order": ("MALFORMED_AVRO_MESSAGE", str(topic.order), "events-com.shop.Order"),
        "bad click": ("MALFORMED_JSON_MESSAGE", str(topic.click), "events-Click"),
    }


def test_a_header_of_kafka_selects_and_bad_rows_are_null(spark: SparkSession) -> None:
    def header(name: str) -> list[tuple[str, bytes]]:
        return [("trace", b"1"), ("type", name.encode())]

    rows = [(b'{"page": "a"}', "1", header("click")), (b"{", "2", header("click")), (b"{}", "3", header("refund"))]
    frame = spark.createDataFrame([*rows, (b"{}", "4", None), (None, "5", header("click"))], COLUMNS).coalesce(1)
    members = {"click": {"format": "json", "schema": '{"type": "object", "properties": {"page": {"type": "string"}}}'}}
    header_of = F.get(F.filter("headers", lambda header: header["key"] == "type"), F.lit(0))
    kind = header_of["value"].cast("string")
    null = from_mixed(F.col("value"), members, kind, {"mode": "PERMISSIVE"}).alias("event")
    text = from_mixed("value", members, kind, {"on.error": "column"}, headers="headers").alias("shown")
    result = frame.select("key", null, text).sort("key").collect()
    click = Row(type="click", click=Row(page="a"))
    assert [row["event"] for row in result] == [click, None, None, None, None]
    assert [row["shown"] and row["shown"]["value"] for row in result] == [click, None, None, None, None]
    assert result[4]["shown"] is None
    assert "is not JSON" in result[1]["shown"]["error"]
    assert "'refund'" in result[2]["shown"]["error"]
    assert "NULL" in result[3]["shown"]["error"]


@pytest.mark.parametrize("place", [4, 5, 6])
def test_under_failfast_a_bad_record_ends_the_query_by_its_code(
    spark: SparkSession, topic: MixedTopic, place: int
) -> None:
    code = {4: "MIXED_TYPE_UNKNOWN", 5: "MALFORMED_AVRO_MESSAGE", 6: "MALFORMED_JSON_MESSAGE|MALFORMED_RECORD"}[place]
    rows = rows_of(topic)
    frame = spark.createDataFrame([*rows[:4], rows[place]], COLUMNS).coalesce(1)
    event = from_mixed("value", MEMBERS, options=TOPIC, schemaRegistry=topic.registry)
    good = spark.createDataFrame(rows[:4], COLUMNS).select(event.alias("event")).select("event.*").collect()
    assert [row["type"] for row in good] == ["order", "click", "payment", None]
    with pytest.raises(Exception, match=code) as failure:
        frame.select(event).collect()
    assert isinstance(failure.value, PythonException) == (place != 6)


def test_the_column_has_the_name_of_the_call_and_the_types_of_the_members(
    spark: SparkSession, topic: MixedTopic
) -> None:
    frame = spark.createDataFrame([], COLUMNS)
    event = from_mixed("value", MEMBERS, options=TOPIC, schemaRegistry=topic.registry)
    schema = frame.select(event).schema
    assert schema.names == ["from_mixed(value)"]
    assert schema[0].dataType.simpleString() == (
        "struct<type:string,order:struct<id:bigint,lines:array<struct<sku:string,count:int>>,tags:map<string,string>,"
        "note:string>,payment:struct<id:string,amount:double,card:struct<holder:string>>,"
        "click:struct<page:string,at:struct<x:bigint>>>"
    )
    assert json.loads(schema.json())["fields"][0]["nullable"]


def test_what_is_written_is_read_and_two_values_in_a_row_end_the_query(spark: SparkSession, topic: MixedTopic) -> None:
    frame = spark.createDataFrame(rows_of(topic)[:4], COLUMNS)
    event = from_mixed("value", MEMBERS, options=TOPIC, schemaRegistry=topic.registry)
    frame = frame.select("key", "value", event.alias("event")).localCheckpoint()
    written = frame.withColumn("again", to_mixed("event", MEMBERS, TOPIC, schemaRegistry=topic.registry))
    rows = {row["key"]: row for row in written.collect()}
    assert [rows[key]["again"] for key in ("order", "payment", "null")] == [
        rows[key]["value"] for key in ("order", "payment", "null")
    ]
    assert json.loads(rows["click"]["again"][5:]) == {"page": "/2", "at": {"x": 2}}
    again = from_mixed("again", MEMBERS, options=TOPIC, schemaRegistry=topic.registry)
    assert {row["key"]: row["e"] for row in written.select("key", again.alias("e")).collect()} == {
        key: row["event"] for key, row in rows.items()
    }
    both = frame.select(
        F.struct(F.col("event.order"), F.col("event.payment"), F.expr("struct('x' AS page)").alias("click")).alias("e")
    )
    with pytest.raises(SparkRuntimeException, match="MIXED_TYPES_SEVERAL"):
        both.select(to_mixed("e", MEMBERS, TOPIC, schemaRegistry=topic.registry)).collect()


def test_schemas_in_headers_are_written_and_read(spark: SparkSession, topic: MixedTopic) -> None:
    topic.server.register("events-com.shop.Late", text=json.dumps(ORDER | {"name": "Late"}), schema_type="AVRO")
    members = {"order": MEMBERS["order"], "late": {"format": "avro", "recordName": "com.shop.Late"}}
    column = F.struct(F.expr("IF(id = 1, event, NULL)").alias("order"), F.expr("IF(id = 2, event, NULL)").alias("late"))
    lines = "array(struct('a' AS sku, 1 AS count))"
    value = f"struct(id, {lines} AS lines, map('k', 'v') AS tags, CAST(NULL AS STRING) AS note) AS event"
    frame = spark.range(1, 4).selectExpr("id", value).select("id", column.alias("event"))
    options = {**TOPIC, "schema.id.serializer": "header"}
    sent = frame.select("id", to_mixed("event", members, options, schemaRegistry=topic.registry).alias("sent"))
    again = from_mixed("sent.value", members, options=TOPIC, schemaRegistry=topic.registry, headers="sent.headers")
    rows = sent.select("id", "sent", again.alias("event")).sort("id").collect()
    assert [row["event"] and row["event"]["type"] for row in rows] == ["order", "late", None]
    assert rows[2]["sent"] == Row(value=None, headers=None)
    assert rows[0]["sent"]["headers"][0]["value"] != rows[1]["sent"]["headers"][0]["value"]


def test_the_page_reads_and_writes(spark: SparkSession, topic: MixedTopic) -> None:
    page = (ROOT / "docs/how-to/mixed-topics.md").read_text(encoding="utf-8")
    read, by_header, variants, write = [one.text for one in blocks(page)]
    names: dict[str, Any] = {
        "events": spark.createDataFrame(rows_of(topic), COLUMNS),
        "plain": spark.createDataFrame([(b'{"page": "a"}', "1", [("type", b"click")])], COLUMNS),
    }
    for text in (read, by_header, variants, write):
        exec(compile(text.replace("https://registry:8081", topic.server.address), "mixed-topics.md", "exec"), names)
    assert [row["id"] for row in names["orders"].collect()] == [1]
    assert names["clicks"].collect() == [Row(event=Row(type="click", click=Row(page="a")))]
    assert names["anything"].selectExpr("variant_get(click, '$.page', 'string')").first() == Row("a")
    framed = names["framed"].selectExpr("variant_get(event, '$.page', 'string') AS page").collect()
    assert [row["page"] for row in framed if row["page"]] == ["/2"]
    written = {row["value"] and bytes(row["value"]) for row in names["messages"].collect()}
    assert written >= {topic.order_message(1), topic.payment_message(3), None}
    assert len(written) == 4
