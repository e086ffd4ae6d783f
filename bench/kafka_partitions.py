"""Seconds of a batch read of one topic with 10, 100 and 500 partitions, ours beside Spark's own source, in one run.

Each partition holds 100 records of 1 KB and is a task, so a task's own cost is most of the time: what it asks Kafka
for, how it turns to another partition, how its rows get to the JVM. Spark's noop sink, local[2], each side a process of
its own with its own Spark session. Beside the seconds stands the processor time of each side. At most 3 s more than
Spark's own source is asked for at 500 partitions (`more`).

Spark's own source has `kafka.fetch.max.wait.ms=5` here, which is what ours does by itself. By default it waits half a
second in each task: it asks for the end of its partition behind a fetch that the broker holds back for so long.
`defaults-100` shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from _common import Benchmark, interleaved, parser
from _kafka import JVM_VERSION, OURS, THEIRS, Costs, Rig, rig, wanted

CASES = {"batch-10": 10, "batch-100": 100, "batch-500": 500, "defaults-100": 100}
SAME_WAIT = {"kafka.fetch.max.wait.ms": "5"}
RECORDS = 100
SIZE = 1024


def batch(made: Rig, topic: str, name: str, rows: int, costs: Costs, more: Mapping[str, str]) -> Callable[[], float]:
    """Reads a topic once, with more options."""
    options = {
        "kafka.bootstrap.servers": made.broker.endpoint,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.check.crcs": "true",
        **more,
    }
    program = made.sides[name]
    assert program.ask({"do": "count", "options": options}) == {"rows": rows}

    def run() -> float:
        with costs.of(program, name, 1_000_000):  # seconds of all of it
            return float(program.ask({"do": "batch", "options": options})["seconds"])

    return run


def main() -> None:
    """Run the benchmark."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kafka_partitions")
    benchmark.settings(peer=JVM_VERSION, cases=CASES, records_in_each=RECORDS, size=SIZE, master="local[2]")
    with rig() as made:
        for case, partitions in CASES.items():
            if not wanted(command_line, case):
                continue
            rows = partitions * RECORDS
            topic = made.topic(case, partitions)
            made.fill(topic, partitions, rows, SIZE)
            costs = Costs()
            tuned = {} if case.startswith("defaults") else SAME_WAIT
            sides = {
                name: batch(made, topic, name, rows, costs, {} if name == OURS else tuned) for name in (OURS, THEIRS)
            }
            ours, theirs = interleaved(sides, command_line.rounds)
            benchmark.compare(case, ours, theirs, "s", less_is_better=True)
            print(f"more {case}: {ours.median - theirs.median:+.2f} s", flush=True)
            cpu = [costs.side(name, command_line.rounds) for name in sides]
            benchmark.compare(f"{case}-cpu", *cpu, "s of processor time", less_is_better=True)
            made.delete(topic)
    benchmark.finish()


if __name__ == "__main__":
    main()
