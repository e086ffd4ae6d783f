"""Rows per second from a Kafka topic into Parquet and into Delta, by our source and by Spark's own, in one run.

Each side is a process of its own with its own Spark session; the same topic (two partitions), local[2], five columns
(key, value, partition, offset, timestamp). A query with Trigger.AvailableNow reads the topic in four batches; the time
of the last three counts, as Spark reports it, after a warm-up. `parquet` is Spark's file sink; `delta` is
examples/lakehouse.py on both sides: a batch goes to the driver as Arrow, and delta-rs commits it. All records have
the same value, so what is written is small: this measures the way from topic to table, and no disk. Beside the rows a
second stands the processor time of each side, as ratio too (`-cpu`).
"""

from __future__ import annotations

import json
from collections.abc import Callable

from _common import Benchmark, parser
from _kafka import JVM_VERSION, OURS, THEIRS, Costs, Rig, compare, rig, wanted

PARTITIONS = 2
SIZE = 200
ROWS = 1_000_000
BATCHES = 4
SINKS = ("parquet", "delta")


def query(made: Rig, topic: str, name: str, sink: str, costs: Costs) -> Callable[[], float]:
    """Runs a query of a side into a new table, to its end."""
    options = {
        "kafka.bootstrap.servers": made.broker.endpoint,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(ROWS // BATCHES),
    }

    def run() -> float:
        with costs.of(made.sides[name], name, ROWS):
            found = made.sides[name].ask({"do": "stream", "options": options, "sink": sink})
        assert found["rows"] == ROWS, f"{found['rows']} rows instead of {ROWS}"
        print(f"# {name}: ms of a batch: {json.dumps(found['steps'])}", flush=True)
        return float(found["counted"] / found["seconds"])

    return run


def main() -> None:
    """Run the benchmark."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("to_parquet")
    benchmark.settings(
        peer=JVM_VERSION, partitions=PARTITIONS, rows=ROWS, value_bytes=SIZE, batches=BATCHES, master="local[2]"
    )
    with rig() as made:
        topic = made.topic("orders", PARTITIONS)
        made.fill(topic, PARTITIONS, ROWS, SIZE)
        for sink in filter(lambda each: wanted(command_line, each), SINKS):
            costs = Costs()
            sides = {side: query(made, topic, side, sink, costs) for side in (OURS, THEIRS)}
            compare(benchmark, {OURS: sink}, sides, costs, command_line.rounds)
    benchmark.finish()


if __name__ == "__main__":
    main()
