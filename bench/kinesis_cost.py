"""What following shards costs the driver: calls, bytes and processor time, a shard and minute, by number of shards.

The source process of a query is this process; a server of `connectors.testing` in a process of its own has the shards.
`latestOffset` is asked every 10 ms, as Spark does, offsets passing as JSON; each new end is a batch of a second, whose
tasks run elsewhere. `idle` has shards to which nothing comes. In `busy` each shard gets records: 1 MB a second each
(1,000 of 1 KB) for up to 10 shards; for more, which no two cores can write, 2 a second each: a look takes one record
whatever flows, so it costs the same.

Last, for each number of shards: how long it takes until the end of a batch has a record that came to an idle shard.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from _common import Benchmark, parser

from connectors.core.offsets import SENTINEL, is_sentinel
from connectors.kinesis.datasource import open_stream
from connectors.kinesis.options.source import parse_read_options
from connectors.testing.kinesis import KinesisControl, KinesisServerProcess, start_server_process

SHARDS = (1, 10, 100, 1000)
OPERATIONS = ("GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary")
KEYS = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
_POLL_SECONDS = 0.01
_BATCH_SECONDS = 1.0
_FULL_RATE = 1000
_FULL_RATE_SHARDS = 10
_LOW_RATE = 2
_RECORD = b"x" * 1000
_PATIENCE = 60.0


@dataclass
class Cost:
    """What one minute of one shard costs.

    Attributes:
        calls: by operation.
        answer_bytes: of the answers of GetRecords, as JSON.
        cpu_seconds: of the driver.
        cores: the share of a core that the driver took, for all shards.
    """

    calls: Mapping[str, float]
    answer_bytes: float
    cpu_seconds: float
    cores: float


class Driver:
    """The source process of a query, with what it has read.

    Args:
        server: where the stream is.
        stream: its name.
    """

    def __init__(self, server: KinesisServerProcess, stream: str) -> None:
        options = parse_read_options({"streamName": stream, "endpointUrl": server.url} | KEYS, {}, streaming=True)
        self._stream = open_stream(options)
        self._start: dict[str, Any] = dict(SENTINEL)
        self.ask()

    def ask(self) -> bool:
        """One call of latestOffset, and the plan of the batch that begins, if there is one; whether there is."""
        start = json.loads(json.dumps(self._start))
        end = json.loads(json.dumps(self._stream.latest_offset(start, everything=False)))
        if end == self._start:
            return False
        first = is_sentinel(self._start)
        planned = self._stream.partitions(self._start, end)
        self._start = {key: value for key, value in end.items() if key != "_start"} if first else end
        return bool(planned)

    def run(self, seconds: float) -> None:
        """Ask as Spark does, for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(_BATCH_SECONDS if self.ask() else _POLL_SECONDS)

    def wait(self) -> float:
        """Seconds until there is a batch with records."""
        began = time.monotonic()
        while not self.ask():
            assert time.monotonic() < began + _PATIENCE
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - began

    def close(self) -> None:
        """End its threads."""
        self._stream.stop()


@contextmanager
def producer(server: KinesisServerProcess, stream: str, shards: int) -> Iterator[None]:
    """Another process that puts records into all shards."""
    command = [sys.executable, __file__, "--produce", server.endpoint, stream, str(shards)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
        finally:
            process.communicate()  # it ends with its input


def produce(endpoint: str, stream: str, shards: int) -> None:
    """Put records four times a second, of random keys, which spread over the shards, until standard input ends."""
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    choose = random.Random(1)
    portion = max(1, shards * (_FULL_RATE if shards <= _FULL_RATE_SHARDS else _LOW_RATE) // 4)
    with KinesisControl(endpoint) as server:
        while not stopping.wait(0.25):
            server.put(stream, [(f"{choose.getrandbits(48):x}", _RECORD) for _ in range(portion)])


def measured(server: KinesisServerProcess, stream: str, shards: int, driver: Driver, seconds: float) -> Cost:
    """What the driver does and takes in so many seconds, a shard and minute."""
    counts, since, spent, began = server.call_counts(stream), server.next_call(), time.process_time(), time.monotonic()
    driver.run(seconds)
    took, spent = time.monotonic() - began, time.process_time() - spent
    after = server.call_counts(stream)
    size = sum(call.answer_bytes for call in server.calls("GetRecords", stream, since=since))
    scale = 60 / took / shards
    calls = {name: (after.get(name, 0) - counts.get(name, 0)) * scale for name in OPERATIONS}
    return Cost(calls, size * scale, spent * scale, spent / took)


def latencies(server: KinesisServerProcess, stream: str, driver: Driver, count: int) -> list[float]:
    """Seconds from a record that comes to an idle shard to the end of a batch that has it."""
    choose, found = random.Random(2), []
    driver.run(1.0)
    for number in range(count):
        server.put(stream, [(f"{choose.getrandbits(48):x}", b"late %d" % number)])
        found.append(driver.wait())
    return found


def show(shards: int, kind: str, cost: Cost) -> None:
    """Print a line of the table."""
    calls = " | ".join(f"{cost.calls[name]:.2f}" for name in OPERATIONS)
    print(
        f"| {shards:,} | {kind} | {calls} | {cost.answer_bytes / 1e3:,.1f} | {cost.cpu_seconds * 1e3:,.1f} | "
        f"{cost.cores:.2f} |",
        flush=True,
    )


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--seconds", type=float, default=30.0, help="how long each is measured")
    arguments.add_argument("--settle", type=float, default=20.0, help="how long it runs before: looks become rarer")
    arguments.add_argument("--records", type=int, default=10, help="records to idle shards that are waited for")
    command_line = arguments.parse_args()
    Benchmark("kinesis_cost").settings(seconds=command_line.seconds, settle=command_line.settle)
    print(f"| shards | load | {' | '.join(OPERATIONS)} | answers KB | driver CPU ms | cores in all |")
    print(f"|{'---|' * (len(OPERATIONS) + 5)}")
    waits: list[str] = []
    for shards in SHARDS:
        if command_line.cases and str(shards) not in command_line.cases:
            continue
        with start_server_process() as server:
            stream = f"cost-{shards}"
            server.create_stream(stream, shards)
            driver = Driver(server, stream)
            driver.run(command_line.settle)
            show(shards, "idle", measured(server, stream, shards, driver, command_line.seconds))
            found = latencies(server, stream, driver, command_line.records)
            waits.append(
                f"{shards:,} shards: median {statistics.median(found):.2f} s, longest {max(found):.2f} s to the end of "
                f"a batch with a record that came to an idle shard ({len(found)} records)"
            )
            with producer(server, stream, shards):
                driver.run(command_line.settle / 4)
                show(shards, "busy", measured(server, stream, shards, driver, command_line.seconds / 2))
            driver.close()
    print()
    for line in waits:
        print(line)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--produce"]:
        produce(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
