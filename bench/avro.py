"""Messages per second of from_avro and to_avro against fastavro, row by row, in the function that users write today.

Both sides get a column of Arrow and return one, as in an Arrow UDF, without Spark. ``order`` is a record of eight
fields: a nested one, an array of strings and two that can be null, about 54 bytes; ``flat`` has four fields, ``wide``
200. The number is that of the messages in a batch. ``bad-row`` is a batch with one bad row in 10,000 (PERMISSIVE)
against the same batch without. ``write-`` encodes the values of the messages again, and both sides must give the bytes
that there were.

``spark-`` is the same through Spark, from a cached frame to the noop sink, the number that of
``spark.sql.execution.arrow.maxRecordsPerBatch``: each case beside Spark's own functions (``-jar``) and beside fastavro
in an Arrow UDF (``-fastavro``), in processes with a session each, local[2], in the same rounds. All sides must give the
same values and bytes. Asked for, in batches of 10,000: at least 10 times fastavro, and 0.8 of the jar. ``-ceiling`` is
an Arrow UDF that has its column ready, beside the jar: what Spark takes to hand a column to Python and back, and so the
most that any function in Python can reach.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fastavro
import pyarrow as pa
from _avro_cases import SCHEMAS, messages_of, schema_of, with_fastavro, written_by_fastavro
from _common import Benchmark, Side, interleaved, parser
from _program import Program

from connectors.avro.options import parse_avro_options
from connectors.avro.worker import DecodeCall, EncodeCall
from tests.servers.maven import class_path

CASES = (
    "order-10000",
    "order-8",
    "flat-10000",
    "wide-10000",
    "bad-row",
    "write-order-10000",
    "write-order-8",
    "write-wide-10000",
)
SECONDS = 0.3
BATCHES = (10_000, 8)
SPARK_CASES = tuple(
    f"spark-{direction}-{schema}-{batch}"
    for direction in ("decode", "encode")
    for schema in SCHEMAS
    for batch in BATCHES
)
OURS, JAR, FASTAVRO, CEILING = "connectors", "jar", "fastavro", "ceiling"


def rate(function: Callable[[pa.Array], pa.Array], column: pa.Array) -> float:
    """Messages per second."""
    begin, batches = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        function(column)
        batches += 1
    return batches * len(column) / (time.perf_counter() - begin)


def alone(bench: Benchmark, case: str, rounds: int) -> None:
    """Run a case without Spark."""
    name, _, count = case.removeprefix("write-").partition("-")
    schema = schema_of("order" if case == "bad-row" else name)
    messages = messages_of(schema, 10_000 if case == "bad-row" else int(count))
    permissive = parse_avro_options({"mode": "PERMISSIVE"}, "from_avro")
    column, ours = pa.array(messages, pa.binary()), DecodeCall(json.dumps(schema), permissive)
    if case == "bad-row":
        spoilt = pa.array([*messages[:5000], b"\xff\xff\xff", *messages[5001:]], pa.binary())
        runs = {"no bad row": partial(rate, ours, column), "one in 10,000": partial(rate, ours, spoilt)}
        clean, bad = interleaved(runs, rounds)
        sides = [Side(side.name, [1e6 / each for each in side.values]) for side in (bad, clean)]
        bench.compare(case, *sides, "us/message")
        return
    parsed = fastavro.parse_schema(schema)
    theirs, given = partial(with_fastavro, parsed, ours(column).type), column
    if case.startswith("write-"):
        given = pa.StructArray.from_arrays([ours(column)], ["value"])
        ours, theirs = EncodeCall(json.dumps(schema)), lambda structs: written_by_fastavro(parsed, structs.field(0))
        assert ours(given).to_pylist() == messages, case
    assert ours(given).to_pylist() == theirs(given).to_pylist(), case
    runs = {"connectors.avro": partial(rate, ours, given), "fastavro": partial(rate, theirs, given)}
    bench.compare(case, *interleaved(runs, rounds), "messages/s")


def through_spark(bench: Benchmark, cases: list[str], messages: int, rounds: int) -> None:
    """Run cases through Spark, without the jar if it cannot be had."""
    jar = class_path("spark-avro")
    if jar.reason:
        bench.note(JAR, f"skipped: {jar.reason}")
    else:
        bench.note(JAR, Path(jar.path).name)
    others = [FASTAVRO] if jar.reason else [JAR, FASTAVRO]
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(Program("_avro_side.py", name)) for name in (OURS, *others, CEILING)}
        for program in sides.values():
            next(program.reports())
        for case in cases:
            _, direction, schema, batch = case.split("-")
            rows = messages // (10 if schema == "wide" else 1) // (10 if int(batch) == min(BATCHES) else 1)
            command = {"do": "prepare", "schema": schema, "direction": direction, "rows": rows, "batch": int(batch)}
            digests = {name: program.ask(command)["digest"] for name, program in sides.items()}
            del digests[CEILING]
            assert len(set(digests.values())) == 1, f"{case}: the sides give other results: {digests}"
            runs = {name: partial(spark_rate, program, rows) for name, program in sides.items()}
            measured = {side.name: side for side in interleaved(runs, rounds)}
            for name in others:
                bench.compare(f"{case}-{name}", measured[OURS], measured[name], "messages/s")
            if JAR in others:
                bench.compare(f"{case}-ceiling", measured[CEILING], measured[JAR], "messages/s")


def spark_rate(program: Program, rows: int) -> float:
    """Messages per second of a side."""
    return float(rows / program.ask({"do": "run"})["seconds"])


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__ or "")
    made.add_argument(
        "--messages", type=int, default=400_000, help="through Spark; a tenth for wide, and for batches of 8"
    )
    options = made.parse_args()
    bench = Benchmark("avro")
    bench.settings(rounds=options.rounds, fastavro=fastavro.__version__, messages=options.messages, master="local[2]")
    wanted = options.cases or [*CASES, *SPARK_CASES]
    for case in wanted:
        if not case.startswith("spark-"):
            alone(bench, case, options.rounds)
    if cases := [case for case in wanted if case.startswith("spark-")]:
        through_spark(bench, cases, options.messages, options.rounds)
    bench.finish()


if __name__ == "__main__":
    main()
