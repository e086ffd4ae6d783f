"""Processor time of a message as VARIANT beside one as a struct: JSON and Avro, in one session, local[2], noop sink.

``json``: Spark's `try_parse_json` beside its `from_json` with the schema. ``avro``: `to_variant_object` of what
`from_avro` gives beside that struct, as Spark has no other way from Avro to VARIANT. ``-read`` reads three fields too,
by `variant_get` or from the struct. Messages are the orders of bench/avro.py; the input is cached. A ratio of more than
1 means that VARIANT takes less than the struct.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable

import fastavro
import pyspark.sql.functions as sf
from _avro_cases import messages_of, schema_of
from _common import Benchmark, interleaved, parser
from _program import cpu_seconds
from pyspark.sql import Column, DataFrame, SparkSession

from connectors.avro import from_avro
from tests.support.spark_protocol.driver import descendants

DISTINCT, TIMES = 10_000, 40
_WARM_UP = 3
_FIELDS = (
    "id BIGINT, customer STRING, amount DOUBLE, paid BOOLEAN, note STRING, discount INT, "
    "address STRUCT<city STRING, zip INT>, tags ARRAY<STRING>"
)
_READ = {"id": "bigint", "customer": "string", "amount": "double"}


def spent(frame: DataFrame) -> Callable[[], float]:
    """Microseconds of processor time a message, of this process and all below it."""

    def total() -> float:
        return sum(map(cpu_seconds, [os.getpid(), *descendants(os.getpid())]))

    def run() -> float:
        before = total()
        frame.write.format("noop").mode("overwrite").save()
        return (total() - before) / (DISTINCT * TIMES) * 1e6

    return run


def inputs(spark: SparkSession) -> DataFrame:
    """Orders as JSON and as Avro, cached."""
    schema = schema_of("order")
    parsed = fastavro.parse_schema(schema)
    rows = []
    for message in messages_of(schema, DISTINCT):
        order = fastavro.schemaless_reader(io.BytesIO(message), parsed, None)
        rows.append((json.dumps(order).encode(), message))
    frame = spark.createDataFrame(rows, "json BINARY, avro BINARY").crossJoin(spark.range(TIMES)).repartition(2).cache()
    assert frame.count() == DISTINCT * TIMES
    return frame


def columns() -> dict[str, dict[str, Column]]:
    """The VARIANT and the struct of each format."""
    text = sf.col("json").cast("string")
    order = from_avro("avro", json.dumps(schema_of("order")))
    return {
        "json": {"VARIANT": sf.try_parse_json(text), "struct": sf.from_json(text, _FIELDS)},
        "avro": {"VARIANT": sf.to_variant_object(order), "struct": order},
    }


def read(kind: str, column: Column) -> list[Column]:
    """Three fields of a column."""
    if kind == "struct":
        return [column.getField(name) for name in _READ]
    return [sf.variant_get(column, f"$.{name}", of) for name, of in _READ.items()]


def main() -> None:
    """Run the cases."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("variant")
    benchmark.settings(messages=DISTINCT * TIMES, master="local[2]")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR").getOrCreate()
    frame = inputs(spark)
    for name, kinds in columns().items():
        for case in (name, f"{name}-read"):
            if command_line.cases and case not in command_line.cases:
                continue
            sides = {}
            for kind, column in kinds.items():
                made = frame.select(column.alias("order"))
                whole = made if case == name else made.select(*read(kind, sf.col("order")))
                sides[kind] = spent(whole)
            for warm in [*sides.values()] * _WARM_UP:
                warm()
            benchmark.compare(case, *interleaved(sides, command_line.rounds), "us/message", less_is_better=True)
    spark.stop()
    benchmark.finish()


if __name__ == "__main__":
    main()
