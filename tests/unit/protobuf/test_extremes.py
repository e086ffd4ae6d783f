"""The extremes of each type, alone, in lists, maps, oneofs and messages: in each codec as in protobuf's own classes."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import Message

from tests.support.protobuf_rig import Rig, compiled
from tests.unit.protobuf.test_differential import same, values

SOURCE = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto"; enum E {{ A = 0; LEAST = -2147483648; MOST = 2147483647; }}
message N {{ {0} a = 1; }}
message M {{ {0} a = 1; repeated {0} l = 2; map<string, {0}> m = 3; oneof o {{ {0} x = 5; int32 y = 7; }} N n = 6; }}"""
I32, I64, U64 = [-(2**31), 2**31 - 1, -1, 0], [-(2**63), 2**63 - 1, -1, 0], [0, 2**63, 2**64 - 1]
SMALL = [(pa.int8(), [-128, 127]), (pa.int16(), [-(2**15), 2**15 - 1]), (pa.int32(), I32), (pa.date32(), I32)]
SMALLEST_DOUBLE, LARGEST_FLOAT = 5e-324, struct.unpack("<f", bytes.fromhex("ffff7f7f"))[0]
SPECIAL = [math.inf, -math.inf, math.nan, -0.0, 0.0]
TEXTS = ["", "\0", "\U0010ffff", "\ud7ff\ue000", "x" * 300]
TIMES = [-(2**63), 2**63 - 1, -(2**63) + 1, -1, 0, 1, -1_000_000, -999_999, 253402300800_000000]
CASES: list[tuple[str, pa.DataType, list[Any]]] = [
    *((name, kind, each) for name in ("int32", "sint32", "sfixed32", "uint32", "fixed32") for kind, each in SMALL),
    *((name, pa.int64(), I64) for name in ("int64", "sint64", "sfixed64", "uint64", "fixed64")),
    ("uint32", pa.int64(), [0, 2**32 - 1, 2**31]),
    ("uint32", pa.int64(), I32),
    ("uint64", pa.decimal128(20, 0), U64),
    ("bool", pa.bool_(), [True, False]),
    ("float", pa.float32(), [*SPECIAL, LARGEST_FLOAT, -LARGEST_FLOAT, 2.0**-149]),
    ("double", pa.float64(), [*SPECIAL, 1.7976931348623157e308, SMALLEST_DOUBLE, -SMALLEST_DOUBLE]),
    ("string", pa.string(), TEXTS),
    ("string", pa.large_string(), TEXTS),
    ("bytes", pa.binary(), [b"", b"\0", bytes(range(256))]),
    ("bytes", pa.large_binary(), [b"", b"\xff" * 300]),
    ("E", pa.string(), ["A", "LEAST", "MOST"]),
    ("E", pa.int32(), [0, -(2**31), 2**31 - 1]),
    ("google.protobuf.Timestamp", pa.timestamp("us", tz="UTC"), TIMES),
    ("google.protobuf.Duration", pa.duration("us"), TIMES),
    ("google.protobuf.Int32Value", pa.int32(), I32),
    ("google.protobuf.UInt32Value", pa.int32(), I32),
    ("google.protobuf.Int64Value", pa.int64(), I64),
    ("google.protobuf.UInt64Value", pa.int64(), I64),
    ("google.protobuf.UInt64Value", pa.decimal128(20, 0), U64),
    ("google.protobuf.DoubleValue", pa.float64(), SPECIAL),
]
ENUM = {"A": 0, "LEAST": -(2**31), "MOST": 2**31 - 1}
UNSIGNED = {"uint32": 32, "fixed32": 32, "uint64": 64, "fixed64": 64, "UInt32Value": 32, "UInt64Value": 64}


def put(message: Message, proto: str, value: Any) -> None:
    """Put a value into a message N by protobuf alone."""
    short = proto.removeprefix("google.protobuf.")
    if short in {"Timestamp", "Duration"}:
        message.a.SetInParent()
        sign = -1 if short == "Duration" and value < 0 else 1
        seconds, micros = divmod(sign * value, 1_000_000)
        message.a.seconds, message.a.nanos = sign * seconds, sign * micros * 1000
        return
    if short in UNSIGNED:
        value = int(value) % (1 << UNSIGNED[short])
    if short.endswith("Value"):
        message.a.SetInParent()
        message.a.value = value
    else:
        message.a = ENUM.get(value, value) if proto == "E" else value


def column(kind: pa.DataType, each: list[Any]) -> pa.Array:
    """An array of this type; times as numbers, since Python has none for most of these."""
    if pa.types.is_temporal(kind):
        return pa.array(each, pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)
    return pa.array([Decimal(one) for one in each] if pa.types.is_decimal(kind) else each, kind)


def rows_of(kind: pa.DataType, each: list[Any]) -> pa.StructArray:
    """A row for each value, which stands in each place of the row."""
    single, bounds = column(kind, each), pa.array(range(len(each) + 1), pa.int32())
    parts = {
        "a": single,
        "l": pa.ListArray.from_arrays(bounds, single),
        "m": pa.MapArray.from_arrays(bounds, pa.array(["k"] * len(each)), single),
        "x": single,
        "n": pa.StructArray.from_arrays([single], ["a"]),
    }
    return pa.StructArray.from_arrays([*parts.values()], [*parts])


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize(
    ("proto", "kind", "each"), CASES, ids=lambda one: str(one) if not isinstance(one, list) else ""
)
def test_the_extremes_of_a_type_are_written_and_read_as_they_are(
    rig: Rig, proto: str, kind: pa.DataType, each: list[Any], many: bool
) -> None:
    rig = rig.of(compiled(SOURCE.format(proto)))
    each = each * (40 if many else 1)  # for many rows `auto` takes another codec
    structs = rows_of(kind, each)
    expected = []
    for value in each:
        inner, message = rig.type("N")(), rig.type("M")()
        put(inner, proto, value)
        put(message, proto, value)
        message.n.CopyFrom(inner)
        one = inner.a
        if isinstance(one, Message):
            message.l.add().CopyFrom(one)
            message.m["k"].CopyFrom(one)
            message.x.CopyFrom(one)
        else:
            message.l.append(one)
            message.m["k"] = one
            message.x = one
        expected.append(message.SerializeToString(deterministic=True))
    encoded = rig.encode_array("M", structs)
    assert [same_message(rig, *pair) for pair in zip(encoded, expected, strict=True)] == [True] * len(each)
    options = {"emit.default.values": "true", "unwrap.primitive.wrapper.types": "true"}
    if pa.types.is_decimal(kind) or (proto == "uint32" and kind == pa.int64() and min(each) >= 0):
        options["upcast.unsigned.ints"] = "true"
    decoded = rig.raw("M", encoded, options | {"enums.as.ints": str(kind == pa.int32()).lower()}).values
    wanted = rows_of(pa.int32(), each) if pa.types.is_date32(kind) else structs
    for name in ("a", "l", "m", "x", "n"):
        assert same(values(decoded.field(name)), values(wanted.field(name))), name


def same_message(rig: Rig, left: bytes, right: bytes) -> bool:
    """Whether two texts are the same message; a NaN is itself."""
    kind = rig.type("M")
    return kind.FromString(left).SerializeToString(deterministic=True) == right
