"""Milliseconds for a batch of one row with 500 and with 2,000 columns: what a trickle of wide messages costs a worker.

The calls are those that Spark's workers make, with an Arrow batch of one row; what Spark does around them is left out.
Both sides are engines of this package: ``auto``, the default, against ``python``, the reference. The fields are
strings, bytes, numbers of all kinds, enums, optional fields, lists, maps, messages and timestamps, all of them set.
``first-encode-2000`` is a descriptor set that the process has not seen: the time until the first message is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import count

import pyarrow as pa
from _common import Benchmark, interleaved, parser
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine

F = FieldDescriptor
CALLS = 20
CASES = ("decode-500-1row", "decode-2000-1row", "encode-500-1row", "encode-2000-1row", "first-encode-2000")
SCALARS = {
    F.TYPE_STRING: "text",
    F.TYPE_INT64: 1 << 40,
    F.TYPE_INT32: 300,
    F.TYPE_BOOL: True,
    F.TYPE_DOUBLE: 1.5,
    F.TYPE_FLOAT: 2.5,
    F.TYPE_BYTES: b"bytes",
    F.TYPE_UINT32: 1 << 31,
    F.TYPE_SINT64: -5,
    F.TYPE_ENUM: 2,
}
NESTED = ("optional", "list", "map", "message", "timestamp")
KINDS = (*SCALARS, *SCALARS, *SCALARS, *NESTED)  # 35 in a row, 5 of them with parts


def wide(columns: int, unused: int = 0) -> tuple[bytes, bytes]:
    """A descriptor set of a message `Wide` with so many fields, and such a message.

    Args:
        columns: how many.
        unused: makes the descriptor set another one.
    """
    file = FileDescriptorProto(name="wide.proto", package="wide", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    colour = file.enum_type.add(name="Colour")
    for number, name in enumerate(("NONE", "RED", "GREEN")):
        colour.value.add(name=name, number=number)
    place = file.message_type.add(name="Place")
    place.field.add(name="city", number=1, type=F.TYPE_STRING, label=1)
    place.field.add(name="latitude", number=2, type=F.TYPE_DOUBLE, label=1)
    message = file.message_type.add(name="Wide")
    for number in range(1, columns + 1):
        _declare(message, number, KINDS[number % len(KINDS)])
    for index in range(columns):  # after all others, as descriptors demand
        if message.field[index].proto3_optional:
            message.field[index].oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{message.field[index].name}")
    file.message_type.add(name=f"Unused{unused}")
    times = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(times)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(times)
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("wide.Wide"))()
    for number in range(1, columns + 1):
        name, kind = f"field_{number}", KINDS[number % len(KINDS)]
        if kind == "list":
            getattr(made, name).extend((1, 2, 300))
        elif kind == "map":
            getattr(made, name)["key"] = number
        elif kind == "message":
            getattr(made, name).city = "Amsterdam"
        elif kind == "timestamp":
            getattr(made, name).FromMicroseconds(1_700_000_000_000_000 + number)
        else:
            setattr(made, name, 0 if kind == "optional" else SCALARS[kind])
    return FileDescriptorSet(file=[times, file]).SerializeToString(), made.SerializeToString(deterministic=True)


def _declare(message: DescriptorProto, number: int, kind: int | str) -> None:
    field = message.field.add(name=f"field_{number}", number=number, label=1)
    if isinstance(kind, int):
        field.type = kind
        if kind == F.TYPE_ENUM:
            field.type_name = ".wide.Colour"
    elif kind in {"optional", "list"}:
        field.type = F.TYPE_INT32
        field.proto3_optional, field.label = kind == "optional", 3 if kind == "list" else 1
    else:
        field.type = F.TYPE_MESSAGE
        if kind != "map":
            field.type_name = ".wide.Place" if kind == "message" else ".google.protobuf.Timestamp"
        else:
            entry = message.nested_type.add(name=f"Field{number}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=1)
            entry.field.add(name="value", number=2, type=F.TYPE_INT64, label=1)
            field.type_name, field.label = f".wide.Wide.{entry.name}", 3


def milliseconds(call: Callable[[pa.Array], pa.Array], column: pa.Array) -> float:
    """What one call takes, of several."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        call(column)
    return (time.perf_counter() - begin) * 1e3 / CALLS


def first_milliseconds(engine: Engine, structs: pa.Array, numbers: count[int]) -> float:
    """What the first call takes for a descriptor set that was never there."""
    descriptors, _ = wide(len(structs.type), next(numbers))
    call = EncodeCall(descriptors, "wide.Wide", ProtobufOptions(), engine)
    begin = time.perf_counter()
    call(structs)
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__ or "").parse_args()
    bench = Benchmark("protobuf_wide")
    bench.settings(rounds=options.rounds, calls=f"{CALLS} in each round, {CASES[-1]} one; one row a call, no Spark")
    numbers = count(1)
    for case in options.cases or CASES:
        *_, direction, columns = case.removesuffix("-1row").split("-")
        descriptors, message = wide(int(columns))
        column = pa.array([message], pa.binary())
        engines = Engine.AUTO, Engine.PYTHON
        decodes = [DecodeCall(descriptors, "wide.Wide", ProtobufOptions(), None, engine) for engine in engines]
        structs = [decode(column) for decode in decodes]
        assert structs[0].equals(structs[1])
        encodes = [EncodeCall(descriptors, "wide.Wide", ProtobufOptions(), engine) for engine in engines]
        assert all(encode(structs[0]).equals(column) for encode in encodes)
        sides: dict[str, Callable[[], float]] = {}
        for engine, decode, encode in zip(engines, decodes, encodes, strict=True):
            if case.startswith("first"):
                side = partial(first_milliseconds, engine, structs[0], numbers)
            elif direction == "decode":
                side = partial(milliseconds, decode, column)
            else:
                side = partial(milliseconds, encode, structs[0])
            sides[f"engine={engine}"] = side
        bench.compare(case, *interleaved(sides, options.rounds), "ms", less_is_better=True)
    bench.finish()


if __name__ == "__main__":
    main()
