"""Rows per second into Kinesis, our sink's task beside a plain boto3 loop, each in this process.

Both put the same rows, 500 a call, into a stream of the server of `connectors.testing`, which runs in a process of its
own and keeps no limits. The loop of boto3 sends again what failed, and waits for nothing. `wall` is rows a second;
`cpu` is CPU seconds of this process for a million rows.

`distant` is the same where each call takes 30 ms more, as far from a service as a region is wide: there it counts how
many requests are on their way at a time. `aggregation` is our sink with `aggregation=true` beside our sink without, on
rows of 200 B: rows a second, CPU seconds, calls, records and their bytes.

`stream` says where the time of a whole write goes: a stream of Spark from JSON files of 20,000 and 200,000 rows of 200
B, beside the same stream into a Python sink that drops its rows, which is Spark's own share. Of each sink the first
write of a session and later ones, in turn, as a table by stage and by kind of process, without a ratio.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
from _common import Benchmark, Side, interleaved, parser
from _processor import ProcessorMeter
from botocore.config import Config
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors import register
from connectors.core.processes.spark import DataSourceStreamArrowWriter
from connectors.kinesis.datasource import KinesisDataSource
from connectors.testing.kinesis import KinesisServerProcess, start_server_process

ROWS = {100: 10_000, 1024: 5_000}
SCHEMA = StructType([StructField("partitionKey", StringType()), StructField("data", BinaryType())])
KEYS = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
DROPPING = "dropping"
AGGREGATED_ROWS = 50_000
STREAM_ROWS = (20_000, 200_000)
_CALL_ROWS = 500
_BATCH_ROWS = 10_000
_DISTANCE_SECONDS = 0.03
_STREAM_FILES = 8
_LATER_WRITES = 3
_cpu: dict[str, list[float]] = {}


def timed(name: str, count: int, write: Callable[[], int]) -> Callable[[], float]:
    """Writes once: rows a second; notes CPU seconds for a million rows."""

    def run() -> float:
        begin, spent = time.perf_counter(), time.process_time()
        written = write()
        seconds = time.perf_counter() - begin
        _cpu.setdefault(name, []).append((time.process_time() - spent) / count * 1e6)
        assert written == count, f"{written} rows instead of {count}"
        return count / seconds

    return run


def ours(server: KinesisServerProcess, stream: str, rows: pa.RecordBatch, **options: str) -> Callable[[], int]:
    """Writes as a task of the sink does, in batches as Spark has them."""
    given = {"streamName": stream, "endpointUrl": server.url, **KEYS, **options}
    writer = KinesisDataSource(given).batch_writer(SCHEMA)
    batches = [rows.slice(start, _BATCH_ROWS) for start in range(0, rows.num_rows, _BATCH_ROWS)]
    return lambda: writer.write(iter(batches)).rows


def theirs(server: KinesisServerProcess, stream: str, rows: pa.RecordBatch) -> Callable[[], int]:
    """Writes by boto3."""
    client = boto3.client(
        "kinesis",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="test-secret",  # noqa: S106 - of the test server
        config=Config(retries={"total_max_attempts": 1}),
    )

    def write() -> int:
        records = [{"PartitionKey": row["partitionKey"], "Data": row["data"]} for row in rows.to_pylist()]
        for start in range(0, len(records), _CALL_ROWS):
            waiting: list[dict[str, Any]] = records[start : start + _CALL_ROWS]
            while waiting:
                answer = client.put_records(StreamName=stream, Records=waiting)
                waiting = [
                    record for record, result in zip(waiting, answer["Records"], strict=True) if "ErrorCode" in result
                ]
        return len(records)

    return write


def compared(benchmark: Benchmark, case: str, sides: dict[str, Callable[[], float]], rounds: int) -> None:
    """Compare rows a second and CPU seconds of two sides, which are named as in `timed`."""
    for warm in sides.values():
        warm()
    _cpu.clear()
    mine, other = interleaved(sides, rounds)
    benchmark.compare(f"wall-{case}", mine, other, "rows/s")
    spent = [Side(side.name, _cpu[side.name]) for side in (mine, other)]
    benchmark.compare(f"cpu-{case}", *spent, "CPU s/M rows", less_is_better=True)


def aggregation(benchmark: Benchmark, server: KinesisServerProcess, rounds: int) -> None:
    """Compare the sink with aggregates to the sink without."""
    server.create_stream("plain", shards=4)
    server.create_stream("aggregated", shards=4)
    rows = rows_of(200, AGGREGATED_ROWS)
    names = {"plain": "kinesis sink", "aggregated": "kinesis sink, aggregation=true"}
    writers = {
        "aggregated": ours(server, "aggregated", rows, aggregation="true"),
        "plain": ours(server, "plain", rows),
    }
    sides = {names[stream]: timed(names[stream], AGGREGATED_ROWS, write) for stream, write in writers.items()}
    compared(benchmark, "aggregation", sides, rounds)
    server.reset_calls()
    for stream, write in writers.items():
        before = len(server.records(stream))
        write()
        records = server.records(stream)[before:]
        cells: dict[str, str | float] = {"sink": names[stream], "rows": AGGREGATED_ROWS}
        cells["calls"] = sum(server.call_counts(stream).values())
        cells |= {"records": len(records), "bytes": sum(len(one.data) + len(one.partition_key) for one in records)}
        benchmark.row("What reaches the service", cells)


def stream_stages(benchmark: Benchmark, server: KinesisServerProcess) -> None:
    """Print where the time of a stream from files goes, by stage of Spark and by kind of process."""
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    session.dataSource.register(DroppingRows)
    sinks: dict[str, dict[str, str]] = {DROPPING: {}, "kinesis": {}, "kinesis, aggregation": {"aggregation": "true"}}
    with tempfile.TemporaryDirectory() as folder:
        for count in STREAM_ROWS:
            write_files(Path(folder) / f"rows-{count}", count)
        for count, number, (name, more) in itertools.product(STREAM_ROWS, range(1 + _LATER_WRITES), sinks.items()):
            stream = f"stream-{count}-{number}-{len(more)}"
            options = {"checkpointLocation": f"{folder}/{count}-{number}-{name}"}
            if name != DROPPING:
                server.create_stream(stream, shards=4)
                options |= {"streamName": stream, "endpointUrl": server.url, **KEYS, **more}
            rows = session.readStream.schema("partitionKey STRING, data STRING").json(f"{folder}/rows-{count}")
            writer = rows.writeStream.format(name.partition(",")[0]).options(**options)
            cells = {"rows": count, "sink": name, "write": number + 1, **streamed(writer)}
            benchmark.row("A stream from files, by stage, in seconds", cells)
            if name != DROPPING:
                server.delete_stream(stream)
    session.stop()


def streamed(writer: DataStreamWriter) -> dict[str, float]:
    """Run a stream to its end: wall clock by stage, and processor time by kind of process."""
    meter = ProcessorMeter()
    meter.begin()
    begin = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.perf_counter() - begin
    spent = dict.fromkeys(("JVM", "workers", "server"), 0.0)
    for kind, value in meter.seconds().items():
        spent[kind.removeprefix("children of ")] += value
    batches = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]]
    tasks = sum(one["addBatch"] for one in batches) / 1e3
    planning = sum(one.get("queryPlanning", 0) + one.get("getBatch", 0) for one in batches) / 1e3
    logs = sum(one.get("walCommit", 0) + one.get("commitOffsets", 0) for one in batches) / 1e3
    wall = {"wall": seconds, "planning": planning, "plan of the sink, tasks, commit": tasks, "logs of Spark": logs}
    return wall | {f"CPU {kind}": value for kind, value in spent.items()}


def write_files(folder: Path, count: int) -> None:
    """Write rows as JSON lines, in some files."""
    folder.mkdir()
    for number in range(_STREAM_FILES):
        rows = range(number * count // _STREAM_FILES, (number + 1) * count // _STREAM_FILES)
        lines = [json.dumps({"partitionKey": f"key-{row % 1000}", "data": str(row).rjust(200, ".")}) for row in rows]
        (folder / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")


class DroppingWriter(DataSourceStreamArrowWriter):
    """Takes batches and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Drop the rows of a task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """Do nothing."""


class DroppingRows(DataSource):
    """A sink of a stream that does nothing but what Spark demands of one."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return DROPPING

    def streamWriter(self, schema: StructType, overwrite: bool) -> DroppingWriter:  # noqa: ARG002, FBT001 - Spark's
        """The sink."""
        return DroppingWriter()


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers cannot import it


def rows_of(size: int, count: int) -> pa.RecordBatch:
    """Rows of a thousand keys."""
    keys = [f"key-{number % 1000}" for number in range(count)]
    data = [str(number).rjust(size, ".").encode() for number in range(count)]
    return pa.RecordBatch.from_pydict({"partitionKey": keys, "data": pa.array(data, pa.binary())})


def main() -> None:
    """Run the benchmark."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kinesis_write")
    benchmark.settings(peer=f"boto3 {boto3.__version__}", rows=ROWS, shards=2)
    with start_server_process() as server:
        for size, count in ROWS.items():
            for case, seconds in ((str(size), 0.0), (f"distant-{size}", _DISTANCE_SECONDS)):
                if command_line.cases and case not in command_line.cases:
                    continue
                server.create_stream(f"write-{case}", shards=2)
                server.delay_calls("PutRecords", seconds)
                rows = rows_of(size, count)
                writers = {
                    "kinesis sink, one task": ours(server, f"write-{case}", rows),
                    "boto3 put_records": theirs(server, f"write-{case}", rows),
                }
                sides = {name: timed(name, count, write) for name, write in writers.items()}
                compared(benchmark, case, sides, command_line.rounds)
                server.delay_calls("PutRecords", 0)
                server.delete_stream(f"write-{case}")
        if not command_line.cases or "aggregation" in command_line.cases:
            aggregation(benchmark, server, command_line.rounds)
        if not command_line.cases or "stream" in command_line.cases:
            stream_stages(benchmark, server)
    benchmark.finish()


if __name__ == "__main__":
    main()
