"""`from_json_registry` and `to_json_registry` in Spark: columns, bad rows, the error column, and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as spark_functions

from connectors.json import from_json_registry, to_json_registry
from connectors.json.errors import JsonAnalysisError
from connectors.testing.schema_registry import SchemaRegistryServer

CONNECT = "org.apache.kafka.connect.data."
DAYS = {"type": "integer", "connect.type": "int32", "title": f"{CONNECT}Date"}
MILLIS = {"type": "integer", "connect.type": "int64", "title": f"{CONNECT}Timestamp"}
UNSCALED = {
    "type": "string",
    "connect.type": "bytes",
    "title": f"{CONNECT}Decimal",
    "connect.parameters": {"scale": "2"},
}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


ORDER = record(
    id={"type": "integer"},
    at={"type": "string", "format": "date-time"},
    day={"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
    customer={"$ref": "customer.json"},
    tags={"type": "array", "items": {"type": "string"}},
    counts={"type": "object", "additionalProperties": {"type": "integer"}},
    any={"type": ["string", "integer"]},
    raw={"type": "string", "connect.type": "bytes"},
)
VALUE = {
    "id": 2**40,
    "at": "2026-01-01T10:00:00.5+01:00",
    "day": "2026-02-03",
    "customer": {"name": "Ä"},
    "tags": ["a", None],
    "counts": {"x": 1},
    "any": "5",
    "raw": "AQI=",
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        running.register("customer", text=json.dumps(record(name={"type": "string"})), schema_type="JSON")
        yield running


def registered(server: SchemaRegistryServer, subject: str, schema: Any) -> int:
    references = (("customer.json", "customer", 1),) if "customer.json" in json.dumps(schema) else ()
    return server.register(subject, text=json.dumps(schema), schema_type="JSON", references=references)


def framed(number: int, message: Any) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + (message if isinstance(message, bytes) else json.dumps(message).encode())


def values_of(spark: SparkSession, messages: list[bytes | None], subject: str, **arguments: Any) -> list[Any]:
    frame = spark.createDataFrame([(message,) for message in messages], "value binary").coalesce(1)
    return [row[0] for row in frame.select(from_json_registry("value", subject=subject, **arguments)).collect()]


def test_messages_of_several_writers_become_the_columns_of_the_subject(
    spark: SparkSession, server: SchemaRegistryServer
) -> None:
    old, new = registered(server, "orders", record(id={"type": "integer"})), registered(server, "orders", ORDER)
    frame = spark.createDataFrame([(framed(new, VALUE),), (framed(old, {"id": 1, "gone": 2}),)], "value binary")
    decoded = from_json_registry("value", subject="orders", schemaRegistryAddress=server.address)
    table = frame.select("value", decoded)
    assert table.columns[1] == "from_json_registry(value)"
    assert table.schema[1].dataType.simpleString() == (
        "struct<id:bigint,at:timestamp,day:date,customer:struct<name:string>,tags:array<string>,"
        "counts:map<string,bigint>,any:variant,raw:binary>"
    )
    columns = table.select(decoded.alias("order")).selectExpr("order.*", "to_json(order.any) AS text").drop("any")
    first, second = columns.collect()
    assert first == Row(
        id=2**40,
        at=datetime.fromtimestamp(1767258000.5),  # noqa: DTZ006 - as rows have times
        day=date(2026, 2, 3),
        customer=Row(name="Ä"),
        tags=["a", None],
        counts={"x": 1},
        raw=bytearray(b"\1\2"),
        text='"5"',
    )
    assert second == Row(id=1, at=None, day=None, customer=None, tags=None, counts=None, raw=None, text=None)


def test_garbage_changes_no_neighbour_and_the_error_column_has_the_reason(
    spark: SparkSession, server: SchemaRegistryServer
) -> None:
    number = registered(server, "plain", record(n={"type": "integer"}, s={"type": "string"}))
    good = framed(number, {"n": 1, "s": "x"})
    bad = {
        b"": "begins with no byte",
        good[:4]: "is not a Confluent frame",
        good[:5]: "has no message",
        framed(12345, {"n": 1}): "SCHEMA_NOT_FOUND",
        framed(number, b'{"s": "\xff"}'): "is not UTF-8",
        framed(number, b'{"n": 1'): "is not JSON from byte 7 of 7, where a comma or } is expected",
        framed(
            number, {"n": "one", "s": "x"}
        ): "is not JSON of the columns of the schema: n does not fit the type bigint",
        framed(number, b"[1]"): "is not JSON of the columns of the schema: it does not fit the type struct",
        framed(number, {"n": 2**63}): "is not JSON of the columns of the schema: n does not fit the type bigint",
    }
    rows = [message for each in bad for message in (good, each, None)]
    registry = {"address": server.address}
    found = values_of(spark, rows, "plain", schemaRegistry=registry, options={"on.error": "column"})
    assert found[::3] == [Row(value=Row(n=1, s="x"), error=None)] * len(bad)
    assert found[2::3] == [None] * len(bad)
    for row, reason in zip(found[1::3], bad.values(), strict=True):
        assert reason in row.error
    values = [row and row.value for row in found]
    assert values[1:16:3] == [None] * 5
    assert values[19] == Row(n=None, s="x")
    without = values_of(spark, rows, "plain", schemaRegistry=registry)
    assert without[1:16:3] == [None] * 5
    assert without[::3] == [Row(n=1, s="x")] * len(bad)
    corrupt = values_of(spark, rows, "plain", schemaRegistry=registry, options={"columnNameOfCorruptRecord": "bad"})
    assert corrupt[0] == Row(n=1, s="x", bad=None)
    assert corrupt[19] == Row(n=None, s="x", bad='{"n": "one", "s": "x"}')
    chosen = values_of(spark, rows, "plain", schemaRegistry=registry, fields=["s"])
    assert chosen[0] == Row(s="x")
    assert chosen[19] == Row(s="x")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"\7", "MALFORMED_JSON_MESSAGE.*row 1 of the batch"),
        (b"\0\0\0\0\7{}", "MALFORMED_JSON_MESSAGE.*SCHEMA_NOT_FOUND"),
        (b"FRAME{", "MALFORMED_RECORD_IN_PARSING"),
        (b'FRAME{"at": "x"}', "MALFORMED_RECORD_IN_PARSING"),
        (b'FRAME{"at": %d}' % 2**62, "MALFORMED_JSON_MESSAGE"),
        (b'FRAME{"x": "%s"}' % base64.b64encode(bytes(20)), "MALFORMED_JSON_MESSAGE"),
        (b'FRAME{"s": "\xff"}', "INVALID_UTF8_STRING"),
    ],
)
def test_failfast_ends_the_query_with_an_error_that_has_a_name(
    spark: SparkSession, server: SchemaRegistryServer, message: bytes, error: str
) -> None:
    number = registered(server, "strict", record(at=MILLIS, s={"type": "string"}, x=UNSCALED))
    rows = [framed(number, {"at": 1}), message.replace(b"FRAME", framed(number, b""))]
    with pytest.raises(Exception, match=error):
        values_of(spark, rows, "strict", schemaRegistryAddress=server.address, options={"mode": "FAILFAST"})


def test_the_values_of_kafka_connect_are_those_of_spark(spark: SparkSession, server: SchemaRegistryServer) -> None:
    schema = record(
        d=DAYS,
        t={"oneOf": [{"type": "null"}, MILLIS]},
        x=UNSCALED,
        y={"type": "number", "title": f"{CONNECT}Decimal", "connect.parameters": {"scale": "3"}},
        list={"type": "array", "items": record(d=DAYS)},
        map={"type": "object", "additionalProperties": MILLIS},
    )
    number = registered(server, "connect", schema)

    def unscaled(value: int) -> str:
        return base64.b64encode(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)).decode()

    decimals = [0, 1, -1, 127, 128, -128, -129, 2**63, -(2**63), 2**64 - 1, -(2**64), 10**38 - 1, 1 - 10**38]
    rows = [framed(number, {"x": unscaled(value)}) for value in decimals]
    rows += [framed(number, {"x": unscaled(10**38)}), framed(number, {"x": ""}), framed(number, {"t": 2**63 - 1})]
    rows.append(
        framed(number, {"d": -1, "t": 1001, "y": 1.25, "list": [{"d": 1}, None, {}], "map": {"a": 2000, "b": None}})
    )
    found = values_of(spark, rows, "connect", schemaRegistryAddress=server.address)
    assert [row.x for row in found[:13]] == [Decimal(f"{value}e-2") for value in decimals]
    assert [(row.x, row.t) for row in found[13:16]] == [(None, None)] * 3
    last = found[16]
    assert (last.d, last.y) == (date(1969, 12, 31), Decimal("1.250"))
    seconds = [datetime.fromtimestamp(each) for each in (1.001, 2)]  # noqa: DTZ006 - as rows have times
    assert (last.t, last.map) == (seconds[0], {"a": seconds[1], "b": None})
    assert last.list == [Row(d=date(1970, 1, 2)), None, Row(d=None)]


@pytest.mark.parametrize(
    ("schema", "message", "expected", "error"),
    [
        ({"type": "string"}, b'"a"', "a", None),
        ({"type": "integer"}, b" 7 ", 7, None),
        (DAYS, b"1", date(1970, 1, 2), None),
        ({"type": "integer"}, b"7, 8", None, "of the columns of the schema"),
        ({"type": "integer"}, b'"x"', None, "of the columns of the schema: it does not fit the type bigint"),
        ({"type": "array", "items": DAYS}, b"[1]", [date(1970, 1, 2)], None),
        ({"type": "array"}, b"{", None, "from byte 1 of 1, where a name or } is expected"),
        ({"type": "object"}, b"[", None, "from byte 1 of 1, where a value or ] is expected"),
    ],
)
def test_a_schema_of_no_object_is_a_column_of_its_type(
    spark: SparkSession, server: SchemaRegistryServer, schema: Any, message: bytes, expected: Any, error: str | None
) -> None:
    number = registered(server, "keys", schema)
    arguments = {"schema": json.dumps(schema), "schemaRegistryAddress": server.address, "subject": "keys"}
    assert values_of(spark, [framed(number, message)], **arguments) == [expected]
    (row,) = values_of(spark, [framed(number, message)], **arguments, options={"on.error": "column"})
    assert row == Row(value=expected, error=error and f"is not JSON {error}")


def test_a_column_that_is_no_binary_is_refused(spark: SparkSession, server: SchemaRegistryServer) -> None:
    registered(server, "text", record(n={"type": "integer"}))
    decoded = from_json_registry("value", subject="text", schemaRegistryAddress=server.address)
    with pytest.raises(PythonException, match=r"DATATYPE_MISMATCH.*from_json_registry"):
        spark.createDataFrame([("{}",)], "value string").select(decoded).collect()


def test_what_to_json_registry_writes_is_read_again(spark: SparkSession, server: SchemaRegistryServer) -> None:
    number = registered(server, "copies", record(id={"type": "integer"}, s={"type": "string"}))
    rows = (
        spark.range(1, 3)
        .coalesce(1)
        .select(spark_functions.struct("id", spark_functions.lit(None).alias("s")).alias("v"))
    )
    registry = {"address": server.address, "subject": "copies"}
    frame = rows.select(to_json_registry("v", {"ignoreNullFields": "false"}, schemaRegistry=registry).alias("value"))
    assert [row.value for row in frame.collect()] == [framed(number, b'{"id":%d,"s":null}' % n) for n in (1, 2)]
    again = frame.select(from_json_registry("value", schemaRegistry=registry).alias("v"))
    assert [row.v for row in again.collect()] == [Row(id=1, s=None), Row(id=2, s=None)]
    nothing = spark.createDataFrame([(None,)], "v struct<id: bigint>").select(
        to_json_registry("v", schemaRegistry=registry)
    )
    assert nothing.collect()[0][0] is None


def test_what_confluents_serializer_wrote_is_read(spark: SparkSession) -> None:
    """The bytes are those of ``JSONSerializer`` of confluent-kafka 2.16.1, the header that of its GUIDs in headers."""
    written = bytes.fromhex("00000000017b226964223a372c226e616d65223a22c384227d")
    with SchemaRegistryServer() as server:
        number = registered(server, "orders-value", record(id={"type": "integer"}, name={"type": "string"}))
        header = [Row(key="__value_schema_id", value=bytearray(b"\1" + server.guid(number)))]
        frame = spark.createDataFrame(
            [(written, None), (written[5:], header)], "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
        )
        decoded = from_json_registry("value", None, None, "orders-value", server.address, headers="headers")
        assert [row.order for row in frame.select(decoded.alias("order")).collect()] == [Row(id=7, name="Ä")] * 2


def test_names_and_depth_are_those_of_the_schema(spark: SparkSession, server: SchemaRegistryServer) -> None:
    names = ["a.b", "`", "", "value", "_corrupt_record", "Ä b"]
    number = registered(server, "names", record(**dict.fromkeys(names, DAYS)))
    message = framed(number, dict.fromkeys(names, 0))
    options = {"on.error": "column"}
    (row,) = values_of(spark, [message], "names", schemaRegistryAddress=server.address, options=options)
    assert row.error is None
    assert row.value.asDict() == dict.fromkeys(names, date(1970, 1, 1))
    schema: dict[str, Any] = DAYS
    value: Any = 0
    for _ in range(29):
        schema, value = record(a=schema), {"a": value}
    number = registered(server, "deep", schema)
    (found,) = values_of(spark, [framed(number, value)], "deep", schemaRegistryAddress=server.address)
    for _ in range(29):
        found = found.a
    assert found == date(1970, 1, 1)
    registered(server, "deep", record(a={"type": "array", "items": schema}))
    with pytest.raises(JsonAnalysisError, match="more than 30 levels deep"):
        from_json_registry("value", None, None, "deep", server.address)
    schema, value = {"type": "integer"}, 7
    for _ in range(99):
        schema, value = record(a=schema), {"a": value}
    number = registered(server, "deepest", schema)
    (found,) = values_of(spark, [framed(number, value)], "deepest", schemaRegistryAddress=server.address)
    for _ in range(99):
        found = found.a
    assert found == 7
