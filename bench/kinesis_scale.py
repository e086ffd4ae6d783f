"""Records per second out of Kinesis by 1, 2, 4 and 8 readers, while the service takes 20 ms for each request.

The server of `connectors.testing` holds each GetRecords call back for 20 ms, so that readers wait for it, as for a real
service, and not for the few processors of the machine that all of them share. A reader is a process that does what a
task on an executor of one core does: it gets its share of the shards that the source has planned, and reads its
shards one after the other into Arrow. Spark itself is left out: what it takes to start a job is the same with any other
source. The ratio is to one reader; near-linear is asked for.

    ./dev bench kinesis_scale [--pages N] [--picture FILE]
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from _common import Benchmark, parser
from _scaling import COUNTS, DELAY_SECONDS, PICTURES, draw, scaling

from connectors.kinesis.datasource import KinesisDataSource
from connectors.testing.kinesis import KinesisServerProcess, start_server_process

STREAM = "scale"
PAGE = 20
SHARDS = max(COUNTS)
SIZE = 100


def options(server: KinesisServerProcess) -> dict[str, str]:
    """Of a read that waits for nothing but the server."""
    return {
        "streamName": STREAM,
        "endpointUrl": server.url,
        "awsAccessKey": "AKIATEST",
        "awsSecretKey": "test-secret",
        "maxRecordsPerFetch": str(PAGE),
        "minFetchPeriod": "1ms",
        "maxFetchRate": "1000",
    }


def fill(server: KinesisServerProcess, records: int) -> None:
    """Put as many records into each shard; by their keys' hashes some would get more."""
    server.create_stream(STREAM, SHARDS)
    width = 2**128 // SHARDS
    for number in range(SHARDS):
        server.put(STREAM, [("k", b"x" * SIZE)] * records, explicit_hash_key=number * width)


def read(task: bytes) -> int:
    """Read a partition as a task does; the number of its rows."""
    reader, part = pickle.loads(task)  # noqa: S301 - from the process above
    return sum(batch.num_rows for batch in reader.read(part))


def rate(server: KinesisServerProcess, pool: ProcessPoolExecutor, records: int, readers: int) -> float:
    """Plan a batch read for so many readers, and let each read its part; records a second."""
    source = KinesisDataSource(options(server))
    reader = source.reader(source.schema())
    ranges = [(part, shard) for part in reader.partitions() for shard in part.parts]
    parts = [
        replace(part, parts=tuple(shard for _, shard in ranges[number::readers]))
        for number, (part, _) in enumerate(ranges[:readers])
    ]
    tasks = [pickle.dumps((reader, part)) for part in parts]
    began = time.perf_counter()
    found = sum(pool.map(read, tasks))
    seconds = time.perf_counter() - began
    assert found == records, f"{found} records instead of {records}"
    return records / seconds


def main() -> None:
    """Measure, print, draw."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--pages", type=int, default=200, help=f"of {PAGE} records, in each of {SHARDS} shards")
    arguments.add_argument("--picture", type=Path, default=PICTURES / "kinesis-scale.svg", help="where it goes")
    command_line = arguments.parse_args()
    records = command_line.pages * PAGE
    bench = Benchmark("kinesis_scale")
    bench.settings(
        server=f"connectors.testing.kinesis, same machine, {DELAY_SECONDS * 1e3:.0f} ms for each GetRecords",
        records=f"{records:,} of {SIZE} B in each of {SHARDS} shards, {PAGE} in a page",
    )
    spawning = multiprocessing.get_context("spawn")
    with start_server_process(call_limit=0) as server, ProcessPoolExecutor(SHARDS, spawning) as pool:
        fill(server, records)
        server.delay_calls("GetRecords", DELAY_SECONDS)
        measured = partial(rate, server, pool, records * SHARDS)
        measured(SHARDS)  # each process imports what it needs
        rates = scaling(bench, "readers", measured, command_line.rounds, "records/s")
    draw(command_line.picture, "Kinesis, by readers", rates, "records/s")
    bench.finish()


if __name__ == "__main__":
    main()
