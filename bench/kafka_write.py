"""Rows per second from Spark into Kafka, ours beside Spark's own sink, in one session.

A cached frame of two partitions, values of 192 B without keys and of 1 KB with keys; both sides idempotent, with
linger.ms=5, batches of 1,000,000 bytes and 256 MiB of buffer. At least 1.0 is asked for.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from _common import Benchmark, interleaved, parser
from _kafka import JVM_VERSION, OURS, THEIRS, Rig, rig, wanted
from pyspark.sql import DataFrame

CASES = {"values-192": (192, 1_000_000, False), "keys-192": (192, 1_000_000, True), "keys-1024": (1024, 200_000, True)}
COMMON = {
    "kafka.linger.ms": "5",
    "kafka.batch.size": "1000000",
    "kafka.enable.idempotence": "true",
    "kafka.acks": "all",
}
OWN = {
    OURS: {"kafka.queue.buffering.max.kbytes": "262144", "kafka.queue.buffering.max.messages": "1000000"},
    THEIRS: {"kafka.buffer.memory": str(256 << 20)},
}

_numbers = itertools.count()


def frame(made: Rig, size: int, rows: int, *, keys: bool) -> DataFrame:
    """A cached frame."""
    columns = [f"CAST(repeat('x', {size}) AS BINARY) AS value"]
    columns += ["CAST(CAST(id AS STRING) AS BINARY) AS key"] if keys else []
    cached = made.spark.range(0, rows, 1, 2).selectExpr(*columns).cache()
    assert cached.count() == rows
    return cached


def write(made: Rig, rows: DataFrame, count: int, name: str) -> Callable[[], float]:
    """Writes a frame into a new topic."""

    def run() -> float:
        topic = made.topic(f"write-{next(_numbers)}", 2)
        options = {"kafka.bootstrap.servers": made.broker.endpoint, "topic": topic, **COMMON, **OWN[name]}
        begin = time.perf_counter()
        rows.write.format(name).options(**options).mode("append").save()
        return count / (time.perf_counter() - begin)

    return run


def main() -> None:
    """Run the benchmark."""
    told = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kafka_write")
    benchmark.settings(peer=JVM_VERSION, master="local[2]", both_sides=COMMON)
    with rig() as made:
        for case, (size, count, keys) in CASES.items():
            if wanted(told, case):
                rows = frame(made, size, count, keys=keys)
                sides = {side: write(made, rows, count, side) for side in (OURS, THEIRS)}
                for warm in sides.values():
                    warm()
                ours, theirs = interleaved(sides, told.rounds)
                benchmark.compare(case, ours, theirs, "rows/s")
                rows.unpersist(blocking=True)
    benchmark.finish()


if __name__ == "__main__":
    main()
