"""Records what Spark's own functions answer: ``python -m tools.avro_answers JAR FUNCTION``, with a spark-avro jar.

``from_avro`` writes ``tests/golden/avro/spark.json`` from the cases of ``tests/support/avro_cases.py``, ``to_avro``
``spark_writes.json`` from those of ``avro_writes.py``. Only the functions themselves are in the jar: parsing and
conversion are in the Spark that runs. Times are those of UTC: run it with TZ=UTC.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.avro_cases import CASES, plain
from tests.support.avro_writes import WRITES, column

TARGET = Path(__file__).parent.parent / "tests/golden/avro"


def read(spark: SparkSession) -> dict[str, Any]:
    """Return what `from_avro` reads."""
    answers = {}
    for name, writer, reader, messages, options in CASES:
        frame = spark.createDataFrame([(message,) for message in messages], "value binary")
        given = {"mode": "PERMISSIVE", **options}
        if reader is not None:
            given["avroSchema"] = json.dumps(reader)
        decoded = frame.select(from_avro("value", json.dumps(writer), given).alias("value"))
        values = [plain(row.value) for row in decoded.collect()]
        answers[name] = {"type": decoded.schema["value"].dataType.simpleString(), "values": values}
    return answers


def written(spark: SparkSession) -> dict[str, Any]:
    """Return the messages that `to_avro` writes in hex, or why it refuses the values."""
    answers: dict[str, Any] = {}
    for name, kind, nullable, values, schema in WRITES:
        structs = column(kind, values, nullable=nullable)
        table = pa.Table.from_arrays([structs.field(0)], schema=pa.schema(structs.type))
        frame = spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
        encoded = frame.select(to_avro("value", "" if schema is None else json.dumps(schema)).alias("value"))
        try:
            rows = [None if row.value is None else row.value.hex() for row in encoded.collect()]
        except (PySparkException, Py4JJavaError) as error:
            answers[name] = {"error": _reason(error)}
        else:
            answers[name] = {"values": rows}
    return answers


def _reason(error: Exception) -> str:
    """Return what Spark says, or the first cause that Java gives."""
    causes = re.findall(r"^(?:Caused by|): (?:[\w.]*\.)?(\w+: .*)", str(error), re.MULTILINE)
    return re.sub(r"@[0-9a-f]+", "", causes[-1] if causes else str(error).splitlines()[0])


def main(jar: str, function: str) -> None:
    """Record the answers for a function."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraClassPath", jar)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    name, record = {
        "from_avro": ("spark.json", read),
        "to_avro": ("spark_writes.json", written),
    }[function]
    recorded = {"spark": spark.version, "jar": Path(jar).name, "answers": record(spark)}
    TARGET.mkdir(exist_ok=True)
    (TARGET / name).write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
