"""The ways of a stream into a Delta table: what Spark runs, and what is in the table afterwards."""

from __future__ import annotations

import importlib.util
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from tests.servers.maven import class_path

ROOT = Path(__file__).resolve().parents[3]
RUNS_NAME = "runs.jsonl"
QUERY = "numbers-v1"

_JAR_SPARK = "4.2"
"""The Spark that the jar of ``poms/delta-spark`` is built for."""
_JAR_WAYS = ("delta_jar", "delta_jar_sink")


def ways() -> tuple[str, ...]:
    """The ways that run on the installed Spark."""
    return ("delta_rs", *_JAR_WAYS) if pyspark.__version__.startswith(f"{_JAR_SPARK}.") else ("delta_rs",)


def spark_settings(way: str) -> dict[str, str]:
    """The settings of a session for a way.

    Raises:
        AssertionError: the jar cannot be had; says why.
    """
    if way not in _JAR_WAYS:
        return {}
    found = class_path("delta-spark")
    assert not found.reason, found.reason
    return {
        "spark.jars": ",".join(found.jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def into_table(rows: DataFrame, plan: Mapping[str, Any]) -> DataStreamWriter:
    """Return the writer of a stream; ``way``, ``pause`` and ``folder`` of the plan say where and how."""
    location = str(Path(plan["folder"]) / "table")
    if plan["way"] == "delta_jar_sink":
        return rows.writeStream.format("delta").option("path", location)
    write_once = _example().delta_writer(location, QUERY) if plan["way"] == "delta_rs" else _jar_writer(location)
    runs = Path(plan["folder"]) / RUNS_NAME

    def write(batch: DataFrame, batch_id: int) -> None:
        before = version(location)
        write_once(batch, batch_id)
        with runs.open("a") as file:
            file.write(json.dumps({"batch": batch_id, "written": version(location) != before}) + "\n")
        time.sleep(plan["pause"])  # a kill now finds the batch in the table, and not in Spark's log

    return rows.writeStream.foreachBatch(write)


def _example() -> Any:
    """The example that users copy: it is what is killed here."""
    spec = importlib.util.spec_from_file_location("lakehouse", ROOT / "examples" / "lakehouse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _jar_writer(location: str) -> Any:
    def write(batch: DataFrame, batch_id: int) -> None:
        once = {"txnAppId": QUERY, "txnVersion": batch_id}
        batch.write.format("delta").mode("append").options(**once).save(location)

    return write


def version(location: str) -> int:
    """The version of a table; -1 when there is none."""
    try:
        return int(DeltaTable(location).version())
    except TableNotFoundError:
        return -1


def row_count(location: str) -> int:
    """The number of rows of a table, by delta-rs."""
    try:
        return int(DeltaTable(location).count())
    except TableNotFoundError:
        return 0


def numbers(location: str) -> Counter[int]:
    """The numbers in a table with their counts, by delta-rs."""
    return Counter(DeltaTable(location).to_pyarrow_table(columns=["number"])["number"].to_pylist())


def batches(location: str) -> list[int]:
    """The batch ids in the log of a table, in the order of its versions; any application's."""
    entries = sorted((Path(location) / "_delta_log").glob("[0-9]*.json"))
    actions = (json.loads(line) for entry in entries for line in entry.read_text().splitlines())
    return [action["txn"]["version"] for action in actions if "txn" in action]
