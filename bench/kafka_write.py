"""Rows per second from Spark into Kafka, ours beside Spark's own sink, in one run.

Each side is a process of its own with its own Spark session, and writes a cached frame of two partitions: values of 200
B and of 1 KB, without and with keys. Each is written with equal settings on both sides: idempotent, with linger.ms=5,
batches of 1,000,000 bytes and 256 MiB of buffer; and with the settings that each side has by itself (`-defaults`), as
in a job in which nothing but the format is changed: Spark's own sink then has batches of 16 KB. Beside the rows a
second stands the processor time of each side's driver, JVM and workers, as ratio too (`-cpu`).

`ceiling` is measured in the same rounds: a Python sink that takes batches and drops them, beside Spark's own sink. What
it has is what Spark takes for rows to Python, and no sink in Python can have more. With equal settings at least 1.0 is
asked for, or 0.9 of the ceiling.

A case is written six times by each side before it counts: after one time the JVM's compiler still took a seventh of all
processor time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from _common import Benchmark, parser
from _kafka import JVM_VERSION, OURS, THEIRS, Costs, Rig, compare, rig, wanted
from _ready_rows import READY

WARM_UP = 6
ROWS = {200: 1_000_000, 1024: 300_000}
COMMON = {
    "kafka.linger.ms": "5",
    "kafka.batch.size": "1000000",
    "kafka.enable.idempotence": "true",
    "kafka.acks": "all",
}
EQUAL = {
    OURS: COMMON | {"kafka.queue.buffering.max.kbytes": "262144", "kafka.queue.buffering.max.messages": "1000000"},
    THEIRS: COMMON | {"kafka.buffer.memory": str(256 << 20)},
}
SETTINGS: Mapping[str, Mapping[str, Mapping[str, str]]] = {"": EQUAL, "-defaults": {OURS: {}, THEIRS: {}}}

_numbers = itertools.count()


def write(made: Rig, rows: int, name: str, given: Mapping[str, str], costs: Costs) -> Callable[[], float]:
    """Writes the frame of a side into a new topic, with some options."""
    program = made.sides[name]

    def run() -> float:
        topic = made.topic(f"write-{next(_numbers)}", 2)
        options = {"kafka.bootstrap.servers": made.broker.endpoint, "topic": topic, **given}
        with costs.of(program, name, rows):
            seconds = program.ask({"do": "write", "options": options})["seconds"]
        assert name == READY or made.records(topic) == rows
        made.delete(topic)
        return float(rows / seconds)

    return run


def main() -> None:
    """Run the benchmark."""
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("kafka_write")
    benchmark.settings(peer=JVM_VERSION, rows=ROWS, warm_up=WARM_UP, master="local[2]", equal=COMMON)
    with rig(READY) as made:
        for (size, rows), word, (label, options) in itertools.product(
            ROWS.items(), ("values", "keys"), SETTINGS.items()
        ):
            cases = {OURS: f"{word}-{size}{label}", READY: f"ceiling-{word}-{size}{label}"}
            if not wanted(command_line, *cases.values()):
                continue
            for program in made.sides.values():
                plan = {"do": "frame", "size": size, "rows": rows, "keys": word == "keys"}
                assert program.ask(plan) == {"rows": rows}
            costs = Costs()
            sides = {name: write(made, rows, name, options.get(name, {}), costs) for name in made.sides}
            compare(benchmark, cases, sides, costs, command_line.rounds, WARM_UP)
    benchmark.finish()


if __name__ == "__main__":
    main()
