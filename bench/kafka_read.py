"""Rows per second out of Kafka into Spark's noop sink, ours beside Spark's own source, in one session.

The same topic (two partitions), local[2], `check.crcs=false` on both sides, a warm-up of each before it counts. `batch`
reads the topic once. `stream` reads it by a query with Trigger.AvailableNow on a new checkpoint, and counts the time of
its batches, as Spark reports it: a source in Python takes about a second more to start a query, for its process. Beside
these, without Spark: the plain way to read in one process (`plain`), to which the fast one is held.
At least 1.5 is asked for at 200 B, and 1.2 everywhere.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

from _common import Benchmark, interleaved, parser
from _kafka import JVM_VERSION, OURS, THEIRS, Rig, rig, wanted

from connectors.kafka.consume import ReadSettings, close_readers, read_range
from connectors.kafka.ranges import OffsetRange
from connectors.kafka.settings import ClientSettings

PARTITIONS = 2
ROWS = {100: 1_000_000, 200: 1_000_000, 1024: 300_000}


def options(made: Rig, topic: str) -> dict[str, str]:
    """Options of both sides."""
    return {
        "kafka.bootstrap.servers": made.broker.endpoint,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.check.crcs": "false",
    }


def batch(made: Rig, topic: str, name: str, rows: int) -> Callable[[], float]:
    """Reads a topic once."""

    def run() -> float:
        frame = made.spark.read.format(name).options(**options(made, topic)).load()
        begin = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return rows / (time.perf_counter() - begin)

    return run


def stream(made: Rig, topic: str, name: str, rows: int) -> Callable[[], float]:
    """Reads a topic by a query."""

    def run() -> float:
        frame = made.spark.readStream.format(name).options(**options(made, topic)).load()
        with tempfile.TemporaryDirectory() as folder:
            writer = frame.writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", folder).start()
            query.awaitTermination()
            batches = [each for each in query.recentProgress if each["numInputRows"]]
            seconds = sum(each["durationMs"]["triggerExecution"] for each in batches) / 1e3
            counted = sum(each["numInputRows"] for each in batches)
            assert counted == rows, f"{counted} rows instead of {rows}"
        return rows / seconds

    return run


def alone(made: Rig, topic: str, rows: int, *, native: bool) -> Callable[[], float]:
    """Reads a partition in this process, without Spark."""
    client = ClientSettings((("bootstrap.servers", made.broker.endpoint), ("isolation.level", "read_uncommitted")))
    settings = ReadSettings(client, "bench", headers=False, fail_on_data_loss=True, poll_timeout=60, native=native)
    part = OffsetRange(topic, 0, 0, rows // PARTITIONS)

    def run() -> float:
        begin = time.perf_counter()
        assert sum(each.num_rows for each in read_range(part, settings)) == part.size
        seconds = time.perf_counter() - begin
        close_readers()
        return part.size / seconds

    return run


def main() -> None:
    """Run the benchmark."""
    told = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kafka_read")
    benchmark.settings(peer=JVM_VERSION, partitions=PARTITIONS, rows=ROWS, master="local[2]")
    with rig() as made:
        for size, rows in ROWS.items():
            cases = {"batch": batch, "stream": stream}
            names = [f"{name}-{size}" for name in (*cases, "plain")]
            if not any(wanted(told, name) for name in names):
                continue
            topic = made.topic(f"read-{size}", PARTITIONS)
            made.fill(topic, PARTITIONS, rows, size)
            for name, kind in cases.items():
                if wanted(told, f"{name}-{size}"):
                    sides = {side: kind(made, topic, side, rows) for side in (OURS, THEIRS)}
                    for warm in sides.values():
                        warm()
                    ours, theirs = interleaved(sides, told.rounds)
                    benchmark.compare(f"{name}-{size}", ours, theirs, "rows/s")
            if wanted(told, f"plain-{size}"):
                both = {word: alone(made, topic, rows, native=word == "native") for word in ("native", "plain")}
                fast, slow = interleaved(both, told.rounds)
                benchmark.compare(f"plain-{size}", fast, slow, "rows/s")
    benchmark.finish()


if __name__ == "__main__":
    main()
