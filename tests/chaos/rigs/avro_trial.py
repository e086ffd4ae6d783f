"""A trial of ``./dev chaos avro``: random schemas, values and garbage, read and written by us, by fastavro and by Java.

What Java's Avro reads is what must be in our columns, and what it refuses must be a bad row; fastavro must agree about
all messages that nobody has damaged. What we write must be read by both. In each comparison faults are planted, too,
and one that it does not see is a fault of the trial.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError

from connectors.avro.errors import AvroAnalysisError, AvroDataError
from connectors.avro.functions import decode_call
from connectors.avro.options import parse_avro_options
from connectors.avro.worker import DecodeCall, EncodeCall
from tests.chaos.rigs.avro_forms import (
    NotInSparkError,
    from_fastavro,
    from_java,
    normal,
    plain_type,
    spark_form,
    to_fastavro,
)
from tests.chaos.rigs.avro_schemas import (
    SPACES,
    Aliased,
    Resolution,
    Schemas,
    Values,
    has_promotable_union,
    kind_of,
    rendered,
)
from tests.support.clients import as_bytes, as_field, run_java_client

__all__ = ["Batch", "Codec", "differing", "plants", "run_trial"]

_BATCHES = (25, 100)
"""Sizes of batches in turn: up to 64 messages are decoded row by row, more in columns."""
_SHOWN = 5
_SHOWN_BEFORE, _SHOWN_LETTERS = 30, 100
_BAD = object()
"""Stands for a message that cannot be read."""
_NOT_IN_FASTAVRO = object()
"""Stands for one that fastavro cannot read, or reads in another way than Java.

It fails where a named type stands with its name in one schema and with its definition in the other, and of the branches
of the reader's union it takes the first that the value can be promoted to, where Java takes the writer's own.
"""


class Codec:
    """Our functions, as the workers of Spark call them."""

    def decode(self, writer: str, messages: pa.Array, reader: str | None = None, **options: str) -> pa.Array:
        """Return what `from_avro` gives for a batch."""
        given = options | ({} if reader is None else {"avroSchema": reader})
        return decode_call(writer, given)[0](messages)

    def encode(self, schema: str, column: pa.Array) -> pa.Array:
        """Return what `to_avro` gives for a batch."""
        return EncodeCall(schema)(pa.StructArray.from_arrays([column], ["value"]))


@dataclass(eq=False)
class Batch:
    """Messages of a writer, and the schema that a reader has.

    Attributes:
        writer: the schema of all messages, in the form of `Schemas`.
        reader: another one, or the same.
        values: of the messages, in the form of `Values`.
        messages: what fastavro has written, some of it damaged; None for NULL.
        damaged: the numbers of the messages that were damaged.
        with_errors: whether bad rows are asked for in a column.
        odd: whether its aliases or defaults are such that only Java is asked.
    """

    writer: Any
    reader: Any
    values: list[Any]
    messages: list[bytes | None]
    damaged: set[int]
    with_errors: bool
    odd: bool = False

    @classmethod
    def make(cls, chance: Random, size: int) -> Batch:
        """Return a random batch."""
        spaces = SPACES if chance.random() < 0.6 else ()
        writer = Schemas(chance, spaces).root()
        resolves, odd = chance.random() < 0.6, False
        reader = writer
        if resolves and chance.random() < 0.2:
            aliased, odd = Aliased(chance), True
            writer = aliased.of(writer, "as it is written")
            reader = aliased.of(writer, "as it is read")
        elif resolves:
            resolution = Resolution(chance, spaces)
            reader, odd = resolution.of(writer), resolution.odd
        makes = Values(chance, plain=resolves)
        values = [makes.of(writer) for _ in range(size)]
        parsed = fastavro.parse_schema(rendered(writer, logical=False))
        messages = [_written(parsed, to_fastavro(writer, value)) for value in values]
        damaged = set[int]()
        if chance.random() < 0.5:
            damaged = {number for number in range(size) if messages[number] and chance.random() < 0.4}
        rows: list[bytes | None] = [
            _damaged(chance, message) if number in damaged else message for number, message in enumerate(messages)
        ]
        for number in range(size):
            if chance.random() < 0.02 and number not in damaged:
                rows[number] = None
        return cls(writer, reader, values, rows, damaged, chance.random() < 0.5, odd)

    @property
    def resolves(self) -> bool:
        """Whether the reader's schema is another one."""
        return self.reader is not self.writer

    def texts(self) -> tuple[str, str]:
        """Return the schemas of writer and reader."""
        return json.dumps(rendered(self.writer)), json.dumps(rendered(self.reader))

    def rows(self, values: Sequence[Any]) -> list[Any]:
        """Return what is in the column for values in the common form: of a bad record a struct of NULLs."""
        is_record = kind_of(self.reader) == "record"
        bad = dict.fromkeys(each["name"] for each in self.reader["fields"]) if is_record else None
        return [bad if value is _BAD else value for value in values]


@dataclass
class _Checks:
    """The comparisons of a trial."""

    chance: Random
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def same(self, what: str, expected: Sequence[Any], found: Sequence[Any]) -> None:
        """Compare rows; then plant faults into them, which must be seen."""
        self.counts["compared"] += len(expected)
        wrong = differing(expected, found)
        self.counts["wrong"] += len(wrong)
        for number in wrong[:_SHOWN]:
            self.fault(f"{what}, row {number}: {_difference(expected, found, number)}")
        for name, planted in plants(self.chance, expected):
            self.counts["planted"] += 1
            if differing(expected, planted):
                self.counts["planted_seen"] += 1
            else:
                self.fault(f"{what}: a planted fault was not seen: {name}")

    def fault(self, text: str) -> None:
        """Note what is wrong."""
        self.faults.append(text)


def run_trial(seed: int, rows: int, codec: Codec | None = None) -> dict[str, Any]:
    """Run a trial of so many rows; return its outcome.

    Args:
        seed: of all that is random.
        rows: in batches of 25 and 100.
        codec: another one than ours, to show that what is wrong is seen.
    """
    chance = Random(seed)
    batches: list[Batch] = []
    while left := rows - sum(len(batch.values) for batch in batches):
        batches.append(Batch.make(chance, min(left, _BATCHES[len(batches) % 2])))
    codec = Codec() if codec is None else codec
    written = [_write(codec, batch) for batch in batches]
    java = _java(batches, written)
    checks = _Checks(chance)
    for number, (batch, ours, (read, read_ours)) in enumerate(zip(batches, written, java, strict=True)):
        _check_reading(f"schema {number}", batch, codec, read, checks)
        _check_writing(f"schema {number}", batch, ours, read_ours, checks)
        checks.counts.update(rows=len(batch.values), schemas=1, resolved=batch.resolves, damaged=len(batch.damaged))
    return {"ok": not checks.faults, "faults": checks.faults[:_SHOWN], "counts": dict(checks.counts)}


def _written(parsed: Any, datum: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, datum)
    return buffer.getvalue()


def _damaged(chance: Random, message: bytes) -> bytes:
    """Return a message that is cut, or has other bytes at random places."""
    place = chance.randrange(len(message))
    change = chance.randrange(4)
    if change == 0:
        return message[:place]
    if change == 1:
        return message[:place] + chance.randbytes(chance.randint(1, 10)) + message[place:]
    if change == 2:
        return chance.randbytes(chance.randrange(40))
    changed = bytearray(message)
    for _ in range(chance.randint(1, 3)):
        changed[chance.randrange(len(message))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    return bytes(changed)


def _write(codec: Codec, batch: Batch) -> list[bytes]:
    """Return the messages that we write of the values of a batch."""
    schema = json.dumps(rendered(batch.writer))
    kind = DecodeCall(schema, parse_avro_options({"mode": "PERMISSIVE"}, "from_avro"))(pa.array([], pa.binary())).type
    forms = [spark_form(batch.writer, value) for value in batch.values]
    return list(codec.encode(schema, pa.array(forms, plain_type(kind)).cast(kind)).to_pylist())


JavaRows = list[tuple[Any, bytes | None]]
"""What Java has read in the common form or `_BAD`, and what it writes of it."""


def _java(batches: Sequence[Batch], written: Sequence[Sequence[bytes]]) -> list[tuple[JavaRows, JavaRows]]:
    """Return what Java reads of the messages of each batch, and of those that we have written."""
    lines: list[list[str]] = []
    for batch, ours in zip(batches, written, strict=True):
        writer, reader = (as_field(text.encode()) for text in batch.texts())
        lines.append(["schemas", writer, reader])
        lines += [["read", as_field(message)] for message in batch.messages if message is not None]
        lines.append(["schemas", writer, writer])
        lines += [["read", as_field(message)] for message in ours]
    answers = iter(run_java_client("avro", "AvroClient", [], lines))

    def row(schema: Any, message: bytes | None) -> tuple[Any, bytes | None]:
        if message is None:
            return None, None
        outcome, *fields = next(answers)
        if outcome != "value":
            return _BAD, None
        return from_java(schema, json.loads(fields[0])), as_bytes(fields[1])

    return [
        (
            [row(batch.reader, message) for message in batch.messages],
            [row(batch.writer, message) for message in ours],
        )
        for batch, ours in zip(batches, written, strict=True)
    ]


def _check_reading(what: str, batch: Batch, codec: Codec, java: JavaRows, checks: _Checks) -> None:
    """Compare what we read of a batch with what Java and fastavro read."""
    writer, reader = batch.texts()
    values = [_form(batch.reader, message, value) for message, (value, _) in zip(batch.messages, java, strict=True)]
    expected = batch.rows(values)
    bad = [number for number, value in enumerate(values) if value is _BAD]
    checks.counts["bad_rows"] += len(bad)
    messages = pa.array(batch.messages, pa.binary())
    given = {"reader": reader if batch.resolves else None}
    permissive = {"mode": "PERMISSIVE", **({"on.error": "column"} if batch.with_errors else {})}
    try:
        decoded = codec.decode(writer, messages, **given, **permissive)
    except AvroAnalysisError as error:
        checks.counts["refused"] += 1
        if len(bad) < len(values) - batch.messages.count(None):
            checks.fault(f"{what}: refused, and Java reads it: {error}")
        return
    checks.counts["odd"] += batch.odd
    if batch.with_errors:
        found = [number for number, error in enumerate(decoded.field("error").to_pylist()) if error is not None]
        if found != bad:
            checks.fault(f"{what}: rows {bad[:_SHOWN]} are bad, and rows {found[:_SHOWN]} have an error")
        decoded = decoded.field("value")
    checks.same(f"{what}, read", expected, _rows(decoded))
    clean = [number for number in range(len(values)) if number not in batch.damaged]
    read = {number: _read_by_fastavro(batch, number) for number in clean}
    theirs = {number: value for number, value in read.items() if value is not _NOT_IN_FASTAVRO}
    checks.counts["not_in_fastavro"] += len(read) - len(theirs)
    checks.same(f"{what}, fastavro", [expected[number] for number in theirs], batch.rows([*theirs.values()]))
    _check_failfast(what, messages, bad, _rows(decoded), lambda: codec.decode(writer, messages, **given), checks)
    again = [number for number in clean if java[number][1] is not None]
    blocks = codec.decode(reader, pa.array([java[number][1] for number in again], pa.binary()))
    checks.same(f"{what}, Java's message read", [expected[number] for number in again], _rows(blocks))


def _check_failfast(
    what: str, messages: pa.Array, bad: Sequence[int], permissive: list[Any], decode: Any, checks: _Checks
) -> None:
    """Decode with FAILFAST: the first bad row is named, or there is none."""
    try:
        decoded = decode()
    except AvroDataError as error:
        named = f"row {bad[0]} of the batch" if bad else "no row"
        if error.code != "MALFORMED_AVRO_MESSAGE" or named not in str(error):
            checks.fault(f"{what}: FAILFAST names {named}: {error}")
        checks.counts["failfast"] += 1
        return
    if bad:
        checks.fault(f"{what}: FAILFAST reads {len(messages)} rows, of which {len(bad)} are bad")
    checks.same(f"{what}, FAILFAST", permissive, _rows(decoded))


def _check_writing(what: str, batch: Batch, ours: Sequence[bytes], java: JavaRows, checks: _Checks) -> None:
    """Compare what Java and fastavro read of our messages with the values that were written."""
    expected = [spark_form(batch.writer, value) for value in batch.values]
    by_java = [_BAD if value is _BAD else spark_form(batch.writer, value) for value, _ in java]
    checks.same(f"{what}, written, read by Java", expected, by_java)
    parsed = fastavro.parse_schema(rendered(batch.writer, logical=False))
    by_fastavro = [_form(batch.writer, message, _fastavro(parsed, None, message, batch.writer)) for message in ours]
    checks.same(f"{what}, written, read by fastavro", expected, by_fastavro)


def _form(schema: Any, message: bytes | None, value: Any) -> Any:
    if message is None or value is _BAD or value is _NOT_IN_FASTAVRO:
        return value
    try:
        return spark_form(schema, value)
    except NotInSparkError:
        return _BAD


def _read_by_fastavro(batch: Batch, number: int) -> Any:
    message = batch.messages[number]
    if message is None:
        return None
    if batch.odd or (batch.resolves and has_promotable_union(batch.reader)):
        return _NOT_IN_FASTAVRO
    writer, reader = (fastavro.parse_schema(rendered(each, logical=False)) for each in (batch.writer, batch.reader))
    value = _fastavro(writer, reader if batch.resolves else None, message, batch.reader)
    return _form(batch.reader, message, value)


def _fastavro(writer: Any, reader: Any, message: bytes, schema: Any) -> Any:
    try:
        value = fastavro.schemaless_reader(io.BytesIO(message), writer, reader, return_named_type=True)
    except TypeError:
        return _NOT_IN_FASTAVRO
    except (SchemaResolutionError, EOFError, ValueError, IndexError):
        return _BAD
    return from_fastavro(schema, value)


def _rows(decoded: pa.Array) -> list[Any]:
    plain = decoded.cast(plain_type(decoded.type))
    plain.validate(full=True)
    return list(plain.to_pylist())


def differing(expected: Sequence[Any], found: Sequence[Any]) -> list[int]:
    """Return the numbers of the rows that are not the same; all, if one side has others."""
    if len(expected) != len(found):
        return list(range(max(len(expected), len(found))))
    return [
        number
        for number, (one, other) in enumerate(zip(expected, found, strict=True))
        if repr(normal(one)) != repr(normal(other))
    ]


def _difference(expected: Sequence[Any], found: Sequence[Any], number: int) -> str:
    """Return where two rows begin to differ."""
    one, other = (repr(normal(rows[number])) if number < len(rows) else "no row" for rows in (expected, found))
    same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    shown = slice(max(0, same - _SHOWN_BEFORE), same + _SHOWN_LETTERS)
    return f"{one[shown]} expected, {other[shown]} found"


def plants(chance: Random, rows: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Return the rows with one fault each: a changed value, a row too few, one that is NULL, two in the wrong order."""
    if not rows:
        return
    number = chance.randrange(len(rows))
    yield "a changed value", [*rows[:number], _changed(chance, rows[number]), *rows[number + 1 :]]
    yield "a row too few", [*rows[:number], *rows[number + 1 :]]
    if rows[number] is not None:
        yield "a row that is NULL", [*rows[:number], None, *rows[number + 1 :]]
    if number + 1 < len(rows) and differing(rows[number : number + 1], rows[number + 1 : number + 2]):
        yield "neighbours in the wrong order", [*rows[:number], rows[number + 1], rows[number], *rows[number + 2 :]]


def _changed(chance: Random, value: Any) -> Any:
    """Return another value, with one change at a random place in it."""
    if isinstance(value, dict):
        key = chance.choice(list(value))
        return {**value, key: _changed(chance, value[key])}
    if isinstance(value, list) and value:
        place = chance.randrange(len(value))
        item = value[place]
        changed = (item[0], _changed(chance, item[1])) if isinstance(item, tuple) else _changed(chance, item)
        return [*value[:place], changed, *value[place + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return -0.0 if repr(value) == "0.0" else 0.0
    if isinstance(value, bytes):
        return value + b"x"
    return value + 1 if isinstance(value, int) else b"planted"
