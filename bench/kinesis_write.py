"""Rows per second into Kinesis, our sink's task beside a plain boto3 loop, each in this process.

Both put the same rows, 500 a call, into a stream of the server of `connectors.testing`, which runs in a process of its
own and keeps no limits. The loop of boto3 sends again what failed, and waits for nothing. `wall` is rows a second;
`cpu` is CPU seconds of this process for a million rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import boto3
import pyarrow as pa
from _common import Benchmark, Side, interleaved, parser
from botocore.config import Config
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from connectors.kinesis.datasource import KinesisDataSource
from connectors.testing.kinesis import KinesisServerProcess, start_server_process

ROWS = {100: 10_000, 1024: 5_000}
SCHEMA = StructType([StructField("partitionKey", StringType()), StructField("data", BinaryType())])
KEYS = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
_CALL_ROWS = 500
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


def ours(server: KinesisServerProcess, stream: str, rows: pa.RecordBatch) -> Callable[[], int]:
    """Writes as a task of the sink does."""
    writer = KinesisDataSource({"streamName": stream, "endpointUrl": server.url} | KEYS).batch_writer(SCHEMA)
    return lambda: writer.write(iter([rows])).rows


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


def main() -> None:
    """Run the benchmark."""
    told = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kinesis_write")
    benchmark.settings(peer=f"boto3 {boto3.__version__}", rows=ROWS, shards=2)
    with start_server_process() as server:
        for size, count in ROWS.items():
            case = str(size)
            if told.cases and case not in told.cases:
                continue
            stream = f"write-{size}"
            server.create_stream(stream, shards=2)
            keys = [f"key-{number % 1000}" for number in range(count)]
            data = [str(number).rjust(size, ".").encode() for number in range(count)]
            rows = pa.RecordBatch.from_pydict({"partitionKey": keys, "data": pa.array(data, pa.binary())})
            sides = {
                "kinesis sink, one task": timed(f"ours-{case}", count, ours(server, stream, rows)),
                "boto3 put_records": timed(f"theirs-{case}", count, theirs(server, stream, rows)),
            }
            for warm in sides.values():
                warm()
            _cpu.clear()
            mine, other = interleaved(sides, told.rounds)
            benchmark.compare(f"wall-{case}", mine, other, "rows/s")
            spent = [Side(side.name, _cpu[name]) for side, name in ((mine, f"ours-{case}"), (other, f"theirs-{case}"))]
            benchmark.compare(f"cpu-{case}", *spent, "CPU s/M rows", less_is_better=True)
    benchmark.finish()


if __name__ == "__main__":
    main()
