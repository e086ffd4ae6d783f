"""Spark's pipelined transfer to Python functions (SPARK-56642, Spark 4.3 and newer): from_avro with it and without.

``spark.python.udf.pipelined.enabled`` lets a thread of its own send rows to the worker while the task reads results.
Spark reads it when a session starts, so each side is a process with a session, in the same rounds: from a cached frame
in two partitions to the noop sink. ``order`` is a record of eight fields, about 54 bytes; ``flat`` has four fields,
``wide`` 200, and a tenth of the rows. The number is the rows of an Arrow batch; ``-cpu`` is the processor time of
driver, JVM and workers. With ``--unix`` both sides also use unix sockets instead of TCP
(``spark.python.unix.domain.socket.enabled``).
"""

from __future__ import annotations

import contextlib
from functools import partial

from _common import Benchmark, interleaved, parser
from _kafka import Costs
from _program import Program

CASES = ("order-10000", "flat-10000", "wide-10000", "order-1000")
SETTING = "spark.python.udf.pipelined.enabled"
UNIX = "spark.python.unix.domain.socket.enabled"


def rate(costs: Costs, name: str, program: Program, rows: int) -> float:
    """Messages per second of a side."""
    with costs.of(program, name, rows):
        seconds = program.ask({"do": "run"})["seconds"]
    return float(rows / seconds)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__ or "")
    made.add_argument("--messages", type=int, default=1_000_000, help="of a case; a tenth for wide")
    made.add_argument("--master", default="local[2]", help="with fewer tasks than cores, cores are free for threads")
    made.add_argument("--unix", action="store_true", help="use unix sockets on both sides")
    options = made.parse_args()
    bench = Benchmark("pipelined")
    bench.settings(rounds=options.rounds, messages=options.messages, master=options.master, unix_sockets=options.unix)
    both = [f"spark.master={options.master}", *([f"{UNIX}=true"] if options.unix else [])]
    with contextlib.ExitStack() as stack:
        sides = {
            name: stack.enter_context(Program("_avro_side.py", "connectors", name, *both))
            for name in (f"{SETTING}=true", f"{SETTING}=false")
        }
        for program in sides.values():
            next(program.reports())
        for case in options.cases or CASES:
            schema, _, batch = case.partition("-")
            rows = options.messages // (10 if schema == "wide" else 1)
            command = {"do": "prepare", "schema": schema, "direction": "decode", "rows": rows, "batch": int(batch)}
            digests = {program.ask(command)["digest"] for program in sides.values()}
            assert len(digests) == 1, f"{case}: the sides give other results"
            costs = Costs()
            runs = {name: partial(rate, costs, name, program, rows) for name, program in sides.items()}
            bench.compare(case, *interleaved(runs, options.rounds), "messages/s")
            spent = [costs.side(name, options.rounds) for name in sides]
            bench.compare(f"{case}-cpu", *spent, "s of processor time for a million", less_is_better=True)
    bench.finish()


if __name__ == "__main__":
    main()
