"""The reference codec: messages parsed by protobuf's own parser (upb), columns built field by field.

It says what is right; `connectors.protobuf.ptars.decoder` is compared with it. The rules are those of Spark's
``ProtobufDeserializer.scala`` and ``ProtobufDataToCatalyst.scala``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from connectors.protobuf.batch_result import BadRowError, Decoded
from connectors.protobuf.columns import bitmap, list_array, map_array, offsets_of, struct_array
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.schema.descriptors import Schema
from connectors.protobuf.schema.plan import FieldPlan, Kind, MessagePlan, Shape
from connectors.protobuf.upb.any_json import AnyPrinter
from connectors.protobuf.upb.declarations import WIRE_GROUP, WireForm, check_field_numbers, messages_in, wire_name

__all__ = ["PlainDecoder", "checked_micros", "is_zero", "lenient_text", "scalar_conversion", "zero_of"]

F: Final = FieldDescriptor
_MICROS: Final = 1_000_000
_LARGEST: Final = 2**63 - 1
_FLOATS: Final = {F.TYPE_FLOAT, F.TYPE_DOUBLE}
_UNSIGNED: Final = {F.TYPE_UINT32: 32, F.TYPE_FIXED32: 32, F.TYPE_UINT64: 64, F.TYPE_FIXED64: 64}


def checked_micros(seconds: int, nanos: int, kind: str) -> int:
    """Microseconds, with the rest of the nanoseconds cut off towards zero.

    Raises:
        BadRowError: they do not fit in 64 bits.
    """
    seconds, nanos = _signed(seconds, 64), _signed(nanos, 32)
    micros = seconds * _MICROS + (nanos // 1000 if nanos >= 0 else -(-nanos // 1000))
    if not -_LARGEST - 1 <= micros <= _LARGEST:
        raise BadRowError(f"long overflow: {kind} of {seconds} seconds")
    return micros


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) == 1 else value


def zero_of(field: FieldPlan) -> Any:
    """The value of a singular scalar that is absent."""
    if field.proto_type == F.TYPE_STRING:
        return b"" if field.lenient else ""
    if field.proto_type == F.TYPE_BYTES:
        return b""
    if field.proto_type in _FLOATS:
        return 0.0
    if field.enum is not None and field.enum.closed:
        return next(iter(field.enum.names))
    return False if field.proto_type == F.TYPE_BOOL else 0


def is_zero(value: Any) -> bool:
    """Whether a value without presence counts as absent: -0.0 does not."""
    return not value and not (isinstance(value, float) and math.copysign(1.0, value) < 0)


class PlainDecoder:
    """Decodes by upb.

    Args:
        plan: the plan.
        wire: the wire form of the same message.
        schema: its descriptor set, for what stands in an Any.
        options: the options of the call.
    """

    def __init__(self, plan: MessagePlan, wire: WireForm, schema: Schema, options: ProtobufOptions) -> None:
        self._plan = plan
        self._type = plan.arrow_type
        self._wire = wire
        self._names = {field.number: field.name for field in plan.fields}
        self.any_text = AnyPrinter(schema, enums_as_ints=options.enums_as_ints).text

    def parse(self, data: bytes, *, groups: bool = True) -> Message:
        """One message, with the checks that Spark makes.

        Args:
            data: its bytes.
            groups: whether to look into unknown groups for the field number 0, which upb does not.

        Raises:
            BadRowError: the bytes are malformed, a required field is missing, or an unknown field has the number of a
                known one (another wire type, or an unknown value of a closed enum); only the root is checked for that.
        """
        try:
            message = self._wire.root.FromString(data)
        except DecodeError as error:
            reason = str(error).rpartition(": ")[2]
            raise BadRowError(f"cannot be parsed: {reason}") from error
        if self._wire.has_required and not message.IsInitialized():
            missing = ", ".join(self._wire.readable(path) for path in message.FindInitializationErrors())  # type: ignore[attr-defined]
            raise BadRowError(f"Message missing required fields: {missing}")
        for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]
            if unknown.field_number in self._wire.known:
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
        """Whether `parse` accepts these bytes."""
        try:
            self.parse(data, groups=groups)
        except BadRowError:
            return False
        return True

    def decode(self, messages: pa.Array) -> Decoded:
        """See `connectors.protobuf.batch_result.Decoder.decode`."""
        parsed: list[Message | None] = []
        errors: dict[int, str] = {}
        for row, data in enumerate(messages.to_pylist()):
            try:
                parsed.append(None if data is None else self.parse(data))
            except BadRowError as error:
                errors[row] = str(error)
                parsed.append(None)
        try:
            return Decoded(self._structs(parsed), errors)
        except BadRowError:
            self._drop_bad(parsed, errors, 0, len(parsed))
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
        if self._plan.dummy:
            return self._dummies(self._type, messages)
        return self._struct(self._type, self._plan.fields, messages)

    def _struct(
        self, kind: pa.StructType, fields: Sequence[FieldPlan], messages: Sequence[Message | None]
    ) -> pa.StructArray:
        validity = bitmap(np.fromiter((each is not None for each in messages), np.bool_, len(messages)))
        return struct_array(kind, [self._column(field, messages) for field in fields], len(messages), validity)

    def _dummies(self, kind: pa.StructType, messages: Sequence[Message | None]) -> pa.StructArray:
        validity = bitmap(np.fromiter((each is not None for each in messages), np.bool_, len(messages)))
        return struct_array(kind, [pa.nulls(len(messages), pa.string())], len(messages), validity)

    def _column(self, field: FieldPlan, messages: Sequence[Message | None]) -> pa.Array:
        name = wire_name(field.number)
        if field.shape is Shape.SINGULAR:
            return self._convert(field, _singular(field, messages))
        lists = [() if each is None else getattr(each, name) for each in messages]
        offsets = offsets_of([len(each) for each in lists])
        flat = [item for each in lists for item in each]
        if field.shape is Shape.REPEATED:
            return list_array(field.arrow_type, offsets, self._convert(field, flat))
        key, value = field.children
        keys = self._convert(key, [entry.f1 for entry in flat])
        return map_array(field.arrow_type, offsets, keys, self._convert(value, [entry.f2 for entry in flat]))

    def _convert(self, field: FieldPlan, values: list[Any]) -> pa.Array:  # noqa: PLR0911 - one for each kind
        """Values as upb gives them, or None, to the Arrow array of one value each."""
        match field.kind:
            case Kind.MESSAGE:
                return self._struct(field.value_arrow, field.children, values)
            case Kind.EMPTY:
                return self._dummies(field.value_arrow, values)
            case Kind.TIMESTAMP | Kind.DURATION:
                kind = field.kind.value
                first, second = (wire_name(part.number) for part in field.children)
                micros = [
                    None if each is None else checked_micros(getattr(each, first), getattr(each, second), kind)
                    for each in values
                ]
                return pa.array(micros, pa.int64()).view(field.value_arrow)
            case Kind.WRAPPER:
                return self._convert(field.children[0], _singular(field.children[0], values))
            case Kind.ANY_JSON:
                texts = [None if each is None else self.any_text(each) for each in values]
                return pa.array(texts, pa.string())
            case Kind.ENUM if pa.types.is_string(field.value_arrow) and field.enum is not None:
                text = field.enum.text
                return pa.array([None if each is None else text(each) for each in values], pa.string())
            case _:
                return pa.array(_scalars(field, values), field.value_arrow)


def _singular(field: FieldPlan, messages: Sequence[Message | None]) -> list[Any]:
    """What a singular field is in each message: a value of upb, or None."""
    name = wire_name(field.number)
    absent = field.default
    if isinstance(absent, str) and field.lenient:
        absent = absent.encode()
    if field.emit_zero and field.kind in {Kind.SCALAR, Kind.ENUM}:
        absent = zero_of(field)
    if field.presence:
        return [None if each is None else getattr(each, name) if each.HasField(name) else absent for each in messages]
    if absent is not None:
        return [None if each is None else getattr(each, name) for each in messages]
    values = [None if each is None else getattr(each, name) for each in messages]
    return [None if each is None or is_zero(each) else each for each in values]


def scalar_conversion(field: FieldPlan) -> Callable[[Any], Any] | None:
    """Return the function from a scalar of upb to what Arrow takes; None where it takes the same."""
    bits = _UNSIGNED.get(field.proto_type)
    if field.lenient:
        return lenient_text
    if pa.types.is_decimal(field.value_arrow):
        return Decimal
    if bits is not None and field.value_arrow.bit_width == bits:
        limit = 1 << (bits - 1)
        return lambda each: each - 2 * limit if each >= limit else each
    return None


def _scalars(field: FieldPlan, values: list[Any]) -> list[Any]:
    """Values as Arrow takes them: unsigned ones wrapped or upcast, lenient text decoded."""
    convert = scalar_conversion(field)
    return values if convert is None else [None if each is None else convert(each) for each in values]


_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def lenient_text(data: bytes) -> str:
    """Text with U+FFFD for what is not UTF-8, as Java puts it: one for a surrogate, where Python puts three."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")
