"""Records what Spark's own functions answer: ``python -m tools.avro_answers JAR FUNCTION``, with a spark-avro jar.

``from_avro`` writes ``tests/golden/avro/spark.json`` from the cases of ``tests/support/avro_cases.py``, ``to_avro``
``spark_writes.json`` from those of ``avro_writes.py``, ``single_object`` what Java's Avro gives for ``avro_objects``,
and the schemas that Spark makes of the columns in ``avro_writes.py``. Only the functions themselves are in the jar:
parsing and conversion are in the Spark that runs. Times are those of UTC: run it with TZ=UTC.
"""

from __future__ import annotations

import contextlib
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
from tests.support.avro_objects import OBJECTS
from tests.support.avro_rig import encode
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


def single_objects(spark: SparkSession) -> dict[str, Any]:
    """Return what Java's Avro makes of schemas and values, and of the schemas that Spark makes of types."""
    jvm: Any = spark._jvm  # noqa: SLF001 - Java's Avro is nowhere else
    avro = jvm.org.apache.avro
    answers: dict[str, Any] = {}
    for name, (schema, value) in OBJECTS.items():
        parsed = getattr(avro, "Schema$Parser")().parse(json.dumps(schema))
        message = encode(schema, value)
        decoder = avro.io.DecoderFactory.get().binaryDecoder(message, None)
        datum = avro.generic.GenericDatumReader(parsed).read(None, decoder)
        encoder = avro.message.BinaryMessageEncoder(avro.generic.GenericData(), parsed)
        answers[name] = {**_normal(avro, parsed), "message": bytes(encoder.encode(datum).array()).hex()}
    columns: dict[str, Any] = {}
    for name, kind, nullable, _, schema in WRITES:
        if schema is None:
            spark_kind = from_arrow_schema(pa.schema([("value", kind)]), prefer_timestamp_ntz=True)["value"].dataType
            made = jvm.org.apache.spark.sql.types.DataType.fromJson(spark_kind.json())
            convert = jvm.org.apache.spark.sql.avro.SchemaConverters.toAvroType
            with contextlib.suppress(Py4JJavaError):  # of a type that it does not write
                columns[name] = _normal(avro, convert(made, nullable, "topLevelRecord", ""))
    return {"objects": answers, "columns": columns}


def _normal(avro: Any, schema: Any) -> dict[str, str]:
    number = avro.SchemaNormalization.parsingFingerprint64(schema)
    return {"form": avro.SchemaNormalization.toParsingForm(schema), "fingerprint": f"{number % 2**64:016x}"}


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
        "single_object": ("single_object.json", single_objects),
    }[function]
    recorded = {"spark": spark.version, "jar": Path(jar).name, "answers": record(spark)}
    TARGET.mkdir(exist_ok=True)
    (TARGET / name).write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
