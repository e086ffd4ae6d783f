"""Random Avro schemas with values, and the decoder for a schema with its oracle."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import strategies as st

from connectors.avro.decoder.batches import AvroDecoder
from connectors.avro.options import parse_avro_options
from connectors.avro.schema.parser import parse_schema
from connectors.avro.schema.plan import compile_plan
from connectors.avro.schema.types import arrow_type, spark_type
from connectors.core.functions.bad_rows import Decoded
from tests.support.avro_rows import RowBatchDecoder


def decoders(
    schema: Any, reader: Any = None, options: Mapping[str, str] | None = None
) -> dict[str, AvroDecoder | RowBatchDecoder]:
    """Return the decoder, and the oracle, which reads message by message; schemas as JSON values."""
    parsed = parse_avro_options(options or {"mode": "PERMISSIVE"}, "from_avro")
    writer = parse_schema(json.dumps(schema), "test")
    expected = writer if reader is None else parse_schema(json.dumps(reader), "test")
    kind = spark_type(expected, parsed)
    plan = compile_plan(writer, expected, kind, parsed)
    strict = parsed.datetime_rebase_mode.value == "exception"
    return {
        "rows": RowBatchDecoder(plan, arrow_type(kind), strict=strict),
        "columns": AvroDecoder(plan, arrow_type(kind), strict=strict),
    }


def decode(messages: list[bytes | None], schema: Any, reader: Any = None, **options: str) -> Decoded:
    """Decode by both kinds, which must agree; return what they give."""
    column = pa.array(messages, pa.binary())
    results = [each.decode(column) for each in decoders(schema, reader, {"mode": "PERMISSIVE", **options}).values()]
    for each in results:
        each.values.validate(full=True)
    first, second = (plain(each.values.to_pylist()) for each in results)
    assert repr(first) == repr(second), [each.errors for each in results]
    assert results[0].values.type == results[1].values.type
    assert results[0].errors == results[1].errors
    return results[1]


def plain(value: Any) -> Any:
    """Return a value with maps in the order of their keys: Avro says nothing of it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return sorted((key, repr(plain(item))) for key, item in value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def encode(schema: Any, datum: Any) -> bytes:
    """Return the message that fastavro writes."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), datum)
    return buffer.getvalue()


@dataclass(frozen=True)
class Case:
    """A schema, and pairs of what fastavro is given and what Spark would have."""

    schema: Any
    values: st.SearchStrategy[tuple[Any, Any]]


def _same(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return values.map(lambda value: (value, value))


_FLOATS = st.floats(width=32, allow_nan=False)
_PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": _FLOATS,
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
}


class Schemas:
    """Makes random schemas; each named type has another name."""

    def __init__(self) -> None:
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"T{self._count}"

    def make(self, draw: Any, depth: int) -> Case:
        kinds = [*_PRIMITIVES, "enum", "fixed"]
        if depth:
            kinds += ["array", "map", "record", "nullable", "union"] * 2
        kind = draw(st.sampled_from(kinds))
        if kind in _PRIMITIVES:
            return Case(kind, _same(_PRIMITIVES[kind]))
        return getattr(self, f"_{kind}")(draw, depth - 1)

    def _enum(self, draw: Any, depth: int) -> Case:  # noqa: ARG002 - as the others
        symbols = [f"S{number}" for number in range(draw(st.integers(1, 4)))]
        return Case({"type": "enum", "name": self._name(), "symbols": symbols}, _same(st.sampled_from(symbols)))

    def _fixed(self, draw: Any, depth: int) -> Case:  # noqa: ARG002 - as the others
        size = draw(st.integers(1, 20))
        schema = {"type": "fixed", "name": self._name(), "size": size}
        return Case(schema, _same(st.binary(min_size=size, max_size=size)))

    def _array(self, draw: Any, depth: int) -> Case:
        inner = self.make(draw, depth)
        values = st.lists(inner.values, max_size=5).map(lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs]))
        return Case({"type": "array", "items": inner.schema}, values)

    def _map(self, draw: Any, depth: int) -> Case:
        inner = self.make(draw, depth)
        values = st.dictionaries(_PRIMITIVES["string"], inner.values, max_size=4).map(
            lambda pairs: ({k: a for k, (a, _) in pairs.items()}, [(k, b) for k, (_, b) in pairs.items()])
        )
        return Case({"type": "map", "values": inner.schema}, values)

    def _record(self, draw: Any, depth: int) -> Case:
        parts = {f"f{number}": self.make(draw, depth) for number in range(draw(st.integers(0, 4)))}
        fields = [{"name": name, "type": part.schema} for name, part in parts.items()]
        values = st.fixed_dictionaries({name: part.values for name, part in parts.items()}).map(
            lambda pairs: ({k: a for k, (a, _) in pairs.items()}, {name: pairs[name][1] for name in parts})
        )
        return Case({"type": "record", "name": self._name(), "fields": fields}, values)

    def _nullable(self, draw: Any, depth: int) -> Case:
        inner = self._record(draw, depth) if draw(st.booleans()) else self._enum(draw, depth)
        if isinstance(inner.schema, dict) and draw(st.booleans()):
            inner = Case("string", _same(_PRIMITIVES["string"]))
        branches = draw(st.permutations(["null", inner.schema]))
        return Case(branches, st.one_of(st.just((None, None)), inner.values))

    def _union(self, draw: Any, depth: int) -> Case:
        cases = [Case(kind, _same(_PRIMITIVES[kind])) for kind in ("boolean", "string", "bytes", "long")]
        cases = draw(st.permutations([*cases, self._record(draw, depth)]))[: draw(st.integers(2, 5))]
        names = [f"member{place}" for place in range(len(cases))]
        choices = []
        for place, case in enumerate(cases):

            def chosen(pair: tuple[Any, Any], place: int = place, case: Case = case) -> tuple[Any, Any]:
                datum, expected = pair
                tagged = (case.schema["name"], datum) if isinstance(case.schema, dict) else datum
                return tagged, {name: expected if name == names[place] else None for name in names}

            choices.append(case.values.map(chosen))
        schema = [case.schema for case in cases]
        if draw(st.booleans()):
            return Case(["null", *schema], st.one_of(st.just((None, None)), *choices))
        return Case(schema, st.one_of(*choices))


@st.composite
def batches(draw: Any, depth: int = 3) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return a schema and values."""
    case = Schemas().make(draw, depth)
    return case.schema, draw(st.lists(case.values, min_size=1, max_size=12))
