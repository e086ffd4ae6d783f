"""`from_avro` and `to_avro` in Spark: columns, bad rows, the error column, and errors."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession

from connectors.avro import from_avro, to_avro
from connectors.avro.errors import AvroAnalysisError
from connectors.core.errors import OptionError
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.avro_cases import MESSAGE, ORDER, VALUE
from tests.support.avro_rig import encode

SCHEMA = json.dumps(ORDER)


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


def test_messages_become_columns_and_bad_ones_structs_of_nulls(spark: SparkSession) -> None:
    rows = [*((number, MESSAGE) for number in range(200)), (200, b"\x02"), (201, None)]
    frame = spark.createDataFrame(rows, "n int, value binary")
    decoded = frame.select("n", from_avro("value", SCHEMA, {"mode": "PERMISSIVE"}).alias("order"))
    assert decoded.schema["order"].dataType.simpleString().startswith("struct<id:bigint,customer:string,amount:double,")
    good = [row.order.asDict(recursive=True) for row in decoded.where("n < 200").collect()]
    expected = {**VALUE, "any": {"member0": None, "member1": None, "member2": bytearray(b"abc")}}
    assert good == [expected] * 200
    assert decoded.where("n = 200").collect() == [Row(n=200, order=Row(**dict.fromkeys(VALUE)))]
    assert decoded.where("n = 201").collect() == [Row(n=201, order=None)]


def test_the_error_column_says_why_and_fields_choose_columns(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(MESSAGE,), (b"\0\0\0\0\x07ab",)], "value binary")
    options = {"mode": "PERMISSIVE", "on.error": "column"}
    rows = frame.select(from_avro("value", SCHEMA, options, fields=["note", "id"]).alias("v")).collect()
    assert rows[0].v.value == Row(note="text", id=2**40)
    assert rows[0].v.error is None
    assert rows[1].v.value == Row(note=None, id=None)
    assert "Confluent frame" in rows[1].v.error


def test_failfast_ends_the_query_with_the_row_and_the_reason(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(MESSAGE,), (b"\x02",)], "value binary")
    with pytest.raises(
        PythonException, match=r"\[MALFORMED_AVRO_MESSAGE\].*row 1 of the batch as Avro: ends too early"
    ):
        frame.select(from_avro("value", SCHEMA)).collect()


def test_a_schema_that_cannot_be_used_is_refused_on_the_driver(spark: SparkSession) -> None:
    assert spark is not None
    for schema, code in (
        ("{", "CANNOT_PARSE_AVRO_SCHEMA"),
        (None, "AVRO_SCHEMA_MISSING"),
        ('{"type":"record","name":"N","fields":[{"name":"n","type":["null","N"]}]}', "RECURSIVE_AVRO_SCHEMA"),
        ('{"type":"bytes","logicalType":"decimal","precision":39}', "AVRO_TYPE_NOT_SUPPORTED"),
    ):
        with pytest.raises(AvroAnalysisError, match=code):
            from_avro("value", schema)
    with pytest.raises(AvroAnalysisError, match=r"AVRO_SCHEMA_INCOMPATIBLE.*found string, expecting int"):
        from_avro("value", '"string"', {"avroSchema": '"int"'})
    with pytest.raises(AvroAnalysisError, match="AVRO_FIELD_MISSING"):
        from_avro("value", SCHEMA, fields=["id", "none"])
    with pytest.raises(AvroAnalysisError, match="PARSE_MODE_UNSUPPORTED"):
        from_avro("value", SCHEMA, {"mode": "DROPMALFORMED"})


def test_columns_become_messages(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(number, MESSAGE) for number in range(200)], "n int, value binary")
    decoded = frame.select(from_avro("value", SCHEMA).alias("order"))
    assert [row.value for row in decoded.select(to_avro("order", SCHEMA).alias("value")).collect()] == [MESSAGE] * 200
    assert decoded.select(to_avro("order")).columns == ["to_avro(order)"]


def test_what_cannot_be_written_ends_the_query(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1,), (None,)], "n int")
    inner = frame.selectExpr("struct(n) AS row")
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    with pytest.raises(PythonException, match=r"\[AVRO_CANNOT_WRITE_NULL_FIELD\].*`n`"):
        inner.select(to_avro("row", schema)).collect()
    with pytest.raises(PythonException, match=r"\[AVRO_SCHEMA_INCOMPATIBLE\].*int32"):
        frame.select(to_avro("n", '"string"')).collect()
    with pytest.raises(AvroAnalysisError, match="CANNOT_PARSE_AVRO_SCHEMA"):
        to_avro("n", "{")


def test_the_session_says_how_dates_and_names_are_written(spark: SparkSession) -> None:
    frame = spark.sql("SELECT struct(DATE '1500-01-01' AS day) AS row")
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "DAY", "type": "int"}]})
    day = encode("int", (date(1500, 1, 1) - date(1970, 1, 1)).days)
    settings = {"spark.sql.avro.datetimeRebaseModeInWrite": "EXCEPTION", "spark.sql.caseSensitive": "true"}
    wanted = ["AVRO_DATE_TOO_OLD", "AVRO_SCHEMA_INCOMPATIBLE"]
    assert frame.select(to_avro("row", schema).alias("value")).collect() == [Row(value=day)]
    for (name, value), code in zip(settings.items(), wanted, strict=True):
        spark.conf.set(name, value)
        try:
            with pytest.raises(PythonException, match=code):
                frame.select(to_avro("row", schema)).collect()
        finally:
            spark.conf.unset(name)
    spark.conf.set("spark.sql.avro.datetimeRebaseModeInWrite", "LEGACY")
    with pytest.raises(OptionError, match=r"OPTION_ILLEGAL.*LEGACY"):
        to_avro("row", schema)
    spark.conf.unset("spark.sql.avro.datetimeRebaseModeInWrite")


def test_types_that_avro_has_not_are_refused(spark: SparkSession) -> None:
    for value, kind in (("parse_json('1')", "variant"), ("INTERVAL '1' YEAR", "month_interval")):
        with pytest.raises(PythonException, match=rf"\[AVRO_TYPE_NOT_SUPPORTED\].*{kind}"):
            spark.sql(f"SELECT {value} AS v").select(to_avro("v")).collect()


def test_times_of_the_day_are_written_as_spark_writes_them(spark: SparkSession) -> None:
    frame = spark.sql("SELECT TIME '01:02:03.000004' AS v")
    assert frame.select(to_avro("v").alias("m")).collect()[0].m == encode("long", 3_723_000_004)


def test_the_example_reads_orders_of_two_versions_and_a_bad_record(spark: SparkSession, tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "avro_orders.py"
    spec = importlib.util.spec_from_file_location("avro_orders", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    bad, *rows = example.main(spark, tmp_path)
    assert [(row["id"], row["total"], row["currency"], row["error"], row["message"]) for row in rows] == [
        ("new-1", 2.5, "USD", None, None),
        ("new-2", 5.0, "USD", None, None),
        ("old-1", 1.5, "EUR", None, None),
        ("old-2", 3.0, "EUR", None, None),
    ]
    assert (bad["id"], bytes(bad["message"])) == (None, b"not an order")
    assert "is not a Confluent frame" in bad["error"]


def test_a_null_among_headers_is_none_and_a_column_of_texts_is_refused(spark: SparkSession) -> None:
    with SchemaRegistryServer() as server:
        registry = {"address": server.address, "subject": "n"}
        prefix = (b"\1" + server.guid(server.register("n", text='"int"', schema_type="AVRO"))).hex()
        header = f"named_struct('key', '__value_schema_id', 'value', X'{prefix}')"
        for headers in (f"array(NULL, {header}, NULL)", f"map('__value_schema_id', X'{prefix}')"):
            frame = spark.sql(f"SELECT X'02' AS value, {headers} AS headers")
            read = frame.select(from_avro("value", schemaRegistry=registry, headers="headers").alias("n"))
            assert read.collect() == [Row(n=1)]
        frame = spark.sql("SELECT X'02' AS value, map('__value_schema_id', 'text') AS headers")
        with pytest.raises(PythonException, match=r"\[DATATYPE_MISMATCH\].*MAP<STRING, BINARY>"):
            frame.select(from_avro("value", schemaRegistry=registry, headers="headers")).collect()


def test_messages_are_read_whose_schema_was_written_into_a_header(spark: SparkSession) -> None:
    with SchemaRegistryServer() as server:
        registry = {"address": server.address, "subject": "n"}
        number = server.register("n", text='["null", "long"]', schema_type="AVRO")
        rows = spark.sql("SELECT * FROM VALUES (1L), (NULL) AS t(n)").coalesce(1)
        written = rows.select(to_avro("n", schemaRegistry=registry, options={"schema.id.serializer": "header"}))
        assert written.schema.simpleString() == (
            "struct<to_avro(n):struct<value:binary,headers:array<struct<key:string,value:binary>>>>"
        )
        frame = written.toDF("m").select("m.value", "m.headers")
        header = Row(key="__value_schema_id", value=bytearray(b"\1" + server.guid(number)))
        assert frame.collect() == [Row(value=bytearray(b"\2\2"), headers=[header]), Row(value=None, headers=None)]
        read = frame.select(from_avro("value", schemaRegistry=registry, headers="headers").alias("n"))
        assert read.collect() == [Row(n=1), Row(n=None)]
