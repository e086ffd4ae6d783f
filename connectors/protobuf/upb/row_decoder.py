"""The codec for a few rows: each message becomes one dictionary, and Arrow makes all columns of them in one call.

The other codecs work column by column, which pays with many rows only: for one row of 500 columns they make 500 arrays.
`AdaptiveDecoder` chooses for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import Message

from connectors.protobuf.batch_result import BadRowError, Decoded, Decoder
from connectors.protobuf.schema.plan import FieldPlan, Kind, MessagePlan, Shape
from connectors.protobuf.upb.declarations import wire_name
from connectors.protobuf.upb.decoder import PlainDecoder, checked_micros, is_zero, scalar_conversion, zero_of

__all__ = ["AdaptiveDecoder", "RowDecoder"]

Convert = Callable[[Any], Any]

# Measured, with 5 to 2,000 columns: the number of columns does not move where the three codecs meet.
_MOST_BY_ROW: Final = 8
_MOST_BY_UPB: Final = 64
_MOST_BYTES: Final = 256
"""Of a column, where fields are repeated: there, many bytes may be many values, also in one row."""


class RowDecoder:
    """Decodes by upb, row by row.

    Args:
        plan: the plan; not that of an empty message.
        plain: the reference decoder of the same plan, which parses.
    """

    def __init__(self, plan: MessagePlan, plain: PlainDecoder) -> None:
        self._type = plan.arrow_type
        self._parse = plain.parse
        self._any_text = plain.any_text
        self._row = self._message(plan.fields)

    def decode(self, messages: pa.Array) -> Decoded:
        """See `connectors.protobuf.batch_result.Decoder.decode`."""
        rows: list[dict[str, Any] | None] = []
        errors: dict[int, str] = {}
        for number, data in enumerate(messages.to_pylist()):
            try:
                rows.append(None if data is None else self._row(self._parse(data)))
            except BadRowError as error:
                errors[number] = str(error)
                rows.append(None)
        return Decoded(pa.array(rows, self._type), errors)

    def _message(self, fields: Sequence[FieldPlan]) -> Callable[[Message], dict[str, Any]]:
        """Return the function from a message to what Arrow takes for a struct, which may leave out what is NULL."""
        absent: dict[str, Any] = {}
        known: dict[int, tuple[str, Convert | None, bool]] = {}
        for field in fields:
            convert = self._conversion(field)
            singular = field.shape is Shape.SINGULAR
            if not singular:
                absent[field.name] = []
            elif field.kind in {Kind.SCALAR, Kind.ENUM}:
                value = zero_of(field) if field.emit_zero else field.default
                if value is not None:
                    value = value.encode() if field.lenient and isinstance(value, str) else value
                    absent[field.name] = value if convert is None else convert(value)
            known[field.number] = field.name, convert, singular and not field.presence

        def row(message: Message) -> dict[str, Any]:
            made = absent.copy()
            for descriptor, value in message.ListFields():
                found = known.get(descriptor.number)
                if found is None:
                    continue
                name, convert, zero_is_absent = found
                if zero_is_absent and not value and is_zero(value):
                    continue
                made[name] = value if convert is None else convert(value)
            return made

        return row

    def _conversion(self, field: FieldPlan) -> Convert | None:
        """Return the function from what upb has in a field to what Arrow takes; None where it takes the same."""
        if field.shape is Shape.MAP:
            key, value = (self._part(part) for part in field.children)
            return lambda entries: [(key(entry), value(entry)) for entry in entries]
        convert = self._value(field)
        if field.shape is Shape.SINGULAR:
            return convert
        return list if convert is None else lambda values: list(map(convert, values))

    def _part(self, field: FieldPlan) -> Convert:
        """Return the function from an entry of a map to its key or value, which is never NULL."""
        name, convert = wire_name(field.number), self._value(field)
        return lambda entry: getattr(entry, name) if convert is None else convert(getattr(entry, name))

    def _value(self, field: FieldPlan) -> Convert | None:  # noqa: PLR0911 - one for each kind
        match field.kind:
            case Kind.MESSAGE:
                return self._message(field.children)
            case Kind.EMPTY:
                return lambda _: {}
            case Kind.TIMESTAMP | Kind.DURATION:
                kind = field.kind.value
                first, second = (wire_name(part.number) for part in field.children)
                return lambda time: checked_micros(getattr(time, first), getattr(time, second), kind)
            case Kind.WRAPPER:
                inner, name = self._message(field.children), field.children[0].name
                return lambda wrapper: inner(wrapper).get(name)
            case Kind.ANY_JSON:
                return self._any_text
            case Kind.ENUM if pa.types.is_string(field.value_arrow) and field.enum is not None:
                return field.enum.text
            case _:
                return scalar_conversion(field)


class AdaptiveDecoder:
    """Decodes each batch by the codec that is the fastest for its size.

    Args:
        plan: the plan; not that of an empty message.
        plain: the reference decoder of the same plan.
        columns: builds the decoder for many rows, when they first come.
    """

    def __init__(self, plan: MessagePlan, plain: PlainDecoder, columns: Callable[[], Decoder]) -> None:
        self._few = RowDecoder(plan, plain)
        self._plain = plain
        self._make = columns
        self._many: Decoder | None = None
        count, repeats = _measure(plan.fields)
        self._most_bytes = count * _MOST_BYTES if repeats else None

    def decode(self, messages: pa.Array) -> Decoded:
        """See `connectors.protobuf.batch_result.Decoder.decode`."""
        return self.chosen(messages).decode(messages)

    def chosen(self, messages: pa.Array) -> Decoder:
        """Return the decoder for a batch."""
        if len(messages) <= _MOST_BY_UPB and (self._most_bytes is None or messages.nbytes <= self._most_bytes):
            return self._few if len(messages) <= _MOST_BY_ROW else self._plain
        if self._many is None:
            self._many = self._make()
        return self._many


def _measure(fields: Sequence[FieldPlan]) -> tuple[int, bool]:
    """Return how many columns there are, also those of structs, and whether any is repeated."""
    count, repeats = len(fields), any(field.shape is not Shape.SINGULAR for field in fields)
    for field in fields:
        inner, below = _measure(field.children)
        count, repeats = count + inner, repeats or below
    return count, repeats
