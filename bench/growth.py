"""What work costs as it grows: partitions, shards, subscriptions, batches, and bytes in a spool. Prints tables.

- `partitions`: a topic of Kafka with 1, 10, 100 and 1,000 partitions that hold the same 100,000 records in all, read
  once and as a stream in four batches by Spark, ours beside Spark's own source.
- `shards`: a stream of Kinesis with 1, 10, 100 and 1,000 shards that hold the same 100,000 records in all. The source
  process of a query is opened and follows it for a while, then all records are read as tasks read them.
- `subscriptions`: 1 to 1,000 subscriptions of Pub/Sub in one query of the protocol driver, on the canned server, with
  the same rate of messages in all. Each subscription has a fetch process of its own; where 1,000 of these are more than
  the memory of the machine, a line says so instead.
- `batches`: queries of the protocol driver with 10 rows a batch: what a batch costs after 1, 100 and 10,000 of them.
  Kinesis ends at 100: a shard takes five calls a second, so each batch of a backlog waits for more than a second.
- `spool`: what opening a spool costs with 1 GB and 50 GB in it, as segments of 100 KB. Opening reads no payload, so the
  files are names of one and the same (`spool_start.py`, whose functions these are).

Processor time is that of all processes of the side, without servers. Memory counts shared pages once. Each step of a
table is a process of its own, and runs once: what counts is how the figures grow.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import spool_start
from _canned_pubsub import CannedPubSub
from _common import Benchmark, memory_gib, parser
from _kafka import OURS, THEIRS, Rig, rig
from _program import cpu_seconds, memory_bytes
from confluent_kafka.admin import AdminClient, NewTopic
from kinesis_cost import Driver

from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.source.batch import plan_batch
from connectors.kinesis.source.reader import ReadSettings, read_range
from connectors.testing.kinesis import start_server_process
from tests.servers.kafka_broker import KafkaBroker
from tests.support.spark_protocol.driver import StreamingQuery, descendants

SIZES = {
    "partitions": (1, 10, 100, 1000),
    "shards": (1, 10, 100, 1000),
    "subscriptions": (1, 10, 100, 1000),
    "batches": (1, 100, 10_000),
    "spool": (1, 50),
}
ROWS = 100_000
ROW_BYTES = 100
STREAM_BATCHES = 4
BATCH_ROWS = 10
SEGMENTS_A_GB = 10_000
STREAMS = 4
"""Of a fetch process, by default."""
FOLLOW_SECONDS = 20.0
ASK_SECONDS = 0.01
MOST_POLLED = 100
MESSAGE_RATE = 10_000
MESSAGE_SECONDS = 5.0
MOST_MEMORY = 0.6
MEGA = 1e6
ONE = "--one"


class Tree:
    """What this process's children cost: queries of the protocol driver run in them."""

    def __init__(self) -> None:
        self._servers: list[int] = []

    def leave_out(self) -> None:
        """Leave out the processes that are there already: servers."""
        self._servers = descendants(os.getpid())

    def _pids(self) -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid not in self._servers]

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        return sum(map(cpu_seconds, self._pids()))

    def memory(self) -> float:
        """MB now."""
        return sum(map(memory_bytes, self._pids())) / MEGA


def partitions(benchmark: Benchmark, sizes: list[int]) -> None:
    """Kafka by partitions, in Spark."""
    with rig() as made:
        for count in sizes:
            topic = made.topic(f"growth-{count}", count)
            made.fill(topic, count, ROWS, ROW_BYTES)
            for name in (OURS, THEIRS):
                benchmark.row("Kafka by partitions, the same 100,000 rows", read_partitions(made, topic, count, name))
            made.delete(topic)


def read_partitions(made: Rig, topic: str, count: int, name: str) -> dict[str, str | float]:
    """Read a topic once and as a stream."""
    program = made.sides[name]
    options = {"kafka.bootstrap.servers": made.broker.endpoint, "subscribe": topic, "startingOffsets": "earliest"}
    assert program.ask({"do": "count", "options": options}) == {"rows": ROWS}
    before = program.cpu_seconds()
    seconds = program.ask({"do": "batch", "options": options})["seconds"]
    batch = program.cpu_seconds() - before
    limited = options | {"maxOffsetsPerTrigger": str(ROWS // STREAM_BATCHES)}
    before = program.cpu_seconds()
    found = program.ask({"do": "stream", "options": limited})
    assert found["rows"] == ROWS
    return {
        "partitions": count,
        "side": name,
        "batch read, s": seconds,
        "processor, us a row": batch / ROWS * MEGA,
        "stream: s to the end of the first batch": found["start"],
        "s a batch": found["steps"]["triggerExecution"] / 1e3,
        "processor, s a batch": (program.cpu_seconds() - before) / STREAM_BATCHES,
        "memory, MB": program.memory_bytes() / MEGA,
    }


def shards(count: int) -> Iterator[dict[str, float]]:
    """Kinesis by shards, in this process."""
    with start_server_process() as server:
        server.create_stream("growth", count)
        server.fill("growth", ROWS, ROW_BYTES, keys=max(1000, count * 20))
        begin, spent = time.perf_counter(), time.process_time()
        driver = Driver(server, "growth")
        started, start_cpu = time.perf_counter() - begin, time.process_time() - spent
        spent = time.process_time()
        driver.run(FOLLOW_SECONDS)
        following = (time.process_time() - spent) / FOLLOW_SECONDS * 60
        driver.close()
        keys = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret", "initialPosition": "trim_horizon"}
        options = parse_read_options({"streamName": "growth", "endpointUrl": server.url} | keys, {}, streaming=False)
        settings = ReadSettings(
            client_options(options), 10_000, period=0.0, rate=1e15, deaggregate=True, fail_on_data_loss=True
        )
        client = KinesisClient(client_options(options))
        spent = time.process_time()
        rows = sum(batch.num_rows for part in plan_batch(options) for batch in read_range(part, settings, client))
        assert rows == ROWS, f"{rows} rows"
        yield {
            "shards": count,
            "start-up, s": started,
            "its processor time, s": start_cpu,
            "following, processor s a minute": following,
            "reading, processor us a row": (time.process_time() - spent) / ROWS * MEGA,
            "memory, MB": memory_bytes(os.getpid()) / MEGA,
        }


def subscriptions(count: int) -> Iterator[dict[str, float]]:
    """Pub/Sub by subscriptions: a query of the protocol driver."""
    names = ",".join(f"projects/canned/subscriptions/growth-{number}" for number in range(count))
    with CannedPubSub(size=ROW_BYTES, timed=True) as server, tempfile.TemporaryDirectory() as folder:
        options = {"subscriptionId": names, "endpoint": server.address, "spoolLocation": f"{folder}/spool"}
        tree, rows = Tree(), 0
        tree.leave_out()
        source = "connectors.pubsub.datasource:PubSubDataSource"
        begin = time.perf_counter()
        with StreamingQuery(source, options, checkpoint=f"{folder}/checkpoint") as query:
            query.run_trigger()
            while server.stats()["streams"] < count * STREAMS:
                query.run_trigger()
                time.sleep(0.05)
            started, start_cpu = time.perf_counter() - begin, tree.cpu()
            server.generate(MESSAGE_RATE, MESSAGE_SECONDS)
            while rows < MESSAGE_RATE * MESSAGE_SECONDS:
                batch = query.run_trigger()
                rows += 0 if batch is None else batch.rows
                time.sleep(0.05)
            spent = tree.cpu() - start_cpu
            memory = tree.memory()
            before = tree.cpu()
            follow(query)
            yield {
                "subscriptions": count,
                "start-up, s": started,
                "its processor time, s": start_cpu,
                "processor, us a row": spent / rows * MEGA,
                "idle, processor s a minute": (tree.cpu() - before) / FOLLOW_SECONDS * 60,
                "memory, MB": memory,
            }


def follow(query: StreamingQuery) -> None:
    """Ask for the latest offsets for a while, as Spark does."""
    end = time.monotonic() + FOLLOW_SECONDS
    while time.monotonic() < end:
        query.run_trigger()
        time.sleep(ASK_SECONDS)


@contextlib.contextmanager
def kafka_rows(rows: int) -> Iterator[tuple[str, dict[str, str]]]:
    """A topic with so many rows."""
    with KafkaBroker(fast=True) as broker:
        admin = AdminClient({"bootstrap.servers": broker.endpoint})
        admin.create_topics([NewTopic("growth", 1, 1)])["growth"].result(60)
        Rig(broker, {}, admin).fill("growth", 1, rows, ROW_BYTES)
        options = {"kafka.bootstrap.servers": broker.endpoint, "subscribe": "growth", "startingOffsets": "earliest"}
        limit = {"maxOffsetsPerTrigger": str(BATCH_ROWS)}
        yield "connectors.kafka.datasource:KafkaDataSource", options | limit


@contextlib.contextmanager
def kinesis_rows(rows: int) -> Iterator[tuple[str, dict[str, str]]]:
    """A stream with so many rows."""
    with start_server_process() as server:
        server.create_stream("growth")
        server.fill("growth", rows, ROW_BYTES)
        options = {"streamName": "growth", "endpointUrl": server.url, "initialPosition": "trim_horizon"}
        options |= {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
        limit = {"maxRecordsPerTrigger": str(BATCH_ROWS)}
        yield "connectors.kinesis.datasource:KinesisDataSource", options | limit


@contextlib.contextmanager
def pubsub_rows(rows: int) -> Iterator[tuple[str, dict[str, str]]]:
    """A subscription that gets so many rows."""
    with CannedPubSub(size=ROW_BYTES, limit=rows) as server, tempfile.TemporaryDirectory() as folder:
        options = {"subscriptionId": server.subscription, "endpoint": server.address, "spoolLocation": folder}
        yield "connectors.pubsub.datasource:PubSubDataSource", options | {"maxRecordsPerTrigger": str(BATCH_ROWS)}


def batches(count: int) -> Iterator[dict[str, str | float]]:
    """Each format by batches: a query of the protocol driver, with marks on the way to the last batch."""
    for rows in (kafka_rows, kinesis_rows, pubsub_rows):
        most = min(count, MOST_POLLED) if rows is kinesis_rows else count
        marks = [mark for mark in SIZES["batches"] if mark <= most]
        with rows((count + 1) * BATCH_ROWS) as (source, options), tempfile.TemporaryDirectory() as folder:
            tree = Tree()
            tree.leave_out()
            done, mark_cpu, begin = 0, 0.0, time.perf_counter()
            with StreamingQuery(source, options, checkpoint=folder) as query:
                for mark in marks:
                    before = done
                    while done < mark:
                        done += query.run_batch().rows > 0
                    yield {
                        "format": rows.__name__.removesuffix("_rows"),
                        "batches": mark,
                        "processor, ms a batch since the row before": (tree.cpu() - mark_cpu) / (done - before) * 1e3,
                        "s so far": time.perf_counter() - begin,
                        "memory, MB": tree.memory(),
                    }
                    mark_cpu = tree.cpu()


def spool(gigabytes: int) -> Iterator[dict[str, float]]:
    """Opening a spool with so much in it."""
    with tempfile.TemporaryDirectory() as name:
        root, count = Path(name) / "spool", gigabytes * SEGMENTS_A_GB
        spool_start.build(root, count)
        begin, spent = time.perf_counter(), time.process_time()
        before = memory_bytes(os.getpid())
        _, ledger = spool_start.open_once(root)
        assert len(ledger.state.segments) == count
        yield {
            "GB": gigabytes,
            "segments": count,
            "start-up, s": time.perf_counter() - begin,
            "its processor time, s": time.process_time() - spent,
            "memory, MB": (memory_bytes(os.getpid()) - before) / MEGA,
        }


STEPS: dict[str, tuple[str, Callable[[int], Iterator[dict[str, Any]]]]] = {
    "shards": ("Kinesis by shards, the same 100,000 rows", shards),
    "subscriptions": ("Pub/Sub by subscriptions, the same 10,000 messages a second", subscriptions),
    "batches": ("By batches, of 10 rows each", batches),
    "spool": ("Opening a spool, by what is in it", spool),
}


def grow(benchmark: Benchmark, case: str, sizes: list[int]) -> None:
    """The steps of a table, each in a process of its own."""
    title, _ = STEPS[case]
    for size in sizes:
        command = [sys.executable, __file__, ONE, case, str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            rows = [json.loads(line) for line in process.stdout]
        if process.returncode:
            raise SystemExit(f"{case} {size} failed")
        for row in rows:
            benchmark.row(title, row)
        needed = rows[-1]["memory, MB"] * 10 / 1e3
        if case == "subscriptions" and size * 10 in sizes and needed > memory_gib() * MOST_MEMORY:
            text = f"not run with {size * 10:,}: a fetch process for each would take about {needed:.0f} GB of memory"
            benchmark.note(case, text)
            return


def main() -> None:
    """Run the cases."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--most", type=int, default=10_000, help="leave out larger sizes")
    command_line = arguments.parse_args()
    benchmark = Benchmark("growth")
    benchmark.settings(rows=ROWS, bytes_a_row=ROW_BYTES, rows_a_batch=BATCH_ROWS)
    for case, sizes in SIZES.items():
        if command_line.cases and case not in command_line.cases:
            continue
        some = [size for size in sizes if size <= command_line.most]
        if case == "partitions":
            partitions(benchmark, some)
        else:
            grow(benchmark, case, some[-1:] if case == "batches" else some)
    benchmark.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE]:
        for row in STEPS[sys.argv[2]][1](int(sys.argv[3])):
            print(json.dumps(row), flush=True)
    else:
        main()
