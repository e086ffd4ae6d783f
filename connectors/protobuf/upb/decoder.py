"""The reference decoder: messages parsed by protobuf's own parser (upb).

The rules are those of Spark's ``ProtobufDeserializer.scala`` and ``ProtobufDataToCatalyst.scala``. `UpbDecoder` builds
columns, field by field; `AdaptiveDecoder` takes it for small batches.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from connectors.core.functions.bad_rows import BadRowError, Decoded
from connectors.core.functions.columns import bitmap, list_array, map_array, offsets_of, struct_array
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import Schema
from connectors.protobuf.schema.plan import UNSIGNED_BITS, FieldPlan, MessagePlan, Shape, ValueKind, as_signed
from connectors.protobuf.upb.any_json import AnyPrinter
from connectors.protobuf.upb.declarations import WIRE_GROUP, WireForm, check_field_numbers, messages_in, wire_name
from connectors.protobuf.upb.places import location

Convert = Callable[[Any], Any]

_MICROS: Final = 1_000_000
_LARGEST: Final = 2**63 - 1
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
# Measured, with 5 to 2,000 columns: the number of columns does not move where the two decoders meet.
_MOST_BY_UPB: Final = 64
_MOST_BYTES: Final = 256  # of a column, where fields are repeated: one row may hold very many values


class Decoder(Protocol):
    """Turns messages into structs."""

    def decode(self, messages: pa.Array) -> Decoded:
        """Decode a binary array; never raises for what is in a row."""


def _micros_of(field: FieldPlan) -> Convert:
    """Return the function from a time to microseconds, with the rest of the nanoseconds cut off towards zero."""
    kind = field.kind.value
    first, second = (wire_name(part.number) for part in field.children)

    def micros_of(time: Message) -> int:
        seconds, nanos = as_signed(getattr(time, first), 64), as_signed(getattr(time, second), 32)
        micros = seconds * _MICROS + (nanos // 1000 if nanos >= 0 else -(-nanos // 1000))
        if not -_LARGEST - 1 <= micros <= _LARGEST:
            raise BadRowError(f"long overflow: {kind} of {seconds} seconds")
        return micros

    return micros_of


def is_zero(value: Any) -> bool:
    """Return whether a value without presence counts as absent: -0.0 does not."""
    return not value and not (isinstance(value, float) and math.copysign(1.0, value) < 0)


def lenient_text(data: bytes) -> str:
    """Return text with U+FFFD for what is not UTF-8, as Java puts it: one for a surrogate, where Python puts three."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


class UpbDecoder:
    """Decodes column by column; the plan and the wire form are those of one message."""

    def __init__(self, plan: MessagePlan, wire: WireForm, schema: Schema, options: ProtobufOptions) -> None:
        self._plan = plan
        self._type = plan.arrow_type
        self._wire = wire
        self._names = {field.number: field.name for field in plan.fields}
        self.any_text = AnyPrinter(schema, enums_as_ints=options.enums_as_ints).text

    def parse(self, data: bytes, *, groups: bool = True, whole: bool = True) -> Message:
        """Parse a message, with the checks that Spark makes; BadRowError if they fail.

        A part of a message is not `whole`, and may lack required fields.

        Only in the root may no unknown field have the number of a declared one (another wire type, or an unknown value
        of a closed enum). With `groups`, unknown groups hold no field number 0, for which upb does not look there.
        """
        try:
            message = self._wire.root.FromString(data)
        except DecodeError as error:
            reason = str(error).rpartition(": ")[2]
            raise BadRowError(f"cannot be parsed: {reason}") from error
        if whole and self._wire.has_required and not message.IsInitialized():
            raise BadRowError(f"Message missing required fields: {self._wire.missing_fields(message)}")
        for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]
            if unknown.field_number in self._wire.numbers:
                name = self._names.get(unknown.field_number, f"number {unknown.field_number}")
                raise BadRowError(f"[PROTOBUF_FIELD_TYPE_MISMATCH] Type mismatch encountered for field: {name}")
            if unknown.wire_type == WIRE_GROUP:
                check_field_numbers(unknown.data)
        if groups and self._wire.nested:
            message.DiscardUnknownFields()
            if len(message.SerializePartialToString()) != len(data):  # most often equal: then nothing was unknown
                for inner in messages_in(self._wire.root.FromString(data)):
                    check_field_numbers(UnknownFieldSet(inner))
        return message

    def check(self, data: bytes, *, groups: bool = True) -> bool:
        try:
            self.parse(data, groups=groups)
        except BadRowError:
            return False
        return True

    def decode(self, messages: pa.Array) -> Decoded:
        parsed: list[Message | None] = []
        errors: dict[int, str] = {}
        parse_part = partial(self.parse, whole=False)
        for row, data in enumerate(messages.to_pylist()):
            try:
                parsed.append(None if data is None else self.parse(data))
            except BadRowError as error:
                errors[row] = str(error) + location(data, self._wire, parse_part)
                parsed.append(None)
        try:
            return Decoded(self._structs(parsed), errors)
        except BadRowError:
            bad = dict[int, str]()
            self._drop_bad(parsed, bad, 0, len(parsed))
            for row, reason in bad.items():
                errors[row] = reason + location(
                    messages[row].as_py(), self._wire, lambda part: self._structs([parse_part(part)])
                )
            return Decoded(self._structs(parsed), errors)

    def _drop_bad(self, parsed: list[Message | None], errors: dict[int, str], start: int, end: int) -> None:
        """Find by halves the messages that parse and do not convert, and put None in their place."""
        try:
            self._structs(parsed[start:end])
        except BadRowError as error:
            if end - start == 1:
                parsed[start], errors[start] = None, str(error)
                return
            middle = (start + end) // 2
            self._drop_bad(parsed, errors, start, middle)
            self._drop_bad(parsed, errors, middle, end)

    def _structs(self, messages: Sequence[Message | None]) -> pa.StructArray:
        return self._struct(self._type, None if self._plan.dummy else self._plan.fields, messages)

    def _struct(
        self, kind: pa.StructType, fields: Sequence[FieldPlan] | None, messages: Sequence[Message | None]
    ) -> pa.StructArray:
        """Return messages as structs; without fields those of an empty message, with the dummy column."""
        validity = bitmap(np.fromiter((message is not None for message in messages), np.bool_, len(messages)))
        if fields is None:
            columns = [pa.nulls(len(messages), pa.string())]
        else:
            columns = [self._column(field, messages) for field in fields]
        return struct_array(kind, columns, len(messages), validity)

    def _column(self, field: FieldPlan, messages: Sequence[Message | None]) -> pa.Array:
        name = wire_name(field.number)
        if field.shape is Shape.SINGULAR:
            return self._convert(field, _singular(field, messages))
        lists = [() if message is None else getattr(message, name) for message in messages]
        offsets = offsets_of([len(values) for values in lists])
        flat = [value for values in lists for value in values]
        if field.shape is Shape.REPEATED:
            return list_array(field.arrow_type, offsets, self._convert(field, flat))
        key, value = field.children
        keys = self._convert(key, [entry.f1 for entry in flat])
        return map_array(field.arrow_type, offsets, keys, self._convert(value, [entry.f2 for entry in flat]))

    def _convert(self, field: FieldPlan, values: list[Any]) -> pa.Array:
        """Convert values of upb, or None, to the Arrow array of one value each."""
        match field.kind:
            case ValueKind.MESSAGE:
                return self._struct(field.value_arrow, field.children, values)
            case ValueKind.EMPTY:
                return self._struct(field.value_arrow, None, values)
            case ValueKind.WRAPPER:
                return self._convert(field.children[0], _singular(field.children[0], values))
            case ValueKind.TIMESTAMP | ValueKind.DURATION:
                micros_of = _micros_of(field)
                micros = [None if time is None else micros_of(time) for time in values]
                return pa.array(micros, pa.int64()).view(field.value_arrow)
        convert = self.any_text if field.kind is ValueKind.ANY_JSON else _scalar_conversion(field)
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, field.value_arrow)


def _singular(field: FieldPlan, messages: Sequence[Message | None]) -> list[Any]:
    name, absent = wire_name(field.number), field.zero if field.emit_zero else field.upb_default
    if field.presence:
        return [
            None if message is None else getattr(message, name) if message.HasField(name) else absent
            for message in messages
        ]
    values = [None if message is None else getattr(message, name) for message in messages]
    if absent is not None:
        return values
    return [None if value is None or is_zero(value) else value for value in values]


def _scalar_conversion(field: FieldPlan) -> Convert | None:
    """Return the function from a scalar of upb to what Arrow takes; None where it takes the same."""
    if field.enum is not None and pa.types.is_string(field.value_arrow):
        return field.enum.text
    if field.lenient:
        return lenient_text
    if pa.types.is_decimal(field.value_arrow):
        return Decimal
    bits = UNSIGNED_BITS.get(field.proto_type)
    if bits is not None and field.value_arrow.bit_width == bits:
        limit = 1 << (bits - 1)
        return lambda value: value - 2 * limit if value >= limit else value
    return None


class AdaptiveDecoder:
    """Decodes each batch by the decoder that is the fastest for its size; `columns` builds that for many rows."""

    def __init__(self, plan: MessagePlan, upb: UpbDecoder, columns: Callable[[], Decoder]) -> None:
        self._upb = upb
        self._many = cache(columns)
        count, repeats = _measure(plan.fields)
        self._most_bytes = count * _MOST_BYTES if repeats else None

    def decode(self, messages: pa.Array) -> Decoded:
        return self.chosen(messages).decode(messages)

    def chosen(self, messages: pa.Array) -> Decoder:
        if len(messages) <= _MOST_BY_UPB and (self._most_bytes is None or messages.nbytes <= self._most_bytes):
            return self._upb
        return self._many()


def _measure(fields: Sequence[FieldPlan]) -> tuple[int, bool]:
    """Return how many columns there are, also those of structs, and whether any is repeated."""
    count, repeats = len(fields), any(field.shape is not Shape.SINGULAR for field in fields)
    for field in fields:
        inner, below = _measure(field.children)
        count, repeats = count + inner, repeats or below
    return count, repeats
