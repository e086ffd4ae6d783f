"""Messages per second of from_avro and to_avro against fastavro, row by row, in the function that users write today.

Both sides get a column of Arrow and return one, as in an Arrow UDF; Spark is left out, since it does the same for both.
``order`` is a record of eight fields: a nested one, an array of strings and two that can be null, about 54 bytes;
``flat`` has four fields, ``wide`` 200. The number is that of the messages in a batch. ``bad-row`` is a batch with one
bad row in 10,000 (PERMISSIVE) against the same batch without. ``write-`` encodes the values of the messages again, and
both sides must give the bytes that there were.
"""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
from _common import Benchmark, Side, interleaved, parser

from connectors.avro.options import parse_avro_options
from connectors.avro.worker import DecodeCall, EncodeCall

ADDRESS = [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}]
ORDER = [
    ("id", "long"),
    ("customer", "string"),
    ("amount", "double"),
    ("paid", "boolean"),
    ("note", ["null", "string"]),
    ("discount", ["null", "int"]),
    ("address", {"type": "record", "name": "Address", "fields": ADDRESS}),
    ("tags", {"type": "array", "items": "string"}),
]
FLAT = [("id", "long"), ("name", "string"), ("amount", "double"), ("paid", "boolean")]
WIDE = [(f"field_{number}", ("long", "string", "double", ["null", "int"])[number % 4]) for number in range(200)]
SCHEMAS = {"order": ORDER, "flat": FLAT, "wide": WIDE}
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
NULLS = 0.6


def value(kind: Any, chance: random.Random) -> Any:
    """A value of a type."""
    if isinstance(kind, list):
        return None if chance.random() < NULLS else value(kind[1], chance)
    if isinstance(kind, dict) and kind["type"] == "array":
        return [value(kind["items"], chance) for _ in range(chance.randrange(4))]
    if isinstance(kind, dict):
        return {field["name"]: value(field["type"], chance) for field in kind["fields"]}
    made: dict[str, Callable[[], Any]] = {
        "long": lambda: chance.randrange(1 << 40),
        "int": lambda: chance.randrange(100_000),
        "double": chance.random,
        "boolean": lambda: bool(chance.getrandbits(1)),
        "string": lambda: chance.choice(["red", "Amsterdam", "customer-123", "a note of it"]),
    }
    return made[kind]()


def messages_of(schema: dict[str, Any], count: int) -> list[bytes]:
    """Messages as a service writes them."""
    chance, parsed, made = random.Random(1), fastavro.parse_schema(schema), []
    for _ in range(count):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, {f["name"]: value(f["type"], chance) for f in schema["fields"]})
        made.append(buffer.getvalue())
    return made


def with_fastavro(parsed: Any, kind: pa.DataType, column: pa.Array) -> pa.Array:
    """What users write."""
    rows = [fastavro.schemaless_reader(io.BytesIO(data), parsed, None) for data in column.to_pylist()]
    return pa.array(rows, kind)


def written_by_fastavro(parsed: Any, structs: pa.Array) -> pa.Array:
    """What users write."""
    messages = []
    for row in structs.field(0).to_pylist():
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, row)
        messages.append(buffer.getvalue())
    return pa.array(messages, pa.binary())


def rate(function: Callable[[pa.Array], pa.Array], column: pa.Array) -> float:
    """Messages per second."""
    begin, batches = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        function(column)
        batches += 1
    return batches * len(column) / (time.perf_counter() - begin)


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "").parse_args()
    bench = Benchmark("avro")
    bench.settings(rounds=options.rounds, fastavro=fastavro.__version__)
    permissive = parse_avro_options({"mode": "PERMISSIVE"}, "from_avro")
    for case in options.cases or CASES:
        name, _, count = case.removeprefix("write-").partition("-")
        fields = SCHEMAS["order" if case == "bad-row" else name]
        schema = {"type": "record", "name": "Root", "fields": [{"name": n, "type": kind} for n, kind in fields]}
        messages = messages_of(schema, 10_000 if case == "bad-row" else int(count))
        column, ours = pa.array(messages, pa.binary()), DecodeCall(json.dumps(schema), permissive)
        if case == "bad-row":
            spoilt = pa.array([*messages[:5000], b"\xff\xff\xff", *messages[5001:]], pa.binary())
            runs = {"no bad row": partial(rate, ours, column), "one in 10,000": partial(rate, ours, spoilt)}
            clean, bad = interleaved(runs, options.rounds)
            sides = [Side(side.name, [1e6 / each for each in side.values]) for side in (bad, clean)]
            bench.compare(case, *sides, "us/message")
            continue
        theirs = partial(with_fastavro, fastavro.parse_schema(schema), ours(column).type)
        given = column
        if case.startswith("write-"):
            given = pa.StructArray.from_arrays([ours(column)], ["value"])
            ours, theirs = EncodeCall(json.dumps(schema)), partial(written_by_fastavro, fastavro.parse_schema(schema))
            assert ours(given).to_pylist() == messages, case
        assert ours(given).to_pylist() == theirs(given).to_pylist(), case
        runs = {"connectors.avro": partial(rate, ours, given), "fastavro": partial(rate, theirs, given)}
        bench.compare(case, *interleaved(runs, options.rounds), "messages/s")
    bench.finish()


if __name__ == "__main__":
    main()
