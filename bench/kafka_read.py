"""Rows per second out of Kafka into Spark's noop sink, ours beside Spark's own source, in one run.

Each side is a process of its own with its own Spark session; the same topic (two partitions), local[2], records held
against their checksums on both sides (`check.crcs`, as by default), a warm-up of each before it counts. `batch` reads
the topic once. `stream` reads it by a query with Trigger.AvailableNow in four batches, and counts the time of the last
three, as Spark reports it: in the first one a query starts. Beside the rows a second stands the processor time of each
side's driver, JVM and workers, as ratio too (`-cpu`). `plain`, without Spark: the plain way to read in one process, to
which the fast one is held. `ceiling` is measured with `stream`, in the same rounds: a Python source that reads nothing
and hands ready rows to Spark, beside Spark's own Kafka source. What it has is what Spark takes for rows from Python and
for batches, and no source in Python can have more.

Asked for: batches of 100 B, 200 B and 1 KB at least 2.5, 2.2 and 1.7; a stream, also by its processor time, at least
0.92 of the ceiling.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping

from _common import Benchmark, interleaved, parser
from _kafka import JVM_VERSION, OURS, THEIRS, Costs, Rig, compare, rig, wanted
from _program import Program
from _ready_rows import READY, ready_options

from connectors.core.processes.worker import NO_FAST_PATH
from connectors.kafka.native import native_reason
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.source.consumer_pool import CONSUMERS
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range

PARTITIONS = 2
ROWS = {100: 2_000_000, 200: 2_000_000, 1024: 600_000}
BATCHES = 4
WARM_UP = 3
"""Of a stream: the JVM of the ceiling has read no batch before."""


def options(made: Rig, topic: str) -> dict[str, str]:
    """Options of both sides."""
    return {
        "kafka.bootstrap.servers": made.broker.endpoint,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.check.crcs": "true",
    }


def batch(made: Rig, topic: str, name: str, rows: int, costs: Costs) -> Callable[[], float]:
    """Reads a topic once."""
    program = made.sides[name]
    assert program.ask({"do": "count", "options": options(made, topic)}) == {"rows": rows}

    def run() -> float:
        with costs.of(program, name, rows):
            seconds = program.ask({"do": "batch", "options": options(made, topic)})["seconds"]
        return float(rows / seconds)

    return run


def stream(made: Rig, topic: str, name: str, rows: int, costs: Costs) -> Callable[[], float]:
    """Reads a topic by a query."""
    limited = options(made, topic) | {"maxOffsetsPerTrigger": str(rows // BATCHES)}
    return query(made.sides[name], limited, name, rows, costs)


def ready(program: Program, size: int, rows: int, costs: Costs) -> Callable[[], float]:
    """Takes as many ready rows of this size by a query."""
    return query(program, ready_options(rows, size, BATCHES, PARTITIONS), READY, rows, costs)


def query(program: Program, options: Mapping[str, str], name: str, rows: int, costs: Costs) -> Callable[[], float]:
    """Runs a query of a side to its end."""

    def run() -> float:
        with costs.of(program, name, rows):
            found = program.ask({"do": "stream", "options": options})
        assert found["rows"] == rows, f"{found['rows']} rows instead of {rows}"
        print(f"# {name}: ms of a batch: {json.dumps(found['steps'])}", flush=True)
        return float(found["counted"] / found["seconds"])

    return run


def alone(made: Rig, topic: str, rows: int, *, native: bool) -> Callable[[], float]:
    """Reads a partition in this process, without Spark."""
    client = ClientSettings((("bootstrap.servers", made.broker.endpoint), ("isolation.level", "read_uncommitted")))
    settings = KafkaReadOptions(client=client, group="bench", poll_timeout_ms=60_000)
    part = OffsetRange(topic, 0, 0, rows // PARTITIONS)

    def run() -> float:
        os.environ[NO_FAST_PATH] = "" if native else "1"
        native_reason.cache_clear()
        native_reason()
        begin = time.perf_counter()
        assert sum(each.num_rows for each in read_range(part, settings)) == part.size
        seconds = time.perf_counter() - begin
        CONSUMERS.close()
        return part.size / seconds

    return run


def main() -> None:
    """Run the benchmark."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kafka_read")
    benchmark.settings(peer=JVM_VERSION, partitions=PARTITIONS, rows=ROWS, batches=BATCHES, master="local[2]")
    with rig(READY) as made:
        for size, rows in ROWS.items():
            stream_cases = {OURS: f"stream-{size}", READY: f"ceiling-{size}"}
            if not wanted(command_line, f"batch-{size}", *stream_cases.values(), f"plain-{size}"):
                continue
            topic = made.topic(f"read-{size}", PARTITIONS)
            made.fill(topic, PARTITIONS, rows, size)
            if wanted(command_line, f"batch-{size}"):
                costs = Costs()
                sides = {side: batch(made, topic, side, rows, costs) for side in (OURS, THEIRS)}
                compare(benchmark, {OURS: f"batch-{size}"}, sides, costs, command_line.rounds)
            if wanted(command_line, *stream_cases.values()):
                costs = Costs()
                sides = {side: stream(made, topic, side, rows, costs) for side in (OURS, THEIRS)}
                sides[READY] = ready(made.sides[READY], size, rows, costs)
                compare(benchmark, stream_cases, sides, costs, command_line.rounds, WARM_UP)
            if wanted(command_line, f"plain-{size}"):
                both = {word: alone(made, topic, rows, native=word == "native") for word in ("native", "plain")}
                benchmark.compare(f"plain-{size}", *interleaved(both, command_line.rounds), "rows/s")
            made.delete(topic)
    benchmark.finish()


if __name__ == "__main__":
    main()
