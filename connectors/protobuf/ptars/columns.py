"""The columns that Spark expects, made of what ptars read, with the bytes that they took on the wire.

By these the decoder sees that ptars has read every byte of a message: ptars skips a field of another wire type, or
damage below the root, in silence, and then the bytes of what it did read are fewer than those of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor

from connectors.core.functions.columns import list_array, map_array, masked, numbers, offsets, struct_array, validity_of
from connectors.protobuf.schema.descriptors import EnumPlan
from connectors.protobuf.schema.plan import UNSIGNED_BITS, FieldPlan, MessagePlan, Shape, ValueKind, as_signed
from connectors.protobuf.upb.decoder import lenient_text

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

F: Final = FieldDescriptor
_BITS: Final[dict[int, npt.DTypeLike]] = {8: np.uint8, 32: np.uint32, 64: np.uint64}
_FIXED: Final = {
    F.TYPE_BOOL: 1,
    F.TYPE_FIXED32: 4,
    F.TYPE_SFIXED32: 4,
    F.TYPE_FLOAT: 4,
    F.TYPE_FIXED64: 8,
    F.TYPE_SFIXED64: 8,
    F.TYPE_DOUBLE: 8,
}
_ZIG_ZAG: Final[dict[int, tuple[npt.DTypeLike, npt.DTypeLike]]] = {
    F.TYPE_SINT32: (np.int32, np.uint32),
    F.TYPE_SINT64: (np.int64, np.uint64),
}
_NEGATIVE_SLACK: Final = 5
_MICROS: Final = 1_000_000
_LARGEST_SECONDS: Final = 2**63 // _MICROS - 3000  # with any nanos within 64 bits of microseconds


@dataclass(slots=True)
class Part:
    """A column, with facts about each of its rows."""

    array: pa.Array
    size: Ints  # the bytes it took on the wire, if it was written in the usual way
    slack: Ints | None = None  # how many of these another writer may have spared
    wrong: Bools | None = None  # where the value cannot be had from ptars


def message_part(plan: MessagePlan | FieldPlan, columns: Sequence[pa.Array], kind: pa.StructType, length: int) -> Part:
    """Return a message's columns as one struct without NULL; `size` is that of the content, without tag and length."""
    fields = plan.fields if isinstance(plan, MessagePlan) else plan.children
    size = np.zeros(length, dtype=np.int64)
    slack: Ints | None = None
    wrong: Bools | None = None
    arrays = []
    oneofs: dict[int, Ints] = {}
    declared = (*fields, *plan.dropped)
    for field, column in zip(declared, _by_number(declared, columns), strict=True):
        if field.kind is not ValueKind.DROPPED:
            part = _column(field, column)
            arrays.append(part.array)
            size += part.size
            slack = _plus(slack, part.slack)
            wrong = _either(wrong, part.wrong)
        elif field.required:
            wrong = _either(wrong, ~validity_of(column))
        if field.oneof is not None:
            present = validity_of(column).astype(np.int64)
            oneofs[field.oneof] = oneofs.get(field.oneof, np.zeros(length, dtype=np.int64)) + present
    for count in oneofs.values():
        if count.max(initial=0) > 1:
            wrong = _either(wrong, count > 1)
    return Part(struct_array(kind, arrays, length), size, slack, wrong)


def _by_number(fields: Sequence[FieldPlan], columns: Sequence[pa.Array]) -> list[pa.Array]:
    """Return the columns of ptars, which come in the order of the numbers, in the order of the fields."""
    places = {number: place for place, number in enumerate(sorted(field.number for field in fields))}
    return [columns[places[field.number]] for field in fields]


def _column(field: FieldPlan, raw: pa.Array) -> Part:
    if field.shape is Shape.MAP:
        return _map(field, raw)
    if field.shape is Shape.REPEATED:
        return _list(field, raw)
    if field.is_scalar:
        return _scalar(field, raw)
    present = validity_of(raw)
    part = _values(field, raw)
    valid = present
    if field.kind is ValueKind.WRAPPER and part.array.null_count:
        valid = present & validity_of(part.array)
    wrong = None if part.wrong is None else part.wrong & present
    if field.required and not present.all():
        wrong = _either(wrong, ~present)
    size = np.where(present, _tag_size(field.number) + _varint_sizes(part.size) + part.size, 0)
    return Part(masked(part.array, valid), size, _prefixed(part), wrong)


def _values(field: FieldPlan, raw: pa.StructArray) -> Part:
    """Return messages, each present, as values; `size` is that of their content."""
    parts = [raw.field(index) for index in range(raw.type.num_fields)]
    if field.kind is ValueKind.MESSAGE:
        return message_part(field, parts, field.value_arrow, len(raw))
    parts = _by_number(field.children, parts)
    if field.kind is ValueKind.WRAPPER:
        return _scalar(field.children[0], parts[0])
    size = np.zeros(len(raw), dtype=np.int64)
    slack: Ints | None = None
    for child, column in zip(field.children, parts, strict=True):
        part = _scalar(child, column)
        size += part.size
        slack = _plus(slack, part.slack)
    seconds = numbers(parts[0], np.int64)
    nanos = numbers(parts[1], np.int32).astype(np.int64)
    backwards = len(nanos) and nanos.min() < 0
    rest = np.where(nanos >= 0, nanos // 1000, -(-nanos // 1000)) if backwards else nanos // 1000
    wrong = None
    if len(seconds) and (seconds.max() > _LARGEST_SECONDS or seconds.min() < -_LARGEST_SECONDS):
        wrong = (seconds > _LARGEST_SECONDS) | (seconds < -_LARGEST_SECONDS)
        seconds = np.where(wrong, 0, seconds)
    return Part(pa.array(seconds * _MICROS + rest, pa.int64()).view(field.value_arrow), size, slack, wrong)


def _scalar(field: FieldPlan, raw: pa.Array) -> Part:
    """Return a singular scalar: NULL where it is absent, and where it is zero and that means absent."""
    if field.presence:
        present = validity_of(raw)
        valid = present
    else:
        present = _not_zero(raw)
        valid = np.ones(len(raw), dtype=np.bool_) if field.emit_zero else present
    payload, slack = _payload_sizes(field.proto_type, raw)
    size = np.where(present, _tag_size(field.number) + payload, 0)
    slack = None if slack is None else np.where(present, slack, 0)
    array, wrong = _converted(field, raw)
    wrong = None if wrong is None else wrong & present
    array = masked(array, valid)
    if field.default is not None and not valid.all():
        array = pc.fill_null(array, _default(field))
    if field.required and not present.all():
        wrong = _either(wrong, ~present)
    return Part(array, size, slack, wrong)


def _default(field: FieldPlan) -> pa.Scalar:
    value, bits = field.default, UNSIGNED_BITS.get(field.proto_type)
    if field.enum is not None and pa.types.is_string(field.value_arrow):
        value = field.enum.text(value)
    elif pa.types.is_decimal(field.value_arrow):
        return pa.scalar(value, pa.uint64()).cast(field.value_arrow)
    elif bits is not None and field.value_arrow.bit_width == bits:
        value = as_signed(value, bits)
    return pa.scalar(value, field.value_arrow)


def _converted(field: FieldPlan, raw: pa.Array) -> tuple[pa.Array, Bools | None]:
    """Return scalars in the type of the plan, and where they are unknown values of a closed enum."""
    if field.enum is not None:
        return _enum(field.enum, raw, text=pa.types.is_string(field.value_arrow))
    if field.lenient and pa.types.is_binary(raw.type):
        try:
            return raw.cast(pa.string()), None
        except pa.ArrowInvalid:
            texts = [None if data is None else lenient_text(data) for data in raw.to_pylist()]
            return pa.array(texts, pa.string()), None
    if raw.type != field.value_arrow:
        return raw.cast(field.value_arrow), None
    return raw, None


def _enum(enum: EnumPlan, raw: pa.Array, *, text: bool) -> tuple[pa.Array, Bools | None]:
    values = numbers(raw, np.int32)
    if len(values) == 0:
        return pa.array([], pa.string() if text else pa.int32()), None
    if len(enum.names) > len(values):
        return _few_of_enum(enum, raw, text=text)
    declared = np.fromiter(sorted(enum.names), np.int32, len(enum.names))
    if declared[0] == 0 and declared[-1] == len(declared) - 1:
        place, unknown = values, (values < 0) | (values >= len(declared))
    else:
        place = np.minimum(np.searchsorted(declared, values), len(declared) - 1).astype(np.int32)
        unknown = declared[place] != values
    has_unknown = bool(unknown.any())
    wrong = unknown if has_unknown and enum.closed else None
    if not text:
        return raw, wrong
    names = [enum.names[int(number)] for number in declared]
    if has_unknown:
        others, back = np.unique(values[unknown], return_inverse=True)
        place = place.copy()
        place[unknown] = len(names) + back
        names += [enum.text(int(number)) for number in others]
    coded = pa.DictionaryArray.from_arrays(pa.array(place, pa.int32()), pa.array(names, pa.string()))
    return coded.dictionary_decode(), wrong


def _few_of_enum(enum: EnumPlan, raw: pa.Array, *, text: bool) -> tuple[pa.Array, Bools | None]:
    """Do the same for fewer values than the enum declares: those can be more than there is time for in each column."""
    distinct, place = np.unique(numbers(raw, np.int32), return_inverse=True)
    unknown = np.array([number not in enum.names for number in distinct.tolist()], np.bool_)[place]
    wrong = unknown if enum.closed and unknown.any() else None
    if not text:
        return raw, wrong
    names = pa.array([enum.text(number) for number in distinct.tolist()], pa.string())
    coded = pa.DictionaryArray.from_arrays(pa.array(place.astype(np.int32)), names)
    return coded.dictionary_decode(), wrong


def _list(field: FieldPlan, raw: pa.Array) -> Part:
    bounds = offsets(raw)
    values = raw.values
    count = np.diff(bounds).astype(np.int64)
    tag = _tag_size(field.number)
    if field.is_scalar:
        payload, spared = _payload_sizes(field.proto_type, values)
        content = count * payload if isinstance(payload, int) else _sums(payload, bounds)
        slack = None if spared is None else _sums(spared, bounds)
        one_by_one = count * tag + content
        if field.proto_type in {F.TYPE_STRING, F.TYPE_BYTES}:
            size = one_by_one
        else:
            packed = np.where(count > 0, tag + _varint_sizes(content) + content, 0)
            size = packed if field.packed else one_by_one
            slack = _plus(slack, np.maximum(size - np.minimum(packed, one_by_one), 0))
        array, wrong = _converted(field, values)
    else:
        part = _values(field, values)
        size = _sums(tag + _varint_sizes(part.size) + part.size, bounds)
        spared = _prefixed(part)
        slack = None if spared is None else _sums(spared, bounds)
        array, wrong = part.array, part.wrong
    wrong = None if wrong is None else _sums(wrong, bounds) > 0
    return Part(list_array(field.arrow_type, bounds, array), size, slack, wrong)


def _map(field: FieldPlan, raw: pa.MapArray) -> Part:
    bounds = offsets(raw)
    parts = [_entry(child, column) for child, column in zip(field.children, (raw.keys, raw.items), strict=True)]
    content = parts[0].size + parts[1].size
    size = _sums(_tag_size(field.number) + _varint_sizes(content) + content, bounds)
    slack = _prefixed(Part(raw, content, _plus(parts[0].slack, parts[1].slack)))
    wrong = _either(parts[0].wrong, parts[1].wrong)
    return Part(
        map_array(field.arrow_type, bounds, parts[0].array, parts[1].array),
        size,
        None if slack is None else _sums(slack, bounds),
        None if wrong is None else _sums(wrong, bounds) > 0,
    )


def _entry(field: FieldPlan, raw: pa.Array) -> Part:
    """Return keys or values of a map: never NULL. All but a few write them also when they are zero."""
    if field.is_scalar:
        payload, slack = _payload_sizes(field.proto_type, raw)
        size = np.zeros(len(raw), dtype=np.int64) + payload + 1
        zero = ~_not_zero(raw)
        if zero.any():
            slack = _plus(slack, np.where(zero, size, 0))
        array, wrong = _converted(field, raw)
        return Part(array, size, slack, wrong)
    part = _values(field, raw)
    size = np.where(validity_of(raw), 1 + _varint_sizes(part.size) + part.size, 0)
    return Part(part.array, size, _prefixed(part), part.wrong)


def _prefixed(part: Part) -> Ints | None:
    """Return the slack of messages with lengths before them: a shorter one may spare a byte of its length too."""
    if part.slack is None:
        return None
    return part.slack + _varint_sizes(part.size) - _varint_sizes(part.size - part.slack)


def _not_zero(raw: pa.Array) -> Bools:
    """Return where a value is not the zero of its type, bit for bit: -0.0 is something."""
    if pa.types.is_boolean(raw.type):
        return np.asarray(raw.to_numpy(zero_copy_only=False), dtype=np.bool_)
    if pa.types.is_string(raw.type) or pa.types.is_binary(raw.type):
        return np.asarray(np.diff(offsets(raw)) != 0)
    return np.asarray(numbers(raw, _BITS[raw.type.bit_width]) != 0)


def _plus(first: Ints | None, second: Ints | None) -> Ints | None:
    return second if first is None else first if second is None else first + second


def _either(first: Bools | None, second: Bools | None) -> Bools | None:
    return second if first is None else first if second is None else first | second


def doubtful(part: Part, lengths: npt.NDArray[Any]) -> Bools:
    """Return the messages, of these lengths, that ptars may not have read to the last byte.

    What it passes over can hide in any slack: of a packed list of fixed numbers, the rest that is no number may be one
    byte.
    """
    doubts: Bools = part.size != lengths
    if part.slack is not None:
        doubts |= part.slack > 0
    return doubts


def _tag_size(number: int) -> int:
    return 1 if number < 1 << 4 else 2 if number < 1 << 11 else 3 if number < 1 << 18 else 4 if number < 1 << 25 else 5


def _varint_sizes(values: npt.NDArray[Any]) -> Ints:
    """Return the bytes of each number, as the shortest varint; numbers of a signed type must not be negative."""
    sizes = np.ones(len(values), dtype=np.int64)
    if len(values) == 0:
        return sizes
    unsigned = values.astype(np.uint64, copy=False)
    largest = int(unsigned.max())
    for bits in range(7, 64, 7):
        if largest >> bits:
            sizes += unsigned >= np.uint64(1 << bits)
    return sizes


def _sums(values: npt.NDArray[Any], bounds: npt.NDArray[np.int32]) -> Ints:
    total: Ints = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=total[1:])
    return total[bounds[1:]] - total[bounds[:-1]]


def _payload_sizes(proto_type: int, array: pa.Array) -> tuple[Ints | int, Ints | None]:
    """Return the bytes of each value without its tag, and how many of them another writer may have spared."""
    fixed = _FIXED.get(proto_type)
    if fixed is not None:
        return fixed, None
    if proto_type in {F.TYPE_STRING, F.TYPE_BYTES}:
        lengths = np.diff(offsets(array)).astype(np.int64)
        return lengths + _varint_sizes(lengths), None
    if proto_type in {F.TYPE_INT32, F.TYPE_ENUM}:
        values = numbers(array, np.int32)
        if len(values) == 0 or values.min() >= 0:
            return _varint_sizes(values), None
        slack = (values < 0) * np.int64(_NEGATIVE_SLACK)  # all write ten bytes, and five are read too
        return _varint_sizes(values.astype(np.int64).view(np.uint64)), slack
    if proto_type in _ZIG_ZAG:
        signed, unsigned = _ZIG_ZAG[proto_type]
        values = numbers(array, signed)
        return _varint_sizes(((values << 1) ^ (values >> (8 * values.itemsize - 1))).view(unsigned)), None
    return _varint_sizes(numbers(array, np.uint32 if proto_type == F.TYPE_UINT32 else np.uint64)), None
