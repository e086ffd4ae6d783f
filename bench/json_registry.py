"""Processor time of the JVM for each message of from_json_registry against Spark's own from_json, in the same session.

Both read cached rows into the noop sink, local[1]: ours the message in its frame, Spark's the JSON alone, by the same
options, into the types that it can read itself. The cases are ``flat``, an order of eight columns; ``dates``, with
dates and date-times; ``base64``; ``decimal``, numeric ones; ``connect``, decimals, dates and times as Kafka Connect
writes them; ``map``, of ten entries; ``nested``, with structs, arrays and a map. Each is read with PERMISSIVE, FAILFAST
and on.error=column (of which Spark has none: its side is then PERMISSIVE). The time of the Python workers, which read
the frames, isn't in it.

To compare two versions of this pack, run this file in turn from the folder of each, with that folder as PYTHONPATH: the
Python workers import what stands in the folder where the session was started.
"""

from __future__ import annotations

import base64
import json
import random
from functools import partial
from typing import Any

import pyspark.sql.functions as sf
from _common import Benchmark, interleaved, parser
from _program import cpu_seconds
from pyspark.sql import Column, DataFrame, SparkSession

from connectors.json import from_json_registry
from connectors.testing.schema_registry import SchemaRegistryServer

_CONNECT = "org.apache.kafka.connect.data."
_DISTINCT = 2_000
_KEYS = [f"key-{number}" for number in range(10)]
_WARM_UP = 3
_FRAME_BYTES = 5
_MODES = {"permissive": {}, "failfast": {"mode": "FAILFAST"}, "error": {"on.error": "column"}}
_TEXT: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}
_INT = {**_INTEGER, "connect.type": "int32"}
_DAY, _TIME = {**_TEXT, "format": "date"}, {**_TEXT, "format": "date-time"}
_BYTES = {**_TEXT, "connect.type": "bytes"}
_DECIMAL = {
    "title": f"{_CONNECT}Decimal",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
}
_BASE = {"id": _INTEGER, "count": _INT, "customer": _TEXT, "note": _TEXT, "city": _TEXT, "paid": _BOOLEAN}
_ORDER = "id BIGINT, count INT, customer STRING, note STRING, city STRING, paid BOOLEAN"
_MAP = {"type": "object", "additionalProperties": _INTEGER}
_ADDRESS = {
    "type": "object",
    "properties": {
        "street": _TEXT,
        "zip": _INT,
        "place": {"type": "object", "properties": {"lat": _TEXT, "n": _INTEGER}},
    },
}
_ITEM = {"type": "object", "properties": {"sku": _TEXT, "amount": _INT, "day": _DAY}}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "flat": ({"amount": _NUMBER, "rate": _NUMBER}, "amount DOUBLE, rate DOUBLE"),
    "dates": ({"day": _DAY, "at": _TIME}, "day DATE, at TIMESTAMP"),
    "base64": ({"raw": _BYTES, "key": _BYTES}, "raw BINARY, key BINARY"),
    "decimal": (
        {"price": {**_NUMBER, **_DECIMAL}, "tax": {**_NUMBER, **_DECIMAL}},
        "price DECIMAL(12,2), tax DECIMAL(12,2)",
    ),
    "connect": (
        {
            "price": {**_TEXT, "connect.type": "bytes", **_DECIMAL},
            "at": {**_INTEGER, "title": f"{_CONNECT}Timestamp"},
            "day": {**_INT, "title": f"{_CONNECT}Date"},
        },
        "price BINARY, at BIGINT, day INT",
    ),
    "map": ({"counts": _MAP}, "counts MAP<STRING, BIGINT>"),
    "nested": (
        {"address": _ADDRESS, "items": {"type": "array", "items": _ITEM}, "counts": _MAP},
        (
            "address STRUCT<street: STRING, zip: INT, place: STRUCT<lat: STRING, n: BIGINT>>, "
            "items ARRAY<STRUCT<sku: STRING, amount: INT, day: DATE>>, counts MAP<STRING, BIGINT>"
        ),
    ),
}


def value(schema: dict[str, Any], chance: random.Random) -> Any:
    """A value of a schema, as JSON has it."""
    if schema["type"] == "object":
        properties = schema.get("properties") or dict.fromkeys(_KEYS, schema.get("additionalProperties"))
        return {name: value(inner, chance) for name, inner in properties.items()}
    if schema["type"] == "array":
        return [value(schema["items"], chance) for _ in range(3)]
    day = f"20{chance.randrange(10, 30)}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
    amount = chance.randrange(10**9)
    special = {
        ("format", "date"): day,
        ("format", "date-time"): f"{day}T{chance.randrange(10, 24)}:15:30.{chance.randrange(10**6):06}Z",
        ("title", f"{_CONNECT}Timestamp"): chance.randrange(10**12),
        ("title", f"{_CONNECT}Date"): chance.randrange(20_000),
        ("title", f"{_CONNECT}Decimal"): amount / 100
        if schema["type"] == "number"
        else base64.b64encode(amount.to_bytes(6, "big")).decode(),
        ("connect.type", "bytes"): base64.b64encode(chance.randbytes(20)).decode(),
    }
    plain = {
        "integer": chance.randrange(100_000),
        "number": round(chance.random() * 1000, 3),
        "boolean": bool(chance.getrandbits(1)),
        "string": chance.choice(["red", "Amsterdam", "customer-123", "a note of it, 20 in all"]),
    }
    keys = ((key, schema.get(key)) for key in ("title", "format", "connect.type"))
    return next((special[key] for key in keys if key in special), plain[schema["type"]])


def frame_of(spark: SparkSession, schema: dict[str, Any], number: int, count: int) -> DataFrame:
    """Cache messages of a schema."""
    chance = random.Random(1)
    texts = [json.dumps(value(schema, chance), separators=(",", ":")).encode() for _ in range(_DISTINCT)]
    rows = [(number.to_bytes(_FRAME_BYTES, "big") + text,) for text in texts]
    few = spark.createDataFrame(rows, "value BINARY").coalesce(1)
    copies = spark.range(count // _DISTINCT).select(sf.lit(1).alias("one"))
    frame = few.crossJoin(copies).select("value").coalesce(1)
    text = sf.expr(f"substring(value, {_FRAME_BYTES + 1})").cast("string").alias("text")
    cached = frame.select("value", text).cache()
    assert cached.count() == count
    return cached


def cost(frame: DataFrame, column: Column, count: int, pid: int) -> float:
    """Return microseconds of the JVM for a message."""
    begin = cpu_seconds(pid)
    frame.select(column.alias("out")).write.format("noop").mode("overwrite").save()
    return (cpu_seconds(pid) - begin) / count * 1e6


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__ or "")
    made.add_argument("--messages", type=int, default=200_000)
    options = made.parse_args()
    count = options.messages // _DISTINCT * _DISTINCT
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # noqa: SLF001
    bench = Benchmark("json_registry")
    bench.settings(rounds=options.rounds, messages=count, spark=spark.version, master="local[1]")
    with SchemaRegistryServer() as server:
        for case, (extra, kinds) in CASES.items():
            names = [f"{case}-{mode}" for mode in _MODES]
            if options.cases and not {case, *names} & {*options.cases}:
                continue
            schema = {"type": "object", "properties": {**_BASE, **extra}}
            number = server.register(case, text=json.dumps(schema), schema_type="JSON")
            frame = frame_of(spark, schema, number, count)
            for name, given in zip(names, _MODES.values(), strict=True):
                if options.cases and not {case, name} & {*options.cases}:
                    continue
                ours = from_json_registry("value", subject=case, options=given, schemaRegistryAddress=server.address)
                mode = {"mode": given.get("mode", "PERMISSIVE")}
                spark_own = sf.from_json("text", f"{_ORDER}, {kinds}", mode)
                columns = {"from_json_registry": ours, "from_json": spark_own}
                runs = {side: partial(cost, frame, column, count, pid) for side, column in columns.items()}
                interleaved(runs, _WARM_UP)
                bench.compare(name, *interleaved(runs, options.rounds), "us/message", less_is_better=True)
            frame.unpersist(blocking=True)
    bench.finish()


if __name__ == "__main__":
    main()
