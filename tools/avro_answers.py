"""Records what Spark's own ``from_avro`` answers: ``python -m tools.avro_answers JAR``, with a spark-avro jar.

Writes ``tests/golden/avro/spark.json`` from the cases of ``tests/support/avro_cases.py``. Only the function itself is
in the jar: parsing and conversion are in the Spark that runs. Times are those of UTC: run it with TZ=UTC.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro

from tests.support.avro_cases import CASES, plain

TARGET = Path(__file__).parent.parent / "tests/golden/avro/spark.json"


def main(jar: str) -> None:
    """Record the answers."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraClassPath", jar)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    answers = {}
    for name, writer, reader, messages, options in CASES:
        frame = spark.createDataFrame([(message,) for message in messages], "value binary")
        given = {"mode": "PERMISSIVE", **options}
        if reader is not None:
            given["avroSchema"] = json.dumps(reader)
        decoded = frame.select(from_avro("value", json.dumps(writer), given).alias("value"))
        values = [plain(row.value) for row in decoded.collect()]
        answers[name] = {"type": decoded.schema["value"].dataType.simpleString(), "values": values}
    recorded = {"spark": spark.version, "jar": Path(jar).name, "answers": answers}
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
