"""One task of the Pub/Sub sink without Spark; as a process it can be killed at a failpoint.

``python -m tests.support.pubsub_task``, with what `TaskPlan` holds as one object of JSON on standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from connectors.core.errors import ConnectorError
from connectors.pubsub.options.sink import parse_write_options
from connectors.pubsub.sink.rows import RowStamp, check_columns
from connectors.pubsub.sink.writer import publish_batches

SCHEMA = StructType([StructField("payload", StringType()), StructField("orderingKey", StringType())])
ARROW = pa.schema([("payload", pa.string()), ("orderingKey", pa.string())])
BATCH_ROWS = 100


@dataclass(frozen=True)
class TaskPlan:
    """What a task writes, and as which.

    Attributes:
        options: of the sink.
        query: its id.
        batch: its number.
        partition: its number.
        rows: payload and ordering key of each row.
    """

    options: dict[str, str]
    query: str
    batch: int
    partition: int
    rows: Sequence[tuple[str, str | None]]


def run_task(plan: TaskPlan) -> str:
    """Run a task here; returns how many rows it wrote, or the code of its error."""
    options = parse_write_options(plan.options, {})
    stamp = RowStamp(options.id_attribute, f"{plan.query}/{plan.batch}/{plan.partition}/", plan.partition)
    table = pa.Table.from_pylist([{"payload": payload, "orderingKey": key} for payload, key in plan.rows], ARROW)
    try:
        batches = table.to_batches(max_chunksize=BATCH_ROWS)
        return str(publish_batches(batches, check_columns(SCHEMA, options), options, stamp))
    except ConnectorError as error:
        return error.code


def run_process(plan: TaskPlan, failpoints: str = "") -> str:
    """Run a task in a process of its own; ``killed`` if it was."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(asdict(plan)) + "\n",
        capture_output=True,
        text=True,
        env={**os.environ, "CONNECTORS_FAILPOINTS": failpoints},
        timeout=60,
        check=False,
    )
    if done.returncode < 0:
        return "killed"
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_task(TaskPlan(**json.loads(sys.stdin.readline())))) + "\n")
