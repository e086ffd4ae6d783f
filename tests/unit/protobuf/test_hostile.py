"""What one hostile message, or a hostile descriptor, may cost: memory of a batch, and time for its columns."""

from __future__ import annotations

import time
from itertools import pairwise

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from connectors.core.functions.bad_rows import Decoded
from connectors.core.functions.bounded import MOST_BYTES, BoundedDecoder, growth_of, row_bytes
from connectors.protobuf.worker import DecodeCall, Engine
from tests.support.protobuf_generated import varint
from tests.support.protobuf_rig import Rig, compiled

ENGINES = [Engine.PYTHON, Engine.FAST, Engine.AUTO]
NAME = "LONG_NAME_OF_A_VALUE_" * 12
EXPLODING = compiled(
    f"""syntax = "proto3"; package p; enum E {{ {NAME} = 0; }}
message W {{ {" ".join(f"int64 w{number} = {number};" for number in range(1, 101))} }}
message M {{ int32 id = 1; repeated E enums = 2; repeated W wide = 3; map<int32, W> map = 4; string text = 5; }}"""
)


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, as protobuf writes it."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def call(engine: Engine, **options: str) -> DecodeCall:
    return Rig(engine, EXPLODING).call("M", {"mode": "PERMISSIVE", **options})


def good(number: int) -> bytes:
    return b"\x08" + varint(number) + field(2, b"\0") + field(3, b"") + field(5, b"text")


@pytest.mark.parametrize("engine", ENGINES)
def test_messages_that_become_more_than_arrow_counts_are_bad_rows_and_their_neighbors_are_not(engine: Engine) -> None:
    """Ten messages of 1 MB became 2.4 GB in one column of names, and ended the query by an error of Arrow."""
    bomb = b"\x08\x07" + field(2, bytes(1 << 20))
    rows = [each for number in range(1, 10) for each in (good(number), bomb)]
    decoded = call(engine).bounded.decode(pa.array(rows))
    assert decoded.values.nbytes < 1.1 * MOST_BYTES
    assert 0 < len(decoded.errors) < 9
    assert set(decoded.errors) <= set(range(1, 18, 2))
    assert all("MB of values" in reason for reason in decoded.errors.values())
    for row in range(18):
        assert decoded.values[row].is_valid == (row not in decoded.errors)
        if row % 2 == 0:
            assert decoded.values[row]["id"].as_py() == row // 2 + 1
            assert decoded.values[row]["enums"].as_py() == [NAME]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", [2, 3, 4])
def test_whatever_explodes_is_taken_out_and_nothing_else(engine: Engine, number: int) -> None:
    decoder = call(engine).decoder
    unit = bytes(1000) if number == 2 else None
    bombs = [field(2, unit) if unit else field(number, b"") * size for size in (4000, 3000, 5000)]
    rows: list[bytes | None] = [
        *map(good, range(1, 50)),
        bombs[0],
        None,
        *map(good, range(50, 99)),
        *bombs[1:],
        b"\xff",
    ]
    kind = decoder.decode(pa.array([b""])).values.type
    whole = decoder.decode(pa.array(rows))
    small = BoundedDecoder(decoder, kind, growth_of(kind, len(NAME)), most=400_000, piece=1 << 16)
    column = pa.array([b"before", *rows, b"after"]).slice(1, len(rows))
    decoded = small.decode(column)
    decoded.values.validate(full=True)
    assert decoded.values.type == kind
    out = {row for row, reason in decoded.errors.items() if "MB of values" in reason}
    assert decoded.errors.keys() - out == whole.errors.keys()
    if number == 2:
        assert out <= {49, 100, 101}
    else:
        assert out == {49, 100, 101}
    kept = [row for row in range(len(rows)) if row not in out]
    assert decoded.values.take(pa.array(kept)).equals(whole.values.take(pa.array(kept)))
    assert not any(decoded.values[row].is_valid for row in out)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_are_the_same_however_small_the_pieces_are(engine: Engine) -> None:
    decoder = call(engine).decoder
    rows = [good(number) * (number % 5) for number in range(300)]
    whole = decoder.decode(pa.array(rows)).values
    for piece in (1, 1000, 100_000):
        bounded = BoundedDecoder(decoder, whole.type, growth_of(whole.type, len(NAME)), piece=piece)
        decoded = bounded.decode(pa.array(rows))
        assert decoded.values.equals(whole)
        assert decoded.errors == {}


def test_of_rows_that_are_too_much_together_the_smaller_ones_are_decoded() -> None:
    class Texts:
        def decode(self, messages: pa.Array) -> Decoded:
            return Decoded(pa.array([b"x" * int(each) for each in messages.to_pylist()], pa.binary()), {})

    bounded = BoundedDecoder(Texts(), pa.binary(), 1.0, most=3000, piece=1)
    decoded = bounded.decode(pa.array([b"1000", b"2000", b"900", b"500", b"800", b"1500"]))
    assert [len(each) if each else each for each in decoded.values.to_pylist()] == [None, None, 900, 500, 800, None]
    assert set(decoded.errors) == {0, 1, 5}


@pytest.mark.parametrize("kind", [pa.null(), pa.int8(), pa.decimal128(20, 0), pa.string(), pa.timestamp("us", "UTC")])
def test_what_a_row_takes_at_least_and_what_a_byte_becomes_at_most_bound_what_arrow_says(kind: pa.DataType) -> None:
    struct = pa.struct([("a", kind), ("b", kind)])
    for outer in (kind, struct, pa.list_(struct), pa.map_(pa.int32(), struct), pa.struct([("x", pa.list_(kind))])):
        assert abs(pa.nulls(8000, outer).nbytes / 8000 - row_bytes(outer)) < row_bytes(outer) / 2 + 1
    assert growth_of(pa.list_(struct)) >= row_bytes(struct)
    assert growth_of(pa.map_(pa.int32(), struct)) >= row_bytes(struct) + 4


def enum_set(values: int, fields: int) -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="p", syntax="proto3")
    enum = file.enum_type.add(name="E")
    for number in range(values):
        enum.value.add(name=f"V{number}", number=number)
    message = file.message_type.add(name="M")
    for number in range(1, fields + 1):
        message.field.add(name=f"e{number}", number=number, type=14, label=1, type_name=".p.E")
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_of_a_large_enum_cost_by_their_rows_and_not_by_its_values(engine: Engine) -> None:
    """A thousand columns of an enum of 400,000 values took 100 s a batch."""
    call_ = Rig(engine, enum_set(100_000, 300)).call("M")
    rows = [b"\x08" + varint(number) for number in (0, 1, 99_999, 100_000, 2**64 - 1)] * 20
    call_.decoder.decode(pa.array(rows))
    began = time.process_time()
    values = call_.decoder.decode(pa.array(rows)).values
    assert time.process_time() - began < 2.0
    expected = [None, "V1", "V99999", "UNKNOWN_ENUM_VALUE_E_100000", "UNKNOWN_ENUM_VALUE_E_-1"]
    assert values.field(0).to_pylist() == expected * 20
    assert values.field(1).to_pylist() == [None] * 100


def nested(levels: int) -> bytes:
    """Messages that each have two fields of the next one: 2^levels columns."""
    texts = [f"message M{level} {{ M{level + 1} a = 1; M{level + 1} b = 2; }}" for level in range(levels)]
    return compiled(f'syntax = "proto3"; package p; {" ".join(texts)} message M{levels} {{ int32 x = 1; }}')


def test_planning_of_shared_messages_does_not_grow_with_their_paths() -> None:
    """Below the limit of columns it grows with them; above it, it ends at the limit."""
    seconds = []
    for levels in (20, 40, 80):
        began = time.process_time()
        with pytest.raises(Exception, match="PROTOBUF_TOO_MANY_COLUMNS"):
            Rig(Engine.PYTHON, nested(levels)).ddl("M0")
        seconds.append(time.process_time() - began)
    assert max(seconds) < 10
    assert all(later < 3 * earlier + 1 for earlier, later in pairwise(seconds))
