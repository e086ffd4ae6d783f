"""Messages per second through Spark to a noop sink: from_protobuf and to_protobuf against what a pip-only user writes.

The message is bench.Event of proto/event.proto: 15 fields, about 190 bytes. The peers are in bench/_protobuf_peers.py:
``decode-upb`` and ``encode-upb`` are what users write, ``decode-tuned`` what an expert writes for one message, and
protarrow is a library. ``extra-fast`` is what the extra fast brings: the default against ``engine=python``, which is
what the default does with large batches where ptars is not installed. ``bad-row`` is our own decoding of batches with
one bad row in 10,000 (PERMISSIVE) against the same batches without. ``plan`` is the time to plan a descriptor of 1 MB
with 500 fields and 12 levels. ``decode-1``, ``decode-8``, ``encode-1`` and ``encode-8`` are 20,000 messages in Arrow
batches of so many rows: the default, which takes few rows one by one, beside ``engine=python``, which does not.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _protobuf_peers as peers
import pyarrow as pa
from _common import Benchmark, Side, interleaved, parser
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType

from connectors.protobuf import from_protobuf, to_protobuf
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import Schema
from connectors.protobuf.schema.plan import compile_plan
from tools.protos import SOURCES, compile_set

BATCH = 10_000
FIELDS, LEVELS = 500, 12
FEW_CASES = ("decode-1", "decode-8", "encode-1", "encode-8")
CASES = (
    "decode-upb",
    "decode-tuned",
    "decode-protarrow",
    "encode-upb",
    "encode-protarrow",
    "extra-fast",
    "bad-row",
    "plan",
    *FEW_CASES,
)
FEW = 20_000


def events(count: int, path: str) -> list[bytes]:
    """Messages as a service writes them."""
    kind = peers.event_class(path)
    chance = random.Random(1)
    made = []
    for number in range(count):
        event = kind(
            id=f"event-{number:012d}",
            user_id=chance.randrange(1 << 40),
            shard=chance.randrange(64),
            active=bool(number % 3),
            score=chance.random(),
            ratio=chance.random(),
            token=chance.randbytes(16),
            level=chance.randrange(4),
            codes=[1, 2, 300],
            note="" if number % 4 else "a note",
        )
        if number % 2:
            event.retries = chance.randrange(3)
        event.place.city, event.place.latitude, event.place.longitude = "Amsterdam", 52.1, 4.9
        for each in range(2):
            event.items.add(sku=f"sku-{each}{number % 100}", quantity=each + 1, price=9.5)
        event.tags["environment"] = "prod"
        event.tags["zone"] = "eu-1"
        event.created.FromMicroseconds(1_700_000_000_000_000 + number)
        made.append(event.SerializeToString(deterministic=True))
    return made


def session() -> SparkSession:
    """One core for Spark's tasks: so each side is one Python process. Its workers import the peers."""
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    return (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def frame_of(spark: SparkSession, messages: list[bytes], repeat: int) -> DataFrame:
    """A cached column of messages."""
    table = pa.table({"value": pa.array(messages * repeat, pa.binary())})
    frame = spark.createDataFrame(table).coalesce(1).cache()
    frame.count()
    return frame


def detached(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """The same rows, cached, by another plan: a cache of this plan would answer whoever computes it again."""
    made = spark.createDataFrame(frame.toArrow()).coalesce(1).cache()
    made.count()
    return made


def plan_above_cache(frame: DataFrame) -> str:
    """What Spark would run on what it has cached."""
    plan = str(frame._jdf.queryExecution().optimizedPlan().toString())  # noqa: SLF001 - explain() prints only
    return plan.partition("InMemoryRelation")[0]


def rate(frame: DataFrame, column: Any, count: int) -> float:
    """Messages per second, to a sink that drops them."""
    chosen = frame.select(column.alias("out"))
    assert "ArrowEvalPython" in plan_above_cache(chosen), "Spark takes the answers from its cache"
    begin = time.perf_counter()
    chosen.write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - begin)


def peer(function: Callable[..., pa.Array], kind: Any, path: str) -> Any:
    """An Arrow UDF of a peer."""

    def run(column: pa.Array) -> pa.Array:
        return function(column, path)

    return sf.arrow_udf(run, kind)


def wide() -> bytes:
    """A descriptor set of 1 MB: a root of 500 fields, 12 levels of messages, and many others that it does not use."""
    file = FileDescriptorProto(name="wide.proto", syntax="proto3", package="wide")
    for level in range(LEVELS):
        message = file.message_type.add(name=f"Level{level}")
        for number in range(1, FIELDS + 1 if level == 0 else 42):
            message.field.add(name=f"field_{number}", number=number, type=FieldDescriptorProto.TYPE_STRING, label=1)
        if level + 1 < LEVELS:
            message.field.add(name="next", number=600, type=11, label=1, type_name=f".wide.Level{level + 1}")
    for number in range(2500):
        message = file.message_type.add(name=f"Unused{number}")
        for place in range(1, 11):
            message.field.add(name=f"some_longer_name_of_a_field_{place}", number=place, type=9, label=1)
    return FileDescriptorSet(file=[file]).SerializeToString()


def planning_milliseconds(data: bytes) -> float:
    """Load the set, compile the plan and both schemas."""
    begin = time.perf_counter()
    schema = Schema(data)
    plan = compile_plan(schema.find("Level0"), schema, ProtobufOptions())
    assert len(plan.spark_type) == len(plan.arrow_type) == FIELDS + 1
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__ or "")
    made.add_argument("--messages", type=int, default=400_000, help="for our side; the peers get an eighth")
    options = made.parse_args()
    cases = options.cases or CASES
    bench = Benchmark("protobuf")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "event.desc")
        compile_set(SOURCES / "event.proto", Path(path), SOURCES)
        messages = events(BATCH, path)
        size = sum(map(len, messages)) / len(messages)
        bench.settings(
            rounds=options.rounds,
            messages=f"{options.messages} ours, {options.messages // 8} theirs, {size:.0f} bytes each",
            spark="local[1], batches of 10000 rows, cached input, noop sink",
        )
        if "plan" in cases:
            data = wide()
            [plan] = interleaved(
                {f"plan {len(data) / 1e6:.2f} MB": partial(planning_milliseconds, data)}, options.rounds
            )
            bench.show("plan", plan, "ms")
        if set(cases) - {"plan"}:
            through_spark(bench, cases, messages, path, options)
    bench.finish()


def through_spark(bench: Benchmark, cases: Any, messages: list[bytes], path: str, options: Any) -> None:
    """The cases that run in Spark."""
    spark = session()
    large = frame_of(spark, messages, options.messages // BATCH)
    small = frame_of(spark, messages, max(options.messages // 8 // BATCH, 1))
    count, few = large.count(), small.count()
    decode = from_protobuf("value", "Event", path)
    kind = small.select(decode).schema[0].dataType
    sides: dict[str, tuple[Any, Any, DataFrame, DataFrame]] = {}
    for name in ("decode_upb", "decode_tuned", "decode_protarrow"):
        sides[name.replace("_", "-")] = (decode, peer(getattr(peers, name), kind, path)("value"), large, small)
    sides["extra-fast"] = decode, from_protobuf("value", "Event", path, engine="python"), large, small
    if any(case in {"encode-upb", "encode-protarrow"} for case in cases):
        structs = [detached(spark, each.select(decode.alias("event"))) for each in (large, small)]
        encode = to_protobuf("event", "Event", path)
        for name in ("encode_upb", "encode_protarrow"):
            sides[name.replace("_", "-")] = (encode, peer(getattr(peers, name), BinaryType(), path)("event"), *structs)
    for case in cases:
        if case in sides:
            ours, theirs, ours_from, theirs_from = sides[case]
            check(case, small.limit(100), ours, theirs)
            pair = interleaved(
                {
                    "connectors.protobuf": partial(rate, ours_from, ours, count),
                    case: partial(rate, theirs_from, theirs, few),
                },
                options.rounds,
            )
            bench.compare(case, *pair, "messages/s")
    if "bad-row" in cases:
        bad = list(messages)
        bad[BATCH * 2 // 3] = b"\xff\xff\xff"
        spoilt = frame_of(spark, bad, options.messages // BATCH)
        lenient = from_protobuf("value", "Event", path, {"mode": "PERMISSIVE"})
        clean, one_bad = interleaved(
            {
                "no bad row": partial(rate, large, lenient, count),
                "one bad row in 10,000": partial(rate, spoilt, lenient, count),
            },
            options.rounds,
        )
        cost: Side = Side("one bad row in 10,000", [1 / value * 1e6 for value in one_bad.values])
        bench.compare("bad-row", cost, Side("no bad row", [1 / value * 1e6 for value in clean.values]), "us/message")
    if few_cases := [case for case in cases if case in FEW_CASES]:
        few_rows(bench, few_cases, frame_of(spark, messages, FEW // BATCH), path, options.rounds)
    spark.stop()


def few_rows(bench: Benchmark, cases: list[str], frame: DataFrame, path: str, rounds: int) -> None:
    """The cases in which Spark hands over batches of few rows."""
    spark = frame.sparkSession
    structs = detached(spark, frame.select(from_protobuf("value", "Event", path).alias("event")))
    calls = {"decode": (frame, from_protobuf, "value"), "encode": (structs, to_protobuf, "event")}
    for case in cases:
        function, rows = case.split("-")
        source, call, column = calls[function]
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows)
        sides = {
            f"engine={engine}": partial(rate, source, call(column, "Event", path, engine=engine), FEW)
            for engine in ("auto", "python")
        }
        bench.compare(case, *interleaved(sides, rounds), "messages/s")


def check(case: str, frame: DataFrame, ours: Any, theirs: Any) -> None:
    """Both sides must do the same work."""
    if case in {"decode-upb", "decode-tuned", "extra-fast"}:
        left, right = (frame.select(each.alias("out")).collect() for each in (ours, theirs))
        assert left == right, case


if __name__ == "__main__":
    main()
