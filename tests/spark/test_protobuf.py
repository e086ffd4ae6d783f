"""`from_protobuf` and `to_protobuf` as columns of a real Spark session."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.protobuf import from_protobuf, register_sql, to_protobuf
from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.worker import Engine
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.documents import blocks
from tests.support.protobuf_rig import Rig, compiled
from tests.support.spark_session import quick_session

ROOT = Path(__file__).parents[2]
RIG = Rig(Engine.AUTO)
PERMISSIVE = {"mode": "PERMISSIVE"}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = quick_session({"spark.sql.session.timeZone": "UTC", "spark.log.level": "OFF"})
    yield session
    session.stop()


def column(spark: SparkSession, *messages: Any) -> DataFrame:
    rows = [
        (None if each is None else bytearray(each if isinstance(each, bytes) else each.SerializeToString()),)
        for each in messages
    ]
    return spark.createDataFrame(rows, "value binary")


def basic(**values: Any) -> Any:
    return RIG.type("Basic")(**values)


@pytest.mark.parametrize("engine", ["auto", "python", "fast"])
def test_columns_and_names_in_a_batch_query(engine: str, spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "set.desc"
    path.write_bytes(RIG.data)
    frame = column(spark, basic(id=1, text="one", color="BLUE"), None)
    by_name = frame.select(from_protobuf("value", "Basic", str(path), engine=engine))
    assert by_name.columns == ["from_protobuf(value)"]
    assert by_name.schema[0].dataType.simpleString() == "struct<id:bigint,text:string,color:string>"
    assert [row[0] and row[0].asDict() for row in by_name.collect()] == [
        {"id": 1, "text": "one", "color": "BLUE"},
        None,
    ]
    decoded = frame.select(from_protobuf(frame.value, "Basic", binaryDescriptorSet=bytearray(RIG.data)).alias("event"))
    encoded = decoded.select(to_protobuf(decoded.event, "behaviours.Basic", str(path), engine=engine))
    assert encoded.columns == ["to_protobuf(event)"]
    assert [row[0] for row in encoded.collect()] == [row[0] for row in frame.collect()]
    by_class = frame.select(from_protobuf("value", messageClass=RIG.type("Basic"), fields=["text"]).alias("event"))
    assert by_class.schema["event"].dataType.simpleString() == "struct<text:string>"


def test_18_a_filter_on_a_decoded_field_then_encoded_again(spark: SparkSession) -> None:
    frame = column(spark, *(basic(id=number) for number in range(100)))
    event = from_protobuf("value", "Basic", binaryDescriptorSet=RIG.data)
    kept = (
        frame.select(event.alias("event"))
        .where("event.id > 97")
        .select(to_protobuf("event", "Basic", binaryDescriptorSet=RIG.data).alias("value"))
    )
    assert [bytes(row.value) for row in kept.collect()] == [b"\x08\x62", b"\x08\x63"]


def test_26_a_retained_empty_struct_is_written_to_parquet(spark: SparkSession, tmp_path: Path) -> None:
    options = {"retain.empty.message.types": "true"}
    event = from_protobuf("value", "HoldsNothing", binaryDescriptorSet=RIG.data, options=options)
    frame = column(spark, RIG.type("HoldsNothing")(name="n", nothing={})).select(event.alias("event"))
    frame.write.parquet(str(tmp_path / "out"))
    [row] = spark.read.parquet(str(tmp_path / "out")).collect()
    assert row.event.name == "n"
    assert row.event.nothing["__dummy_field_in_empty_struct"] is None


@pytest.mark.parametrize("engine", ["python", "fast"])
def test_38_a_wrapped_zero_in_a_list_or_a_map_is_collected_written_and_encoded_again(
    engine: str, spark: SparkSession, tmp_path: Path
) -> None:
    message = RIG.type("Wrappers")(int32_list=[{"value": 0}, {"value": 7}])
    message.string_map[3].value = ""
    options = PERMISSIVE | {"unwrap.primitive.wrapper.types": "true"}
    event = from_protobuf("value", "Wrappers", binaryDescriptorSet=RIG.data, options=options, engine=engine)
    frame = column(spark, message).select(event.alias("event"))
    frame.write.parquet(str(tmp_path / "out"))
    for [row] in (frame.collect(), spark.read.parquet(str(tmp_path / "out")).collect()):
        assert (row.event.int32_list, row.event.string_map) == ([0, 7], {3: ""})
    value = to_protobuf("event", "Wrappers", binaryDescriptorSet=RIG.data, engine=engine).alias("value")
    [row] = frame.select(value).collect()
    assert RIG.type("Wrappers").FromString(bytes(row.value)) == message


def test_42_failfast_ends_the_query_and_permissive_gives_null(spark: SparkSession) -> None:
    frame = column(spark, basic(id=1), b"\xff", b"\x00\x00\x00\x00\x01\x00\x08\x01").coalesce(1)
    with pytest.raises(PythonException) as caught:
        frame.select(from_protobuf("value", "Basic", binaryDescriptorSet=RIG.data)).collect()
    assert "[MALFORMED_PROTOBUF_MESSAGE] Malformed Protobuf messages are detected" in str(caught.value)
    event = from_protobuf("value", "Basic", binaryDescriptorSet=RIG.data, options=PERMISSIVE)
    assert [row.event is None for row in frame.select(event.alias("event")).collect()] == [False, True, True]
    decoded = from_protobuf("value", "Basic", binaryDescriptorSet=RIG.data, options=PERMISSIVE | {"on.error": "column"})
    rows = frame.select(decoded.alias("event")).select("event.value.id", "event.error").collect()
    assert (rows[0].id, rows[0].error, rows[1].id) == (1, None, None)
    assert "cannot be parsed" in rows[1].error


def test_44_a_column_that_does_not_fit_is_an_error_of_the_query(spark: SparkSession) -> None:
    frame = spark.range(1).select(sf.struct(sf.lit("x").alias("id")).alias("event"))
    with pytest.raises(PythonException, match="UNABLE_TO_CONVERT_TO_PROTOBUF_MESSAGE_TYPE"):
        frame.select(to_protobuf("event", "Basic", binaryDescriptorSet=RIG.data)).collect()


def test_45_the_session_s_configuration_switches_extensions_and_case(spark: SparkSession) -> None:
    two = RIG.of("behaviours2_extension")
    frame = column(spark, two.type("Extended")(name="n").SerializeToString() + b"\xa2\x06\x01s")
    spark.conf.set("spark.sql.function.protobufExtensions.enabled", "true")
    try:
        event = from_protobuf("value", "Extended", binaryDescriptorSet=two.data).alias("event")
        assert frame.select(event).collect()[0].event.extension_string == "s"
    finally:
        spark.conf.unset("spark.sql.function.protobufExtensions.enabled")
    event = from_protobuf("value", "Extended", binaryDescriptorSet=two.data).alias("event")
    assert frame.select(event).schema["event"].dataType.simpleString() == "struct<name:string>"


def test_45_it_does_so_in_every_thread(spark: SparkSession) -> None:
    two = RIG.of("behaviours2_extension")
    frame = column(spark, two.type("Extended")(name="n").SerializeToString())
    columns: list[str] = []

    def select() -> None:
        event = from_protobuf("value", "Extended", binaryDescriptorSet=two.data).alias("event")
        columns.extend(frame.select(event).schema["event"].dataType.fieldNames())

    spark.conf.set("spark.sql.function.protobufExtensions.enabled", "true")
    try:
        thread = threading.Thread(target=select)
        thread.start()
        thread.join()
    finally:
        spark.conf.unset("spark.sql.function.protobufExtensions.enabled")
    assert columns[:2] == ["name", "extension_string"]


def test_every_type_comes_back_from_spark_as_it_went_in(spark: SparkSession) -> None:
    message = RIG.type("Maps")()
    message.string_time["t"].seconds = 1_700_000_000
    message.bool_basic[True].id = 1
    times = RIG.type("Times")()
    times.time.seconds, times.duration.seconds, times.time.nanos = 1_700_000_000, -90_061, 123_456_000
    unsigned = RIG.type("Unsigned")(small=2**32 - 1, large=2**64 - 1, smalls=[2**31])
    for name, each in (("Maps", message), ("Times", times), ("Unsigned", unsigned)):
        for options in ({}, {"upcast.unsigned.ints": "true"}):
            event = from_protobuf("value", name, binaryDescriptorSet=RIG.data, options=options)
            value = to_protobuf("event", name, binaryDescriptorSet=RIG.data)
            [row] = column(spark, each).select(event.alias("event")).select(value.alias("value")).collect()
            assert RIG.type(name).FromString(bytes(row.value)) == each


def test_large_arrow_types_make_no_difference(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        event = from_protobuf("value", "Basic", binaryDescriptorSet=RIG.data).alias("event")
        value = to_protobuf("event", "Basic", binaryDescriptorSet=RIG.data).alias("value")
        rows = column(spark, basic(id=1, text="t", color="BLUE"), None).select(event).select("event", value).collect()
        assert (rows[0].event.text, rows[1].event) == ("t", None)
        assert RIG.type("Basic").FromString(bytes(rows[0].value)) == basic(id=1, text="t", color="BLUE")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_a_stream_is_decoded_aggregated_and_encoded(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    column(spark, *(basic(id=number % 3, text="t") for number in range(9))).write.parquet(str(source))
    event = from_protobuf("value", "Basic", binaryDescriptorSet=RIG.data).alias("event")
    counts = (
        spark.readStream.schema("value binary")
        .parquet(str(source))
        .select(event)
        .groupBy(sf.coalesce("event.id", sf.lit(0)).alias("id"))
        .agg(sf.count("*").cast("string").alias("text"))
    )
    encoded = counts.select(to_protobuf(sf.struct("id", "text"), "Basic", binaryDescriptorSet=RIG.data).alias("value"))
    query = (
        encoded.writeStream.format("memory").queryName("out").outputMode("complete").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(60)
    found = sorted((RIG.type("Basic").FromString(bytes(row.value)) for row in spark.table("out").collect()), key=str)
    assert sorted(each.id for each in found) == [0, 1, 2]
    assert {each.text for each in found} == {"3"}


def test_confluent_frames_with_a_registry_and_ids_in_headers(spark: SparkSession) -> None:
    with SchemaRegistryServer() as server:
        schema = server.register("behaviours", RIG.data, "behaviours.proto")
        registry = {"schema.registry.address": server.address, "schema.registry.subject": "behaviours"}
        event = sf.struct(sf.col("id"), sf.lit("t").alias("text"))
        framed = spark.range(1, 4).select(to_protobuf(event, "Basic", schemaRegistry=registry).alias("value"))
        assert [bytes(row.value)[:5] for row in framed.collect()] == [b"\0" + schema.to_bytes(4, "big")] * 3
        decoded = framed.select(from_protobuf("value", "behaviours.Basic", schemaRegistry=registry).alias("event"))
        assert [tuple(row.event) for row in decoded.collect()] == [(number, "t", None) for number in (1, 2, 3)]
        first = spark.range(1).select(
            from_protobuf(sf.lit(b"\0\0\0\0\1\0\x08\x01"), "Scalars", schemaRegistry=registry).alias("event")
        )
        assert first.schema["event"].dataType.simpleString().startswith("struct<bool_value:boolean,")
        # The id of the schema, and the way to its fourth message.
        header = "array(named_struct('key', '__value_schema_id', 'value', X'00000000010206'))"
        frame = column(spark, RIG.type("RepeatedMessage")(basic=[{"id": 1}])).selectExpr(
            "value", f"{header} AS headers"
        )
        bare = from_protobuf("value", "RepeatedMessage", schemaRegistry=registry, headers="headers").alias("event")
        assert frame.select(bare).columns == ["event"]
        assert frame.select(bare).collect()[0].event.basic[0].id == 1
        other = from_protobuf("value", "Lists", schemaRegistry=registry, headers="headers", options=PERMISSIVE)
        assert frame.select(other.alias("event")).collect()[0].event is None
        # The same message as a key; its value's header leads to another message.
        both = f"{header[:-1]}, named_struct('key', '__key_schema_id', 'value', X'00000000010202'))"
        keys = column(spark, RIG.type("Lists")(int64_value=[7])).selectExpr("value AS key", f"{both} AS headers")
        key = from_protobuf("key", "Lists", schemaRegistry=registry, headers="headers", isKey=True).alias("event")
        assert keys.select(key).collect()[0].event.int64_value == [7]


def test_the_example_decodes_aggregates_and_encodes(spark: SparkSession, tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "examples" / "protobuf_orders.py"
    spec = importlib.util.spec_from_file_location("protobuf_orders", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main(spark, tmp_path) == [
        {"customer": "ann", "orders": 4, "amount": 50.0},
        {"customer": "bob", "orders": 4, "amount": 50.0},
    ]


def wide(fields: int, levels: int, padding: int) -> bytes:
    """A descriptor set of about a megabyte: a root of so many fields, and messages nested so deep."""
    file = FileDescriptorProto(name="wide.proto", syntax="proto3", package="wide")
    for level in range(levels):
        message = file.message_type.add(name=f"Level{level}")
        for number in range(1, fields + 1 if level == 0 else 4):
            message.field.add(name=f"field_{number}", number=number, type=FieldDescriptorProto.TYPE_STRING, label=1)
        if level + 1 < levels:
            message.field.add(name="next", number=fields + 1, type=11, label=1, type_name=f".wide.Level{level + 1}")
    for number in range(padding):
        message = file.message_type.add(name=f"Unused{number}")
        for place in range(1, 11):
            message.field.add(name=f"some_longer_name_of_a_field_{place}", number=place, type=9, label=1)
    return FileDescriptorSet(file=[file]).SerializeToString()


def test_a_descriptor_of_a_megabyte_with_500_fields_and_12_levels_works(spark: SparkSession) -> None:
    data = wide(500, 12, 2500)
    assert len(data) > 1_000_000
    rig = RIG.of(data)
    begin = time.perf_counter()
    frame = column(spark, rig.type("Level0")(field_500="x", next={"next": {"field_1": "y"}}), b"")
    decoded = frame.select(from_protobuf("value", "Level0", binaryDescriptorSet=data).alias("event"))
    print(f"planned in {time.perf_counter() - begin:.2f} s")  # noqa: T201 - asked for; bench/protobuf.py measures it
    rows = decoded.select("event.field_500", "event.next.next.field_1", "event.field_1").collect()
    assert [tuple(row) for row in rows] == [("x", "y", None), (None, None, None)]


def large_descriptors(tag: str) -> bytes:
    """A descriptor set above 1 MB, from which Spark on sends a function by a file; all of it is of one message."""
    file = FileDescriptorProto(name="large.proto", syntax="proto3")
    message = file.message_type.add(name="Large")
    message.field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64)
    for number in range(30):
        file.enum_type.add(name=f"{tag}{number}").value.add(name=f"{tag}_{number}_" + "x" * 50_000)
    return FileDescriptorSet(file=[file]).SerializeToString()


def test_a_call_that_is_made_again_leaves_no_further_file_on_the_driver(spark: SparkSession) -> None:
    folder = Path(spark.sparkContext._temp_dir)  # type: ignore[attr-defined]  # where PySpark puts what it sends

    def decoded(data: bytes) -> list[Any]:
        event = from_protobuf("value", "Large", binaryDescriptorSet=data).alias("event")
        return [row.event.id for row in column(spark, b"\x08\x05").select(event).collect()]

    def files() -> int:
        return sum(path.is_file() and path.stat().st_size > 1_000_000 for path in folder.rglob("*"))

    before, data = files(), large_descriptors("A")
    for _ in range(4):  # as foreachBatch calls it
        assert decoded(data) == [5]
    assert files() == before + 1
    assert decoded(large_descriptors("B")) == [5]
    assert files() == before + 2


def test_in_a_further_session_of_the_same_context_a_call_is_the_same(spark: SparkSession) -> None:
    event = from_protobuf("value", "Basic", binaryDescriptorSet=RIG.data)
    other = spark.newSession()
    frame = other.createDataFrame([(bytearray(basic(id=1).SerializeToString()),)], "value binary")
    assert frame.select(event.alias("event")).first().event.id == 1  # type: ignore[union-attr]


def test_registered_functions_decode_and_encode_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "set.desc"
    path.write_bytes(RIG.data)
    message = basic(id=7, text="seven", color="BLUE")
    column(spark, message, None).createOrReplaceTempView("messages")
    register_sql(spark, "basic", "Basic", str(path))
    register_sql(spark, "text", messageClass=RIG.type("Basic"), fields=["text"], options=PERMISSIVE)
    path.unlink()
    decoded = spark.sql(
        "SELECT from_protobuf_basic(value) AS event, to_protobuf_basic(from_protobuf_basic(value)) AS value, "
        "from_protobuf_text(value).text AS text FROM messages WHERE from_protobuf_basic(value).id > 6"
    )
    assert decoded.schema["event"].dataType.simpleString() == "struct<id:bigint,text:string,color:string>"
    [row] = decoded.collect()
    assert (row.event.asDict(), row.text) == ({"id": 7, "text": "seven", "color": "BLUE"}, "seven")
    assert bytes(row.value) == message.SerializeToString()
    assert spark.sql("SELECT from_protobuf_text(X'ff') IS NULL AS bad").first().bad  # type: ignore[union-attr]
    with pytest.raises(PythonException, match="MALFORMED_PROTOBUF_MESSAGE"):
        spark.sql("SELECT from_protobuf_basic(X'ff')").collect()


def test_frames_without_a_registry_are_registered_for_reading_alone(spark: SparkSession) -> None:
    options = {"wire.format": "confluent"}
    register_sql(spark, "framed", "Basic", options=options, binaryDescriptorSet=RIG.data)
    assert spark.catalog.functionExists("from_protobuf_framed")
    assert not spark.catalog.functionExists("to_protobuf_framed")


@pytest.mark.parametrize(("suffix", "engine"), [("my order", "auto"), ("", "auto"), ("order", "jvm")])
def test_registration_refuses_what_sql_cannot_name_and_sparks_own_engine(
    suffix: str, engine: str, spark: SparkSession
) -> None:
    code = "PROTOBUF_ENGINE" if suffix == "order" else "PROTOBUF_FUNCTION_NAME"
    with pytest.raises(ProtobufAnalysisError, match=code):
        register_sql(spark, suffix, "Basic", binaryDescriptorSet=RIG.data, engine=engine)
    assert not spark.catalog.functionExists("from_protobuf_order")


_ORDER = 'syntax = "proto3"; package shop; message Order { string order_id = 1; '


def test_a_restart_takes_the_columns_of_a_replaced_descriptor_set(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/schema-evolution.md").read_text(encoding="utf-8")
    (block,) = [one.text for one in blocks(page) if "writeStream" in one.text]
    block = block.replace("/data/", f"{tmp_path}/").replace("orders.desc", f"{tmp_path}/orders.desc")
    block = block.replace(".start()", ".trigger(availableNow=True).start()")
    message = Rig(Engine.AUTO, compiled(_ORDER + "string coupon = 2; }")).type("Order")
    for number, fields in enumerate(("}", "string coupon = 2; }")):
        (tmp_path / "orders.desc").write_bytes(compiled(_ORDER + fields))
        payload = bytearray(message(order_id=f"o{number}", coupon="c").SerializeToString())
        spark.createDataFrame([(payload,)], "payload BINARY").write.mode("append").parquet(f"{tmp_path}/input")
        names: dict[str, Any] = {"events": spark.readStream.schema("payload BINARY").parquet(f"{tmp_path}/input")}
        exec(compile(block, "schema-evolution.md", "exec"), names)
        names["query"].awaitTermination()
    stored = spark.read.option("mergeSchema", "true").parquet(f"{tmp_path}/orders").orderBy("order_id")
    assert [(row.order_id, row.coupon) for row in stored.collect()] == [("o0", None), ("o1", "c")]
