"""What bench/avro.py and its sides in Spark share: schemas, messages, and what people who have only pip write."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa

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


def schema_of(name: str) -> dict[str, Any]:
    """The schema of a record."""
    return {"type": "record", "name": "Root", "fields": [{"name": n, "type": kind} for n, kind in SCHEMAS[name]]}


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


def written_by_fastavro(parsed: Any, column: pa.Array) -> pa.Array:
    """What users write."""
    messages = []
    for row in column.to_pylist():
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, row)
        messages.append(buffer.getvalue())
    return pa.array(messages, pa.binary())
