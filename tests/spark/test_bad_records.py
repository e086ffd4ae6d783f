"""`split_bad_records` through Spark: bad records of all formats, each once, also when a batch is repeated."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, Row, SparkSession

from connectors.avro import from_avro
from connectors.bad_records import bad_records_of, split_bad_records
from connectors.core.errors import OptionError
from connectors.json import from_json_registry
from connectors.protobuf import from_protobuf
from connectors.testing.pubsub import PubSubServer
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.kafka_rig import KafkaRig
from tests.support.protobuf_rig import compiled
from tests.support.pubsub_calls import PubSubCalls

DETAILS = {"on.error": "details"}
SOURCE = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
SCHEMAS = {
    "avro": ("AVRO", {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}),
    "json": ("JSON", {"type": "object", "properties": {"id": {"type": "string"}}}),
}
ORDER = 'syntax = "proto3"; message Order { string id = 1; }'


class Formats:
    """A registry with a schema for each format, messages by it, and a stream of the messages that are put."""

    def __init__(self, spark: SparkSession, server: SchemaRegistryServer, folder: Path) -> None:
        self.spark, self.server, self.folder = spark, server, folder
        self.ids: dict[str, int] = {}
        for form, (kind, schema) in SCHEMAS.items():
            self.ids[form] = server.register(f"{form}-value", text=json.dumps(schema), schema_type=kind)
        self.ids["protobuf"] = server.register("protobuf-value", compiled(ORDER), "main.proto")
        self.attempts = 0
        self.ended_with = ""

    def good(self, form: str, number: int) -> bytes:
        text = f"o{number}"
        body = {
            "avro": bytes([2 * len(text)]) + text.encode(),
            "json": json.dumps({"id": text}).encode(),
            "protobuf": b"\0\x0a" + bytes([len(text)]) + text.encode(),
        }[form]
        return b"\0" + struct.pack(">I", self.ids[form]) + body

    def bad(self, form: str) -> bytes:
        body = {"avro": b"\x7f", "json": b'{"id": ', "protobuf": b"\0\x0a\x7f"}[form]
        return b"\0" + struct.pack(">I", self.ids[form]) + body

    def order(self, form: str) -> Column:
        registry = {"address": self.server.address, "subject": f"{form}-value"}
        if form == "avro":
            return from_avro("value", options=DETAILS, schemaRegistry=registry)
        if form == "json":
            return from_json_registry("value", options=DETAILS, schemaRegistry=registry)
        return from_protobuf("value", options=DETAILS, schemaRegistry=registry)

    def put(self, form: str, values: list[bytes]) -> None:
        header = [Row(key="trace", value=bytearray(b"t-1"))]
        rows = [
            (bytearray(b"k"), bytearray(value), form, 0, offset, header if offset % 2 else None)
            for offset, value in enumerate(values)
        ]
        self.spark.createDataFrame(rows, SOURCE).coalesce(1).write.mode("append").parquet(f"{self.folder}/{form}")

    def stream(self, form: str) -> DataFrame:
        events = self.spark.readStream.schema(SOURCE).parquet(f"{self.folder}/{form}")
        return events.withColumn("order", self.order(form))

    def write(self, good: DataFrame, number: int) -> None:
        self.attempts += 1
        if self.attempts == 1 and self.ended_with == "before":
            raise RuntimeError("killed")
        good.select("offset", "order.id").write.mode("overwrite").parquet(f"{self.folder}/good/batch={number}")
        if self.attempts == 1 and self.ended_with == "after":
            raise RuntimeError("killed")

    def run(self, form: str, **place: Any) -> str:
        """Run the query to its end, again after a failure; return its id."""
        while True:
            query = (
                self.stream(form)
                .writeStream.foreachBatch(split_bad_records(self.write, "order", **place))
                .option("checkpointLocation", f"{self.folder}/checkpoint-{form}")
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
                return str(query.id)
            except StreamingQueryException as error:
                if "killed" not in str(error):
                    raise

    def assert_good(self, numbers: list[int]) -> None:
        found = self.spark.read.parquet(f"{self.folder}/good").collect()
        assert sorted((row.offset, row.id) for row in found) == [(number, f"o{number}") for number in numbers]


@pytest.fixture
def formats(spark: SparkSession, tmp_path: Path) -> Iterator[Formats]:
    with SchemaRegistryServer() as server:
        yield Formats(spark, server, tmp_path)


def mixed(formats: Formats, form: str) -> list[bytes]:
    """Return nine messages of which the second, fifth and ninth are bad: cut short, of no schema, and no frame."""
    values = [formats.good(form, number) for number in range(9)]
    values[1], values[4], values[8] = formats.bad(form), b"\0\x7f\xff\xff\xff" + values[4][5:], b"none"
    return values


@pytest.mark.parametrize("ended", ["", "before", "after"])
@pytest.mark.parametrize("form", ["avro", "json", "protobuf"])
def test_bad_records_go_to_a_folder_once_with_all_that_is_known_of_them(
    formats: Formats, form: str, ended: str
) -> None:
    formats.ended_with = ended
    values = mixed(formats, form)
    formats.put(form, values)
    query = formats.run(form, badRecordsPath=f"{formats.folder}/bad")
    formats.assert_good([0, 2, 3, 5, 6, 7])
    rows = formats.spark.read.parquet(f"{formats.folder}/bad").orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(at, values[at]) for at in (1, 4, 8)]
    assert [bytes(row.key) for row in rows] == [b"k"] * 3
    assert [row.headers and row.headers[0].key for row in rows] == ["trace", None, None]
    known = [row.bad_record.asDict() for row in rows]
    assert {(one["column"], one["subject"], one["query"], one["batch"]) for one in known} == {
        ("order", f"{form}-value", query, 0)
    }
    assert [one["schema"] for one in known] == [str(formats.ids[form]), str(0x7FFFFFFF), None]
    malformed = f"MALFORMED_{form.upper()}_MESSAGE"
    assert [one["code"] for one in known] == [malformed, "SCHEMA_NOT_FOUND", malformed]
    assert all(one["reason"] for one in known)
    assert bad_records_of(query) == {malformed: 2 + 2 * bool(ended), "SCHEMA_NOT_FOUND": 1 + bool(ended)}


@pytest.mark.parametrize("ended", ["", "before"])
def test_bad_records_go_to_a_table_once(formats: Formats, ended: str) -> None:
    formats.ended_with = ended
    table = f"bad_{formats.folder.name.replace('-', '_')}"
    formats.put("avro", mixed(formats, "avro"))
    formats.run("avro", badRecordsTable=table)
    formats.put("avro", [formats.good("avro", 9), b"more"])
    formats.ended_with, formats.attempts = ended, 0
    formats.run("avro", badRecordsTable=table)
    try:
        rows = formats.spark.table(table).orderBy("bad_record.batch", "offset").collect()
        assert [(row.bad_record.batch, row.offset) for row in rows] == [(0, 1), (0, 4), (0, 8), (1, 1)]
    finally:
        formats.spark.sql(f"DROP TABLE {table}")


def test_a_batch_whose_code_was_mended_meanwhile_leaves_no_bad_record_of_its_first_try(formats: Formats) -> None:
    formats.put("avro", [formats.good("avro", 0), b"no frame"])
    broken = split_bad_records(formats.write, "order", badRecordsPath=f"{formats.folder}/bad", query="q")
    batch = formats.spark.read.schema(SOURCE).parquet(f"{formats.folder}/avro")
    decoded = batch.withColumn("order", formats.order("avro"))
    broken(decoded, 0)
    assert formats.spark.read.parquet(f"{formats.folder}/bad").count() == 1
    mended = split_bad_records(formats.write, "order", badRecordsPath=f"{formats.folder}/bad", query="q")
    mended(decoded.where("value != X'6e6f206672616d65'"), 0)
    assert formats.spark.read.schema("offset BIGINT").parquet(f"{formats.folder}/bad").count() == 0


@pytest.mark.parametrize("ended", ["", "before"])
def test_bad_records_go_to_a_topic_of_kafka_once_as_they_came(formats: Formats, kafka: KafkaRig, ended: str) -> None:
    formats.ended_with = ended
    topic, values = kafka.topic(2), mixed(formats, "protobuf")
    formats.put("protobuf", values)
    to = {"format": "kafka_py", "kafka.bootstrap.servers": kafka.broker.endpoint, "topic": topic}
    query = formats.run("protobuf", badRecordsTo=to)
    formats.put("protobuf", [b"more", formats.good("protobuf", 1)])
    formats.attempts = 0
    assert formats.run("protobuf", badRecordsTo=to) == query
    options = kafka.options(topic, includeHeaders="true", kafka__isolation__level="read_committed")
    rows = kafka.batch(options)
    assert sorted(bytes(row["value"]) for row in rows) == sorted([values[1], values[4], values[8], b"more"])
    by_value = {bytes(row["value"]): {each["key"]: each["value"] for each in row["headers"]} for row in rows}
    headers = by_value[values[1]]
    assert headers["trace"] == b"t-1"
    assert headers["bad_record.code"] == b"MALFORMED_PROTOBUF_MESSAGE"
    assert headers["bad_record.schema"] == str(formats.ids["protobuf"]).encode()
    assert (headers["bad_record.topic"], headers["bad_record.offset"]) == (b"protobuf", b"1")
    assert headers["bad_record.query"] == query.encode()
    assert "bad_record.schema" not in by_value[values[8]]


def test_bad_records_go_to_a_topic_of_pubsub_with_attributes(formats: Formats) -> None:
    values = mixed(formats, "json")
    formats.put("json", values)
    with PubSubServer() as server:
        server.create_subscription("projects/shop/subscriptions/bad", "projects/shop/topics/orders-bad")
        to = {"format": "pubsub", "projectId": "shop", "topicId": "orders-bad", "endpoint": server.endpoint}
        formats.run("json", badRecordsTo=to)
        with PubSubCalls(server.endpoint) as calls:
            got = [one.message for one in calls.pull("projects/shop/subscriptions/bad", 3)]
    assert sorted(message.data for message in got) == sorted([values[1], values[4], values[8]])
    assert {message.attributes["bad_record.subject"] for message in got} == {"json-value"}
    assert {message.attributes["bad_record.topic"] for message in got} == {"json"}


def test_a_record_that_was_bad_before_keeps_its_own_attributes_and_has_each_reason_once(formats: Formats) -> None:
    attributes = {"trace": "t-1", "bad_record.code": "BEFORE", "bad_record.host": "a"}
    rows = [(bytearray(b"x"), "k", "one", attributes), (bytearray(b"y"), "k", "two", None)]
    kind = "payload BINARY, orderingKey STRING, messageId STRING, attributes MAP<STRING, STRING>"
    decoded = formats.spark.createDataFrame(rows, kind)
    decoded = decoded.withColumn("order", from_avro("payload", json.dumps(SCHEMAS["avro"][1]), DETAILS))
    with PubSubServer() as server:
        server.create_subscription("projects/shop/subscriptions/bad", "projects/shop/topics/orders-bad")
        to = {"format": "pubsub", "projectId": "shop", "topicId": "orders-bad", "endpoint": server.endpoint}
        split_bad_records(lambda *_: None, "order", badRecordsTo=to, query="q")(decoded, 7)
        with PubSubCalls(server.endpoint) as calls:
            got = {one.message.data: one.message for one in calls.pull("projects/shop/subscriptions/bad", 2)}
    known = {
        "spark_uid",
        *(f"bad_record.{name}" for name in ("code", "reason", "column", "query", "batch", "messageId")),
    }
    assert set(got[b"x"].attributes) == {"trace", *known}
    assert set(got[b"y"].attributes) == known
    assert (got[b"x"].attributes["trace"], got[b"x"].ordering_key) == ("t-1", "k")
    assert got[b"x"].attributes["bad_record.code"] == "MALFORMED_AVRO_MESSAGE"


def test_a_record_is_bad_if_one_of_several_columns_is(formats: Formats) -> None:
    schema = json.dumps(SCHEMAS["avro"][1])
    rows = [
        (1, b"\4o1", b"\4k1"),
        (2, b"\x7f", b"\4k2"),
        (3, b"\4o3", b"\x7f"),
        (4, b"\x7f", b"\x7f"),
        (5, None, b"\4k5"),
    ]
    events = formats.spark.createDataFrame(
        [(at, value and bytearray(value), bytearray(key)) for at, value, key in rows],
        "offset BIGINT, value BINARY, key BINARY",
    )
    decoded = events.withColumns({name: from_avro(name, schema, DETAILS) for name in ("value", "key")})
    taken: list[DataFrame] = []
    split = split_bad_records(
        lambda good, _: taken.append(good), ["value", "key"], badRecordsPath=f"{formats.folder}/bad", query="q"
    )
    split(decoded, 3)
    assert [(row.offset, row.value and row.value.id, row.key.id) for row in taken[0].collect()] == [
        (1, "o1", "k1"),
        (5, None, "k5"),
    ]
    found = formats.spark.read.parquet(f"{formats.folder}/bad").orderBy("offset").collect()
    assert [(row.offset, row.bad_record.column) for row in found] == [(2, "value"), (3, "key"), (4, "value")]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "BAD_RECORDS_PLACE"),
        ({"badRecordsPath": "/x", "badRecordsTable": "y"}, "BAD_RECORDS_PLACE"),
        ({"badRecordsTo": {"topic": "x"}}, "BAD_RECORDS_PLACE"),
        ({"badRecordsTo": {"format": "kinesis"}}, "BAD_RECORDS_PLACE"),
    ],
)
def test_a_call_without_one_place_is_refused_at_once(arguments: Mapping[str, Any], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        split_bad_records(lambda *_: None, "order", **arguments)


def test_a_column_that_tells_nothing_of_bad_rows_ends_the_query(formats: Formats) -> None:
    split = split_bad_records(lambda *_: None, "order", badRecordsPath=f"{formats.folder}/bad", query="q")
    plain = formats.spark.createDataFrame([(1,)], "order INT")
    for batch in (plain, plain.withColumnRenamed("order", "orders")):
        with pytest.raises(OptionError, match=r"BAD_RECORDS_COLUMN.*on\.error=details"):
            split(batch, 0)


JOB = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tree!r})
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.spark.test_bad_records import Formats, mixed
from tests.support.spark_session import quick_session
from connectors.bad_records import split_bad_records

folder, moment = sys.argv[1:]
spark = quick_session({{"spark.log.level": "OFF"}})
with SchemaRegistryServer() as server:
    formats = Formats(spark, server, Path(folder))
    for form in ("avro", "json", "protobuf"):
        if not Path(folder, form).exists():
            formats.put(form, mixed(formats, form))

        def write(good, number, form=form):
            if moment == form + " before":
                os.killpg(0, signal.SIGKILL)
            place = f"{{folder}}/good-{{form}}/batch={{number}}"
            good.select("offset", "order.id").write.mode("overwrite").parquet(place)
            if moment == form + " after":
                os.killpg(0, signal.SIGKILL)

        (formats.stream(form).writeStream
         .foreachBatch(split_bad_records(write, "order", badRecordsPath=f"{{folder}}/bad-{{form}}"))
         .option("checkpointLocation", f"{{folder}}/checkpoint-{{form}}").trigger(availableNow=True)
         .start().awaitTermination())
"""


def test_a_job_of_all_formats_that_is_killed_between_its_writes_has_each_record_once(
    formats: Formats, tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text(textwrap.dedent(JOB.format(tree=str(Path(__file__).parents[2]))))

    def run(moment: str) -> int:
        command = [sys.executable, str(program), str(tmp_path / "data"), moment]
        return subprocess.run(command, check=False, timeout=300, start_new_session=True).returncode

    (tmp_path / "data").mkdir()
    for moment in ("avro before", "json after"):
        assert run(moment) == -signal.SIGKILL
    assert run("") == 0
    for form in ("avro", "json", "protobuf"):
        good = formats.spark.read.parquet(f"{tmp_path}/data/good-{form}").collect()
        bad = formats.spark.read.parquet(f"{tmp_path}/data/bad-{form}").collect()
        assert sorted(row.offset for row in good) == [0, 2, 3, 5, 6, 7]
        assert sorted(row.offset for row in bad) == [1, 4, 8]
