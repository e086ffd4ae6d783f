"""One task of an exactly-once sink, and the driver's part, without Spark; as a process it can be killed at a failpoint.

``python -m tests.support.kafka_task``, with what `TaskPlan` holds as one object of JSON in each line of standard input.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.core.datasource import StreamTask
from connectors.core.errors import ConnectorError
from connectors.core.processes.failpoints import set_failpoints
from connectors.kafka.datasource import KafkaDataSource
from connectors.kafka.sink.exactly_once import ExactlyOnce, finish_batch

SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
ARROW = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.binary())])


@dataclass(frozen=True)
class TaskPlan:
    """What a task writes, and as which; ``failpoints`` replace those of its process."""

    options: dict[str, str]
    query: str
    batch: int
    partition: int
    values: Sequence[str]
    run: str = "run"
    failpoints: str = ""


def exactly_once(options: dict[str, str]) -> ExactlyOnce:
    """How the tasks of a sink with these options write."""
    how = KafkaDataSource(options | {"deliveryGuarantee": "exactly-once"}).stream_writer(SCHEMA)._exactly_once
    assert how is not None
    return how


def batches(values: Sequence[str]) -> list[pa.RecordBatch]:
    """Rows with these values, in two batches."""
    half = len(values) // 2
    return [
        pa.RecordBatch.from_pydict({"key": list(part), "value": [each.encode() for each in part]}, ARROW)
        for part in (values[:half], values[half:])
    ]


def run_task(plan: TaskPlan) -> str:
    """Run a task here; returns ``written``, ``skipped``, or the code of its error."""
    if plan.failpoints:
        set_failpoints(plan.failpoints)
    try:
        task = StreamTask(plan.query, plan.batch, plan.partition)
        written = exactly_once(plan.options).write(batches(plan.values), task, plan.run)
    except ConnectorError as error:
        return error.code
    except OSError as error:  # of a failpoint
        return errno.errorcode[error.errno or 0]
    return "skipped" if written.skipped else "written"


def run_commit(options: dict[str, str], query: str, batch: int, partitions: int, run: str = "run") -> str:
    """Run the driver's part here; returns ``committed`` or the code of its error."""
    try:
        finish_batch(exactly_once(options), query, batch, partitions, run)
    except ConnectorError as error:
        return error.code
    return "committed"


def run_process(plan: TaskPlan, failpoints: str = "") -> str:
    """Run a task in a process of its own; ``killed`` if it was."""
    done = start_process(plan, failpoints)
    output, errors = done.communicate(timeout=120)
    if done.returncode < 0:
        return "killed"
    assert done.returncode == 0, errors
    return str(json.loads(output.splitlines()[-1]))


def start_process(plan: TaskPlan, failpoints: str = "") -> subprocess.Popen[str]:
    """Start a task in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CONNECTORS_FAILPOINTS": failpoints},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(plan)) + "\n")
    process.stdin.flush()
    return process


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run_task(TaskPlan(**json.loads(line)))) + "\n")
        sys.stdout.flush()
