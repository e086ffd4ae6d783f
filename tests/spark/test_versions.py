"""Every source, sink and function in a session, on any supported Spark: ``./dev --spark 4.0 test -m versions``.

What each does is tested elsewhere; here it is what depends on the Spark: limits, where a batch begins, bounded runs,
writers, filters, functions.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.streaming.query import StreamingQuery

from connectors import register
from connectors.avro import from_avro, to_avro
from connectors.core.processes.spark import ADMISSION_CONTROL
from connectors.json import from_json_registry, to_json_registry
from connectors.mixed import from_mixed, to_mixed
from connectors.protobuf import from_protobuf, register_sql, to_protobuf
from connectors.protobuf.worker import Engine
from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from connectors.testing.pubsub import PubSubServer
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.spark import test_protobuf as functions
from tests.support.avro_cases import logical, record
from tests.support.glue_rig import glue_server, header
from tests.support.kafka_rig import STEADY, KafkaRig
from tests.support.kinesis_rig import KinesisRig
from tests.support.mixed_rig import DETAILS, MEMBERS, TOPIC, MixedTopic
from tests.support.protobuf_rig import Rig, compiled
from tests.support.traced_source import LIMIT, TracedSource

# PySpark before 4.2 leaves sockets open.
pytestmark = [pytest.mark.versions, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

PATIENCE = 120


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


class Source:
    """A source with records, and a query that notes what each batch has.

    Args:
        spark: the session.
        folder: for the checkpoint.
        form: the format.
        options: of the source.
        limit: the option that limits a batch.
        value: the column, or expression, that tells records apart.
        put: adds a number of records, and returns their values.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        form: str,
        options: dict[str, str],
        *,
        limit: str,
        value: str,
        put: Callable[[int], list[str]],
    ) -> None:
        self.spark, self.folder, self.form, self.options = spark, folder, form, options
        self.limit, self.value, self.put = limit, value, put
        self.batches: dict[int, list[str]] = {}
        self.fails_at: int | None = None

    def start(self, most: int | None = None, *, available_now: bool = False, **options: str) -> StreamingQuery:
        limits = {} if most is None else {self.limit: str(most)}
        rows = self.spark.readStream.format(self.form).options(**self.options, **limits, **options).load()

        def note(batch: DataFrame, number: int) -> None:
            found = [row[0] for row in batch.selectExpr(self.value).collect()]
            assert self.batches.get(number, found) == found, "a batch that is repeated has other rows"
            self.batches[number] = found
            if number == self.fails_at:
                self.fails_at = None
                raise RuntimeError("planned failure")

        writer = rows.writeStream.foreachBatch(note).option("checkpointLocation", str(self.folder / "checkpoint"))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def read_until(self, query: StreamingQuery, count: int) -> None:
        """Wait until all batches together have so many rows, then stop."""
        wait_for(lambda: query.exception() is not None or len(self.rows) >= count)
        query.stop()
        assert query.exception() is None or self.fails_at is None

    @property
    def rows(self) -> list[str]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def sizes(self) -> list[int]:
        return [len(self.batches[number]) for number in sorted(self.batches) if self.batches[number]]


def wait_for(condition: Callable[[], bool]) -> None:
    import time  # noqa: PLC0415

    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def pubsub_server() -> Iterator[PubSubServer]:
    with PubSubServer() as server:
        yield server


@pytest.fixture(scope="module")
def kinesis_server() -> Iterator[KinesisServerProcess]:
    server = start_server_process()
    yield server
    server.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    if reason := find_broker().reason:
        pytest.skip(reason)
    with KafkaBroker(settings=STEADY) as running:
        yield running


@pytest.fixture
def pubsub(spark: SparkSession, pubsub_server: PubSubServer, tmp_path: Path) -> Source:
    name = f"orders-{uuid4().hex[:8]}"
    topic = f"projects/shop/topics/{name}"
    pubsub_server.create_subscription(f"projects/shop/subscriptions/{name}", topic)
    options = {"projectId": "shop", "subscriptionId": name, "endpoint": pubsub_server.endpoint}
    options |= {"spoolLocation": str(tmp_path / "spool"), "availableNowQuiet": "2s"}
    return Source(
        spark,
        tmp_path,
        "pubsub",
        options,
        limit="maxRecordsPerTrigger",
        value="messageId",
        put=lambda count: pubsub_server.publish(topic, [b"payload"] * count),
    )


@pytest.fixture
def kinesis(spark: SparkSession, kinesis_server: KinesisServerProcess, tmp_path: Path) -> Source:
    rig = KinesisRig(kinesis_server, tmp_path, shards=2)
    return Source(
        spark,
        tmp_path,
        "kinesis",
        rig.options(),
        limit="maxRecordsPerTrigger",
        value="string(data)",
        put=lambda count: [value.decode() for value in rig.put(count)],
    )


@pytest.fixture
def kafka(spark: SparkSession, broker: KafkaBroker, tmp_path: Path) -> Source:
    rig = KafkaRig(broker, tmp_path)
    topic = rig.topic(2)

    def put(count: int) -> list[str]:
        values = [uuid4().hex for _ in range(count)]
        for number, value in enumerate(values):
            rig.send(topic, [value], number % 2)
        return values

    options = rig.options(topic, startingOffsets="earliest")
    return Source(spark, tmp_path, "kafka_py", options, limit="maxOffsetsPerTrigger", value="string(value)", put=put)


@pytest.fixture(params=["pubsub", "kinesis", "kafka"])
def source(request: pytest.FixtureRequest) -> Source:
    chosen: Source = request.getfixturevalue(request.param)
    return chosen


@pytest.mark.guarantee
def test_limits_hold_in_every_batch_after_stops_and_batches_that_are_repeated(source: Source) -> None:
    values = source.put(70)
    source.read_until(source.start(30), 70)
    values += source.put(70)
    source.fails_at = max(source.batches) + 2
    query = source.start(30)
    wait_for(lambda: query.exception() is not None)
    source.read_until(source.start(30), 140)
    assert Counter(source.rows) == Counter(values)
    assert max(source.sizes) <= 30


@pytest.mark.guarantee
def test_a_bounded_run_takes_all_there_is_and_the_next_one_what_came_since(source: Source) -> None:
    values = source.put(50)
    for _ in range(2):
        assert source.start(available_now=True).awaitTermination(PATIENCE)
        assert Counter(source.rows) == Counter(values)
        values += source.put(20)
    assert source.start(10, available_now=True, availableNow="true").awaitTermination(PATIENCE)
    assert Counter(source.rows) == Counter(values)
    assert (max(source.sizes[2:]) <= 10) == ADMISSION_CONTROL


@pytest.mark.guarantee
def test_a_bounded_run_with_a_limit_leaves_the_rest_only_where_spark_asks_once(source: Source) -> None:
    values = source.put(50)
    assert source.start(20, available_now=True).awaitTermination(PATIENCE)
    assert 0 < len(source.rows) <= (50 if ADMISSION_CONTROL else 20)
    assert not ADMISSION_CONTROL or len(source.rows) == 50
    while len(source.rows) < 50:
        assert source.start(20, available_now=True).awaitTermination(PATIENCE)
    assert Counter(source.rows) == Counter(values)


@pytest.mark.guarantee
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "repeated"])
def test_a_restarted_query_says_where_its_next_batch_begins(
    spark: SparkSession, tmp_path: Path, *, is_committed: bool
) -> None:
    """Spark before 4.2 plans the newest end of its log, from that end to itself, before it asks for another one."""
    spark.dataSource.register(TracedSource)
    wanted, calls = tmp_path / "wanted", tmp_path / "calls"
    traced = Source(spark, tmp_path, "traced", {"folder": str(tmp_path)}, limit="", value="row", put=lambda _count: [])
    wanted.write_text("3")
    traced.read_until(traced.start(), 3)
    wanted.write_text("5")
    newest = max(traced.batches) + 1
    traced.fails_at = None if is_committed else newest
    query = traced.start()
    if is_committed:
        wait_for((tmp_path / "checkpoint" / "commits" / str(newest)).exists)
    traced.read_until(query, 5)
    calls.unlink()
    wanted.write_text("9")
    traced.read_until(traced.start(), 9)
    found = [json.loads(line) for line in calls.read_text().splitlines()]
    asked = next(number for number, call in enumerate(found) if call[0] == "latestOffset")
    if ADMISSION_CONTROL:
        assert found[asked] == ["latestOffset", 5, LIMIT]
    else:
        repeated = [] if is_committed else [["partitions", 3, 5]]
        assert found[:asked] == [["partitions", 5, 5], *repeated]
    assert ["partitions", 5, 9] in found[asked:]


def test_a_batch_read_with_a_filter_has_the_rows_that_match(spark: SparkSession, kafka: Source) -> None:
    values = kafka.put(20)
    rows = spark.read.format("kafka_py").options(**kafka.options).load()
    assert rows.count() == 20
    found = rows.where("partition = 1 AND offset >= 5").selectExpr("string(value)").collect()
    assert sorted(row[0] for row in found) == sorted(values[1::2][5:])


def write(rows: DataFrame, folder: Path, form: str, **options: str) -> None:
    """Write a stream of all there is."""
    writer = rows.writeStream.format(form).options(**options).trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(folder / "written")).start().awaitTermination(PATIENCE)


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of a hundred rows, in files."""
    folder = str(tmp_path / "numbers")
    spark.range(100).selectExpr("CAST(id AS STRING) AS text").write.parquet(folder)
    return spark.readStream.schema("text STRING").parquet(folder)


WANTED = sorted(str(number) for number in range(100))


def test_a_stream_is_published(numbers: DataFrame, pubsub: Source, tmp_path: Path) -> None:
    pubsub.value = "string(payload)"
    topic = {"topicId": f"projects/shop/topics/{pubsub.options['subscriptionId']}"}
    write(
        numbers.selectExpr("CAST(text AS BINARY) AS payload"),
        tmp_path,
        "pubsub",
        **topic,
        endpoint=pubsub.options["endpoint"],
    )
    pubsub.read_until(pubsub.start(), 100)
    assert sorted(pubsub.rows) == WANTED


def test_a_stream_is_put_into_kinesis(numbers: DataFrame, kinesis: Source, tmp_path: Path) -> None:
    names = ("streamName", "region", "endpointUrl", "awsAccessKey", "awsSecretKey")
    options = {name: value for name, value in kinesis.options.items() if name in names}
    rows = numbers.selectExpr("CAST(text AS BINARY) AS data", "text AS partitionKey")
    write(rows, tmp_path, "kinesis", **options)
    kinesis.read_until(kinesis.start(), 100)
    assert sorted(kinesis.rows) == WANTED


@pytest.mark.guarantee
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_stream_is_produced(numbers: DataFrame, kafka: Source, guarantee: str, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": kafka.options["kafka.bootstrap.servers"], "topic": kafka.options["subscribe"]}
    rows = numbers.selectExpr("CAST(text AS BINARY) AS value")
    write(rows, tmp_path, "kafka_py", **options, deliveryGuarantee=guarantee)
    kafka.read_until(kafka.start(), 100)
    assert sorted(kafka.rows) == WANTED


def test_messages_are_decoded_and_encoded(spark: SparkSession) -> None:
    text = 'syntax = "proto3"; message Item { string name = 1; } message Order { string id = 1; int64 n = 2; '
    text += "map<string, int32> counts = 3; repeated Item items = 4; bytes raw = 5; }"
    descriptors = compiled(text)
    message = b"\x0a\x02o1\x10\x05\x1a\x05\x0a\x01a\x10\x07\x22\x03\x0a\x01x\x2a\x01\xff"
    rows = spark.createDataFrame([(bytearray(message),), (None,), (bytearray(b"\x0a\x7f"),)], "value BINARY")
    options: dict[str, Any] = {"messageName": "Order", "binaryDescriptorSet": descriptors}
    decoded = rows.select(from_protobuf("value", options={"mode": "PERMISSIVE"}, **options).alias("order"))
    first, *others = [row.order for row in decoded.collect()]
    assert first.asDict(recursive=True) == {
        "id": "o1",
        "n": 5,
        "counts": {"a": 7},
        "items": [{"name": "x"}],
        "raw": bytearray(b"\xff"),
    }
    assert others == [None, None]
    encoded = decoded.select(to_protobuf("order", **options).alias("value")).collect()
    assert [row.value for row in encoded] == [bytearray(message), None, None]


AVRO = {
    "value": (["null", "string"], [b"\x02\x02a", b"\0", None], ["a", None, None]),
    "number": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        [b"\x02\x05"],
        [Decimal("0.05")],
    ),
    "day": ({"type": "int", "logicalType": "date"}, [b"\x02", b""], [date(1970, 1, 2), None]),
    "map": ({"type": "map", "values": ["null", "long"]}, [b"\x02\x02k\x02\x04\0"], [{"k": 2}]),
    "record": (
        record("R", ("at", logical("long", "timestamp-millis")), ("u", ["int", "string"]), ("e", record("E"))),
        [b"\x02\x02\x02x", b"\x02", None],
        [
            Row(at=datetime.fromtimestamp(0.001), u=Row(member0=None, member1="x"), e=Row()),  # noqa: DTZ006 - as rows have times
            Row(at=None, u=None, e=None),
            None,
        ],
    ),
}


@pytest.mark.parametrize("name", AVRO)
def test_avro_messages_become_the_values_that_they_hold(spark: SparkSession, name: str) -> None:
    schema, messages, values = AVRO[name]
    frame = spark.createDataFrame([(message,) for message in messages], "value BINARY").coalesce(1)
    decoded = frame.select(from_avro("value", json.dumps(schema), {"mode": "PERMISSIVE"}).alias("value"))
    assert [row.value for row in decoded.collect()] == values
    with_error = from_avro("value", json.dumps(schema), {"mode": "PERMISSIVE", "on.error": "column"})
    rows = frame.select(with_error.alias("made")).select("made.*").collect()
    assert [row.value for row in rows] == values


@pytest.mark.parametrize("name", AVRO)
def test_values_become_avro_messages_and_values_again(spark: SparkSession, name: str) -> None:
    schema, messages, values = AVRO[name]
    text = json.dumps(schema)
    frame = spark.createDataFrame([(message,) for message in messages[:1]], "value BINARY").coalesce(1)
    decoded = frame.select(from_avro("value", text).alias("value"))
    encoded = decoded.select(to_avro("value", text), to_avro(decoded.value).alias("own"))
    first = encoded.collect()[0]
    assert encoded.columns[0] == "to_avro(value)"
    assert first[0] == messages[0]
    assert len(first.own) >= len(messages[0])
    again = encoded.toDF("value", "own").select(from_avro("value", text).alias("value"))
    assert [row.value for row in again.collect()] == values[:1]


def test_without_a_schema_avro_has_a_union_for_what_can_be_null(spark: SparkSession) -> None:
    frame = spark.range(1, 3).coalesce(1).selectExpr("id", "nullif(id, 2) AS other", "struct(id) AS both")
    rows = frame.select(
        to_avro("id").alias("id"), to_avro("other").alias("other"), to_avro("both").alias("both")
    ).collect()
    assert [row.other for row in rows] == [b"\0\x02", None]
    seen = b"" if hasattr(spark_functions, "arrow_udf") else b"\0"  # Spark 4.0 shows Python no nullability
    assert [row.id for row in rows] == [seen + b"\x02", seen + b"\x04"]
    assert [row.both for row in rows] == [2 * seen + b"\x02", 2 * seen + b"\x04"]


def test_avro_in_frames_is_read_by_the_schemas_of_its_writers(spark: SparkSession) -> None:
    old, new = (record("R", ("id", kind), *more) for kind, *more in (("int",), ("long", ("note", ["null", "string"]))))
    new["fields"][1]["default"] = None
    with SchemaRegistryServer() as server:
        ids = [server.register("orders", text=json.dumps(each), schema_type="AVRO") for each in (old, new)]
        first, second = (b"\0" + number.to_bytes(4, "big") for number in ids)
        header = [Row(key="__value_schema_id", value=bytearray(second))]
        rows = [(first + b"\x02", None), (b"\x04\x02\x02n", header), (b"\x09", None), (None, None)]
        frame = spark.createDataFrame(rows, "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>").coalesce(
            1
        )
        decoded = from_avro("value", None, {"mode": "PERMISSIVE"}, "orders", server.address, headers="headers").alias(
            "order"
        )
        orders = [row.order for row in frame.select(decoded).collect()]
    assert orders == [Row(id=1, note=None), Row(id=2, note="n"), Row(id=None, note=None), None]


def test_avro_is_written_in_frames_by_the_latest_version_of_a_subject(spark: SparkSession) -> None:
    frame = spark.range(1, 3).coalesce(1).selectExpr("struct(id) AS v")
    with SchemaRegistryServer() as server:
        number = server.register("orders", text=json.dumps(record("R", ("id", "long"))), schema_type="AVRO")
        written = frame.select(to_avro("v", subject="orders", schemaRegistryAddress=server.address).alias("value"))
        prefix = b"\0" + number.to_bytes(4, "big")
        assert [row.value for row in written.collect()] == [prefix + b"\x02", prefix + b"\x04"]
        read = written.select(from_avro("value", None, None, "orders", server.address).alias("v"))
        assert [row.v.id for row in read.collect()] == [1, 2]


JSON_ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "any": True, "tags": {"items": {"type": "string"}}},
}


def test_json_in_frames_is_read_by_the_schema_of_a_registry(spark: SparkSession) -> None:
    days = {"id": {"type": "integer"}, "day": {"type": "integer", "title": "org.apache.kafka.connect.data.Date"}}
    with SchemaRegistryServer() as server:
        texts = [json.dumps(each) for each in (JSON_ORDER, {"type": "object", "properties": days})]
        ids = [server.register(name, text=text, schema_type="JSON") for name, text in zip("od", texts, strict=True)]
        first, second = (b"\0" + number.to_bytes(4, "big") for number in ids)
        header = [Row(key="__value_schema_id", value=bytearray(second))]
        rows = [(first + b'{"id": 1, "any": [2]}', None), (b'{"id": 3, "day": 4}', header), (b"{}", None), (None, None)]
        frame = spark.createDataFrame(rows, "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>").coalesce(
            1
        )
        options = {"mode": "PERMISSIVE", "on.error": "column"}
        orders = frame.select(
            from_json_registry("value", None, None, "o", server.address, headers="headers").alias("order"),
            from_json_registry("value", None, options, "d", server.address, headers="headers").alias("day"),
        ).selectExpr("order.id", "to_json(order.any) AS text", "order", "day")
        found = orders.drop("order").collect()
    assert [(row.id, row.text) for row in found] == [(1, "[2]"), (3, None), (None, None), (None, None)]
    assert found[1].day == Row(value=Row(id=3, day=date(1970, 1, 5)), error=None)
    assert "begins with 7b 7d" in found[2].day.error
    assert found[3].day is None


def test_json_is_written_in_frames_by_the_latest_version_of_a_subject(spark: SparkSession) -> None:
    frame = spark.range(1, 3).coalesce(1).selectExpr("struct(id) AS v")
    with SchemaRegistryServer() as server:
        number = server.register("orders", text=json.dumps(JSON_ORDER), schema_type="JSON")
        written = frame.select(to_json_registry("v", None, "orders", server.address).alias("value"))
        prefix = b"\0" + number.to_bytes(4, "big")
        assert [row.value for row in written.collect()] == [prefix + b'{"id":1}', prefix + b'{"id":2}']
        read = written.select(from_json_registry("value", None, None, "orders", server.address).alias("v"))
        assert [row.v.id for row in read.collect()] == [1, 2]


NO_PANDAS = """
import sys
class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
"""
DECODE_WITHOUT_PANDAS = f"""
{NO_PANDAS}
import json
from pyspark.sql import SparkSession, functions as F
from connectors.avro import from_avro, to_avro
from connectors.json import from_json_registry
from connectors.protobuf import from_protobuf, register_sql, to_protobuf

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
cells = {{"avro": "02", "proto": "0805", "text": "0000000001" + b'{{"id": 7}}'.hex()}}
frame = spark.range(1).select(*(F.lit(bytearray.fromhex(cell)).alias(name) for name, cell in cells.items()))
orders = {{"descFilePath": sys.argv[2], "messageName": "Order"}}
registry = {{"address": sys.argv[1], "subject": "orders"}}
readers = {{
    "from_avro": lambda: from_avro("avro", '"int"'),
    "from_protobuf": lambda: from_protobuf("proto", **orders).getField("n"),
    "from_json_registry": lambda: from_json_registry("text", schemaRegistry=registry).getField("id"),
    "register_sql": lambda: register_sql(spark, "sql", **orders) or F.expr("from_protobuf_sql(proto)").getField("n"),
}}
writers = {{
    "to_avro": lambda: to_avro(F.lit(1), '"int"'),
    "to_protobuf": lambda: to_protobuf(F.struct(F.lit(5).alias("n")), **orders),
}}

def found(functions):
    found = {{}}
    for name, function in functions.items():
        try:
            made = frame.select(function().alias("made")).first().made
            found[name] = made.hex() if isinstance(made, bytes | bytearray) else made
        except Exception as error:
            found[name] = str(error)
    return found

sys.meta_path.insert(0, NoPandas())
driver = found(readers | writers)
sys.meta_path.pop(0)
print(json.dumps({{"driver": driver, "worker": found(readers)}}))
"""


def test_a_function_that_needs_pandas_says_which_extra_brings_it(tmp_path: Path) -> None:
    """From Spark 4.1 on none does: with the same program, everything is decoded."""
    (tmp_path / "sitecustomize.py").write_text(f"{NO_PANDAS}\nsys.meta_path.insert(0, NoPandas())\n")
    worker = tmp_path / "worker"
    worker.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {shlex.quote(sys.executable)} "$@"\n')
    worker.chmod(0o755)
    descriptors = tmp_path / "orders.desc"
    descriptors.write_bytes(compiled('syntax = "proto3"; message Order { int32 n = 1; bytes raw = 3; }'))
    with SchemaRegistryServer() as server:
        assert server.register("orders", text=json.dumps(JSON_ORDER), schema_type="JSON") == 1
        done = subprocess.run(
            [sys.executable, "-c", DECODE_WITHOUT_PANDAS, server.address, str(descriptors)],
            env={**os.environ, "PYSPARK_PYTHON": str(worker), "PYSPARK_DRIVER_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().rpartition("\n")[2])
    written = {name: found["driver"].pop(name) for name in ("to_avro", "to_protobuf")}
    assert written == {"to_avro": "02", "to_protobuf": "0805"}
    decoded = {"from_avro": 1, "from_protobuf": 5, "from_json_registry": 7, "register_sql": 5}
    if hasattr(spark_functions, "arrow_udf"):
        assert (found["driver"], found["worker"]) == (decoded, decoded)
        return
    for where in ("driver", "worker"):
        for name, text in found[where].items():
            function = "from_protobuf" if name == "register_sql" else name
            assert (
                f"[PACKAGES_MISSING] These packages are not installed: pandas>=2.2,<3 ({function} on Spark 4.0."
            ) in text, (where, text)
            assert "Install the extra pandas: pip install" in text
            assert "here and on every executor" in text


def test_frames_of_glue_are_written_and_read(spark: SparkSession) -> None:
    with glue_server() as server:
        server.create()
        version = server.register("orders", json.dumps(record("R", ("id", "long"))))
        message = server.register("m", 'syntax = "proto3"; message A {} message M { int64 id = 1; }', "PROTOBUF")
        frame = spark.range(1, 3).coalesce(1).selectExpr("struct(id) AS v")
        written = frame.select(
            to_avro("v", subject="orders", schemaRegistry=server.options).alias("avro"),
            to_protobuf("v", "M", schemaRegistry={**server.options, "schemaName": "m"}).alias("protobuf"),
        )
        assert [(row.avro, row.protobuf) for row in written.collect()] == [
            (header(version) + bytes([2 * number]), header(message) + b"\1\x08" + bytes([number])) for number in (1, 2)
        ]
        read = written.select(
            from_avro("avro", subject="orders", schemaRegistry=server.options).alias("avro"),
            from_protobuf("protobuf", "M", schemaRegistry={**server.options, "schemaName": "m"}).alias("protobuf"),
        )
        assert [(row.avro.id, row.protobuf.id) for row in read.collect()] == [(1, 1), (2, 2)]
        server.drop()


VALUES = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
message Values { optional int64 n = 1; repeated double list = 2; map<string, int64> map = 3; optional uint64 u = 4;
  google.protobuf.Timestamp at = 5; google.protobuf.Duration took = 6; optional float f = 7;
  repeated Values inner = 8; }"""


def test_messages_of_several_types_are_read_and_written(spark: SparkSession) -> None:
    with SchemaRegistryServer() as server:
        topic = MixedTopic(server)
        bad = [topic.refund_message(), topic.frame(topic.order, b"\x02")]
        rows = [
            (topic.order_message(1),),
            (topic.payment_message(2),),
            (topic.click_message(3),),
            *((row,) for row in bad),
        ]
        frame = spark.createDataFrame([*rows, (None,)], "value BINARY").coalesce(1)
        read = from_mixed("value", MEMBERS, options=DETAILS, schemaRegistry=topic.registry).alias("event")
        events = [row.event for row in frame.select(read).collect()]
        written = to_mixed("event.value", MEMBERS, TOPIC, schemaRegistry=topic.registry).alias("value")
        again = frame.select(read).where("event.value IS NOT NULL").select(written).select(read).collect()
    assert [event and event.value and event.value.type for event in events] == [
        "order",
        "payment",
        "click",
        *[None] * 3,
    ]
    assert [event and event.error and event.error.code for event in events[3:]] == [
        "MIXED_TYPE_UNKNOWN",
        "MALFORMED_AVRO_MESSAGE",
        None,
    ]
    assert [row.event for row in again] == events[:3]


def test_values_that_pandas_would_change_are_encoded_as_they_are(spark: SparkSession) -> None:
    rig = Rig(Engine.AUTO, compiled(VALUES))
    message = rig.type("Values")
    wanted = message(n=2**53 + 1, map={"a": 2**53 + 1}, u=2**64 - 1, f=0.1, inner=[{"n": 2**53 + 1}, {"f": 1}])
    wanted.list.extend([1.5, float("nan"), -0.0])
    wanted.at.seconds, wanted.at.nanos = 200_000_000_000, 5_000
    wanted.took.seconds, wanted.took.nanos = -90_061, -1_000
    rows = [(bytearray(each.SerializeToString(deterministic=True)),) for each in (wanted, message(f=2), message())]
    frame = spark.createDataFrame([*rows, (None,)], "value BINARY").coalesce(1)
    options: dict[str, Any] = {"binaryDescriptorSet": rig.data, "options": {"upcast.unsigned.ints": "true"}}
    options["options"]["recursive.fields.max.depth"] = "2"
    decoded = frame.select(from_protobuf("value", "Values", **options).alias("event"))
    encoded = decoded.select(to_protobuf("event", "Values", binaryDescriptorSet=rig.data).alias("value"))
    assert [row.value for row in encoded.collect()] == [row.value for row in frame.collect()]
    nulls = decoded.selectExpr("named_struct('list', array(1.5D, NULL), 'n', event.n) AS event")
    with pytest.raises(PythonException, match="PROTOBUF_NULL_ELEMENT"):
        nulls.select(to_protobuf("event", "Values", binaryDescriptorSet=rig.data)).collect()


def test_functions_of_sql_decode_and_encode(spark: SparkSession) -> None:
    message, options = b"\x0a\x02o1", {"mode": "PERMISSIVE"}
    descriptors = compiled('syntax = "proto3"; message Order { string id = 1; }')
    register_sql(spark, "order", "Order", binaryDescriptorSet=descriptors, options=options)
    rows = [(bytearray(message),), (None,), (bytearray(b"\x0a\x7f"),)]
    spark.createDataFrame(rows, "value BINARY").createOrReplaceTempView("messages")
    orders = spark.sql("SELECT from_protobuf_order(value) AS event FROM messages")
    assert orders.schema["event"].dataType.simpleString() == "struct<id:string>"
    assert [row.event and row.event.id for row in orders.collect()] == ["o1", None, None]
    orders.createOrReplaceTempView("orders")
    if hasattr(spark_functions, "arrow_udf"):
        encoded = spark.sql("SELECT to_protobuf_order(event) FROM orders")
    else:
        with pytest.raises(
            PythonException, match=r"SPARK_FEATURE_MISSING.*to_protobuf_order\(event, typeof\(event\)\)"
        ):
            spark.sql("SELECT to_protobuf_order(event) FROM orders").collect()
        encoded = spark.sql("SELECT to_protobuf_order(event, typeof(event)) FROM orders")
    assert [row[0] for row in encoded.collect()] == [bytearray(message), None, None]


# Of all that the functions do, what depends on how Spark hands over columns.
test_columns_and_names_in_a_batch_query = functions.test_columns_and_names_in_a_batch_query
test_a_bad_row_ends_the_query_or_is_null = functions.test_42_failfast_ends_the_query_and_permissive_gives_null
test_a_column_that_does_not_fit_is_an_error = functions.test_44_a_column_that_does_not_fit_is_an_error_of_the_query
test_every_type_comes_back = functions.test_every_type_comes_back_from_spark_as_it_went_in
test_large_arrow_types_make_no_difference = functions.test_large_arrow_types_make_no_difference
test_a_stream_is_decoded_aggregated_and_encoded = functions.test_a_stream_is_decoded_aggregated_and_encoded
test_frames_of_a_registry = functions.test_confluent_frames_with_a_registry_and_ids_in_headers
