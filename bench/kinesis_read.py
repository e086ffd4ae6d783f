"""Records per second out of one Kinesis shard into Arrow columns, ours beside a plain boto3 loop, each in this process.

Both read the same records from the server of `connectors.testing`, which runs in a process of its own, page by page
from the oldest on, without waits. The loop of boto3 calls get_records and keeps what it gives; it makes no columns.
`wall` is records a second; where the server is the limit, `cpu` says what the reading itself costs: CPU seconds of this
process for a million records, and `server` what the server takes to answer: where that is more, it is the limit. At
least 5 times is asked for, at 100 B and at 1 KB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import boto3
from _common import Benchmark, Side, interleaved, parser
from botocore.config import Config

from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.source.batch import plan_batch
from connectors.kinesis.source.reader import ReadSettings, read_range
from connectors.testing.kinesis import KinesisServerProcess, start_server_process

SIZES = (100, 1024)
KEYS = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
_cpu: dict[str, list[float]] = {}


def spent_by(pid: int) -> float:
    """CPU seconds of another process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(name: str, count: int, read: Callable[[], int], server: int) -> Callable[[], float]:
    """Reads once: records a second; notes CPU seconds of both processes for a million records."""

    def run() -> float:
        begin, spent, served = time.perf_counter(), time.process_time(), spent_by(server)
        found = read()
        seconds = time.perf_counter() - begin
        _cpu.setdefault(name, []).append((time.process_time() - spent) / count * 1e6)
        _cpu.setdefault(f"server-{name}", []).append((spent_by(server) - served) / count * 1e6)
        assert found == count, f"{found} records instead of {count}"
        return count / seconds

    return run


def ours(server: KinesisServerProcess, stream: str) -> Callable[[], int]:
    """Reads a shard as a task does."""
    options = parse_read_options({"streamName": stream, "endpointUrl": server.url} | KEYS, {}, streaming=False)
    (part,) = plan_batch(options)
    made = client_options(options)
    settings = ReadSettings(made, 10_000, period=0.0, rate=1e15, deaggregate=True, fail_on_data_loss=True)
    client = KinesisClient(made)
    return lambda: sum(batch.num_rows for batch in read_range(part, settings, client))


def theirs(server: KinesisServerProcess, stream: str) -> Callable[[], int]:
    """Reads a shard by boto3."""
    shard = server.shards(stream)[0]
    client = boto3.client(
        "kinesis",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="test-secret",  # noqa: S106 - of the test server
        config=Config(retries={"total_max_attempts": 1}),
    )

    def read() -> int:
        found = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        iterator, count = found["ShardIterator"], 0
        while True:
            page = client.get_records(ShardIterator=iterator, Limit=10_000)
            count += len(page["Records"])
            if page["MillisBehindLatest"] == 0:
                return count
            iterator = page["NextShardIterator"]

    return read


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--records", type=int, default=100_000, help="how many are read")
    command_line = arguments.parse_args()
    count: int = command_line.records
    benchmark = Benchmark("kinesis_read")
    benchmark.settings(peer=f"boto3 {boto3.__version__}", records=count, shards=1)
    with start_server_process() as server:
        pid = server.process.pid
        for size in SIZES:
            case = str(size)
            if command_line.cases and case not in command_line.cases:
                continue
            stream = f"read-{size}"
            server.create_stream(stream)
            server.fill(stream, count, size)
            sides = {
                "kinesis, into Arrow": timed(f"ours-{case}", count, ours(server, stream), pid),
                "boto3 get_records": timed(f"theirs-{case}", count, theirs(server, stream), pid),
            }
            for warm in sides.values():
                warm()
            _cpu.clear()
            mine, other = interleaved(sides, command_line.rounds)
            benchmark.compare(f"wall-{case}", mine, other, "records/s")
            spent = [Side(side.name, _cpu[name]) for side, name in ((mine, f"ours-{case}"), (other, f"theirs-{case}"))]
            benchmark.compare(f"cpu-{case}", *spent, "CPU s/M records", less_is_better=True)
            benchmark.show(
                f"server-{case}", Side("the server, for ours", _cpu[f"server-ours-{case}"]), "CPU s/M records"
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
