"""Hostile attempts by who may register schemas: of Avro with messages, and of JSON.

A schema gives columns, or is refused with a code, within the time and memory of an attempt. Messages of a schema that
is taken are values or bad rows, the same by rows and by columns.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connectors.avro.functions import decode_call
from connectors.json.expressions import spark_type
from connectors.json.schema.columns import json_column
from connectors.json.schema.parser import parse_schemas
from tests.chaos.rigs.hostile_attempts import Attempt, Kind
from tests.support.avro_rig import decode

__all__ = ["SCHEMAS"]

_MOST = 20_000
"""Symbols, branches, fields and properties of a schema; more take as much more time."""
_ODD = (None, True, -1, 1.5, 10**400, float("inf"), "", "\ud800", "no value", [], {}, [{}], {"a": 1}, "a" * 5000)


def _size() -> int:
    return int(_MOST ** random.random())


def _record(name: str, *fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields], **more}


def _doubling() -> Any:
    """Return records that each hold the next one twice."""
    leaf = random.choice([(), (("x", "null"),), (("x", "int"),), (("x", ["null", "float"]),), (("x", "string"),)])
    schema = _record("Last", *leaf)
    for level in range(random.choice([3, 10, 18, 60, 120])):
        name, again = f"A{level}", schema["name"]
        if random.random() < 0.2:
            schema, again = {"type": "array", "items": schema}, {"type": "map", "values": again}
        schema = _record(name, ("b", schema), ("c", again))
    return schema


def _chain() -> Any:
    """Return records that hold the one before them by its name."""
    return _record(
        "R", *((f"f{n}", _record(f"A{n}", ("b", ["null", f"A{n - 1}"] if n else "int"))) for n in range(_size()))
    )


def _union() -> Any:
    prefix = random.choice("AB")
    records = [_record(f"{prefix}{n}", (random.choice("xy"), "int"), aliases=[f"C{n}"]) for n in range(_size())]
    return random.sample(records, len(records))


def _enum() -> Any:
    symbols = [f"S{n}" for n in range(_size())]
    return {
        "type": "enum",
        "name": "E",
        "symbols": random.sample(symbols, len(symbols)),
        "default": random.choice(_ODD),
    }


def _fixed() -> Any:
    size = random.choice([0, 16, 2000, 2**28, 2**31 - 1, 2**31, 2**63, 10**400, -1, True])
    more = {
        "logicalType": "decimal",
        "precision": random.choice([1, 38, 39, 5000, 10**9]),
        "scale": random.choice([0, 5]),
    }
    return {"type": "fixed", "name": "F", "size": size, **random.choice([{}, more])}


def _lists() -> Any:
    inner: Any = random.choice(["null", "int", _record("E"), "string"])
    for _ in range(random.randint(1, 12)):
        inner = {"type": "array", "items": inner}
    return inner


def _defaults() -> Any:
    kinds = ["int", "string", "bytes", "float", ["null", "int"], {"type": "array", "items": "string"}, _lists()]
    fields = [{"name": f"d{n}", "type": random.choice(kinds), "default": random.choice(_ODD)} for n in range(3)]
    for field in random.sample(fields, random.randint(0, 3)):
        field["aliases"] = random.choice([[random.choice(["d0", "d1", "x"])], "d1", [1], None])
    return {"type": "record", "name": "D", "fields": fields}


_AVRO: tuple[Callable[[], Any], ...] = (_doubling, _chain, _union, _enum, _fixed, _lists, _defaults)


def _damaged(schema: Any) -> Any:
    """Return a schema in which a random part is another one."""
    if isinstance(schema, dict) and schema and random.random() < 0.9:
        key = random.choice(list(schema))
        return {**schema, key: _damaged(schema[key])}
    if isinstance(schema, list) and schema and random.random() < 0.9:
        place = random.randrange(len(schema))
        return [*schema[:place], _damaged(schema[place]), *schema[place + 1 :]]
    return random.choice(_ODD)


@contextmanager
def avro(_folder: Path) -> Iterator[Attempt]:
    """Schemas of Avro that multiply, are large or make no sense, as a writer's, a reader's or both; and messages."""

    def attempt() -> dict[str, int]:
        inner = random.choice(_AVRO)()
        writer = _record("R", ("gone", inner), ("k", "int"))
        if random.random() < 0.3:
            writer = _damaged(writer)
        dropping = _record("R", ("k", "int"))
        reader = random.choice(
            [dropping, dropping, writer, _record("R", ("gone", random.choice(_AVRO)()), ("k", "int"))]
        )
        options = {"mode": "PERMISSIVE", "recursiveFieldMaxDepth": "3", "avroSchema": json.dumps(reader)}
        decode_call(json.dumps(writer), options)
        sizes = [0, 1, random.randrange(100), random.choice([10_000, 200_000])]
        fill = random.choice([b"\0", b"\2", b"\1", b"\x80", random.randbytes(7)])
        decoded = decode([(fill * size)[:size] for size in sizes], writer, reader, recursiveFieldMaxDepth="3")
        return {"read": len(sizes) - len(decoded.errors), "bad_rows": len(decoded.errors)}

    yield attempt


def _properties() -> Any:
    return {f"p{n}": {"$ref": "#/$defs/a"} if n % 2 else {"type": "integer"} for n in range(_size())}


def _anchored() -> Any:
    anchors = {f"a{n}": {"$anchor": f"a{n}", "type": "string"} for n in range(_size())}
    return {"$id": f"https://x/{'y' * random.choice([1, 4000, 2_000_000])}", "$defs": anchors, "$ref": "#a0"}


def _references() -> Any:
    count = _size()
    defs: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    defs[f"d{count}"] = random.choice([{"type": "integer"}, {"$ref": "#/$defs/d0"}])
    return {"$defs": defs, "$ref": "#/$defs/d0"}


def _multiplied() -> Any:
    key = random.choice(["allOf", "anyOf", "oneOf"])
    defs: dict[str, Any] = {"a": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    for level in range(random.choice([3, 12, 40])):
        inner = [{"$ref": f"#/$defs/{'a' if level == 0 else f'm{level - 1}'}"}] * 2
        defs[f"m{level}"] = (
            {key: inner} if random.random() < 0.7 else {"type": "object", "properties": {"b": inner[0], "c": inner[0]}}
        )
    return {"$defs": defs, "$ref": f"#/$defs/{list(defs)[-1]}"}


def _connect() -> Any:
    title = f"org.apache.kafka.connect.data.{random.choice(['Decimal', 'Date', 'Time', 'Timestamp'])}"
    parameters = {key: random.choice([*_ODD, "2", 1e400]) for key in ("scale", "connect.decimal.precision")}
    kind = random.choice(["number", "string", "integer", *_ODD])
    return {
        "type": kind,
        "title": title,
        "connect.type": random.choice(["bytes", "int8"]),
        "connect.parameters": parameters,
    }


def _nested() -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(random.choice([10, 100, 200])):  # Python itself writes no more; parsers get deeper ones elsewhere
        schema = random.choice([{"items": schema}, {"properties": {"a": schema}}, {"additionalProperties": schema}])
    return schema


_JSON: tuple[Callable[[], Any], ...] = (
    lambda: {"$defs": {"a": {"type": "string"}}, "properties": _properties()},
    _anchored,
    _references,
    _multiplied,
    _connect,
    _nested,
)


@contextmanager
def json_schemas(_folder: Path) -> Iterator[Attempt]:
    """JSON Schemas that multiply, are large or make no sense."""

    def attempt() -> dict[str, int]:
        schema = random.choice(_JSON)()
        if random.random() < 0.3:
            schema = _damaged(schema)
        spark_type(json_column(parse_schemas(json.dumps(schema)), random.choice([-1, 1, 3]))).json()
        return {"accepted": 1}

    yield attempt


SCHEMAS = {
    "avro_schemas": Kind("schemas of Avro with messages", avro),
    "json_schemas": Kind("JSON Schemas", json_schemas),
}
