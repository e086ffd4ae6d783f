"""MB per second out of a backlog in 16 Kinesis shards by two slots, while the service keeps its limits.

The server of `connectors.testing` enforces them: a shard takes five GetRecords a second and gives 2 MB a second, and
after a response of more than it has saved it takes none until that is paid. Two processes are the slots: each does what
a task of Spark does, and takes the next task when one is done. This process is the source process, which polls the
shards meanwhile, so that calls of driver and tasks count together; batches are planned one after the other until all
rows are read. Options are the defaults.

The ratio `limit` is to the 32 MB a second of 16 shards, or to what these two slots read from the same server without
limits and pace where that is less. `tasks` compares the default with a task for each shard (`minPartitions`), by a
shorter backlog. Each has records of 100 B and of 1 KB. The table counts what a shard got: GetRecords and bytes a
second, the most calls in any second, and how many were refused.

    ./dev bench kinesis_slots [--seconds N] [--cases limit-100 limit-1024 tasks-100 tasks-1024]
"""

from __future__ import annotations

import multiprocessing
import pickle
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from _common import Benchmark, Side, interleaved, parser

from connectors.kinesis.datasource import KinesisDataSource
from connectors.testing.kinesis import KinesisServerProcess, start_server_process

SHARDS = 16
SLOTS = 2
SHARD_RATE = 2.0
OPTIONS = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret", "initialPosition": "trim_horizon"}
UNPACED = {"minFetchPeriod": "1ms", "maxFetchRate": "1000"}
FREE = "without limits and pace"


class Case(NamedTuple):
    """What the default options are beside: other ones, for so many seconds at 2 MB/s and records of a size."""

    other: str
    options: Mapping[str, str]
    seconds: int
    size: int


CASES = {
    f"{name}-{size}": Case(*other, size)
    for size in (100, 1024)
    for name, other in {
        "limit": (FREE, UNPACED, 60),
        "tasks": ("a task for each shard", {"minPartitions": str(SHARDS)}, 10),
    }.items()
}


def read(task: bytes) -> int:
    """Read a partition as a task does; the number of its rows."""
    reader, part = pickle.loads(task)  # noqa: S301 - from the process above
    return sum(batch.num_rows for batch in reader.read(part))


def seconds_to_read(pool: ProcessPoolExecutor, options: Mapping[str, str], records: int) -> float:
    """Seconds from the start of a new query to the last of so many rows."""
    source = KinesisDataSource(dict(options))
    reader = source.streamReader(source.schema())
    began, found = time.perf_counter(), 0
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    while found < records:
        end = reader.latestOffset(start, limit)
        if end == start:
            time.sleep(0.01)
            continue
        tasks = [pickle.dumps((reader, part)) for part in reader.partitions(start, end)]
        found += sum(pool.map(read, tasks))
        start = {key: value for key, value in end.items() if key != "_start"}
    seconds = time.perf_counter() - began
    reader.stop()
    assert found == records, f"{found} records instead of {records}"
    return seconds


def fill(server: KinesisServerProcess, stream: str, records: int, size: int) -> None:
    """Put records as if they had arrived at 1 MB a second in each shard, all that it takes."""
    a_second = round(SHARDS * 1e6 / size)
    for begin in range(0, records, a_second):
        count = min(a_second, records - begin)
        server.fill(stream, count, size, keys=count)  # as many keys as records: shards get the same
        server.jump(1)


class Calls:
    """The GetRecords calls of the rounds of one side."""

    def __init__(self) -> None:
        self.a_second: list[float] = []
        self.most: list[int] = []
        self.megabytes: list[float] = []
        self.refused = 0

    def add(self, server: KinesisServerProcess, stream: str, since: int, size: float, seconds: float) -> None:
        """Count those since a call; ``size`` is what the stream holds in MB."""
        calls = server.calls("GetRecords", stream, since=since)
        self.a_second.append(len(calls) / SHARDS / seconds)
        self.megabytes.append(size / SHARDS / seconds)
        self.refused += sum(bool(call.error) for call in calls)
        times: dict[str, list[float]] = {}
        for call in calls:
            times.setdefault(call.shard, []).append(call.monotonic_ns / 1e9)
        windows = [sum(first <= each < first + 1 for each in own) for own in times.values() for first in own]
        self.most.append(max(windows))


def side(
    server: KinesisServerProcess,
    pool: ProcessPoolExecutor,
    options: Mapping[str, str],
    backlog: tuple[int, int],
    calls: Calls,
) -> Callable[[], float]:
    """Reads once, with the limits unless the options know no pace; MB a second.

    ``backlog`` is how many records, and their size.
    """
    records, size = backlog

    def run() -> float:
        time.sleep(2)  # the buckets of the server fill again
        server.enforce_limits(on="maxFetchRate" not in options)
        since = server.next_call()
        seconds = seconds_to_read(pool, options, records)
        calls.add(server, options["streamName"], since, records * size / 1e6, seconds)
        return records * size / 1e6 / seconds

    return run


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--seconds", type=int, help="of the backlog at 2 MB/s a shard")
    command_line = arguments.parse_args()
    bench = Benchmark("kinesis_slots")
    bench.settings(shards=SHARDS, slots=SLOTS)
    spawning = multiprocessing.get_context("spawn")
    with start_server_process(call_limit=200_000) as server, ProcessPoolExecutor(SLOTS, spawning) as pool:
        for name, case in CASES.items():
            if not command_line.cases or name in command_line.cases:
                part = case._replace(seconds=command_line.seconds or case.seconds)
                compare(bench, server, pool, name, part, command_line.rounds)
    bench.finish()


def compare(
    bench: Benchmark, server: KinesisServerProcess, pool: ProcessPoolExecutor, name: str, case: Case, rounds: int
) -> None:
    """Read a backlog by the default options and by the others in turn."""
    stream, records = f"slots-{name}", int(case.seconds * SHARD_RATE * 1e6 * SHARDS / case.size)
    backlog = records, case.size
    server.create_stream(stream, SHARDS)
    fill(server, stream, *backlog)
    made = OPTIONS | {"streamName": stream, "endpointUrl": server.url}
    side(server, pool, made | UNPACED, backlog, Calls())()  # the slots import what they need
    sides = {"default options": made, case.other: {**made, **case.options}}
    calls = {each: Calls() for each in sides}
    runs = {each: side(server, pool, options, backlog, calls[each]) for each, options in sides.items()}
    default, other = interleaved(runs, rounds)
    if case.other == FREE:
        bench.show(name, other, "MB/s")
        service = Side("the service's limit", [SHARDS * SHARD_RATE])
        other = min(service, other, key=lambda one: one.median)
    bench.compare(name, default, other, "MB/s")
    for each, counted in calls.items():
        bench.row(
            f"A shard's GetRecords, {name}, {case.seconds} s of 2 MB/s",
            {
                "side": each,
                "calls a second": statistics.median(counted.a_second),
                "most in a second": statistics.median(counted.most),
                "MB a second": statistics.median(counted.megabytes),
                "refused in all rounds": counted.refused,
            },
        )
    server.delete_stream(stream)


if __name__ == "__main__":
    main()
