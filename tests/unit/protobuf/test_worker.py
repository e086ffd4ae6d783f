"""Calls on a worker: what is made once, what a small batch costs, and arrays as Spark may hand them over."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine
from tests.support.protobuf_generated import varint
from tests.support.protobuf_rig import Rig, compiled

COLUMNS = 400


def fields(package: str) -> str:
    """A message of strings, numbers and lists, of a package that no other test uses."""
    kinds = ("string", "int64", "double", "repeated int32")
    lines = [f"{kinds[number % 4]} Field_{number} = {number};" for number in range(1, COLUMNS + 1)]
    return f'syntax = "proto3"; package {package}; message Wide {{ {" ".join(lines)} }}'


def message(rig: Rig) -> bytes:
    made = rig.type("Wide")()
    for number in range(1, COLUMNS + 1):
        name = f"Field_{number}"
        if number % 4 == 3:
            getattr(made, name).append(number)
        else:
            setattr(made, name, str(number) if number % 4 == 0 else number)
    return bytes(made.SerializeToString(deterministic=True))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of the functions of connectors.protobuf, and of the built-in ones."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and "connectors/protobuf/" in frame.f_code.co_filename:
            module = "/".join(frame.f_code.co_filename.split("/")[-2:])
            found[f"{module}:{frame.f_code.co_name}"] += 1
            found["ours"] += 1
        elif event == "c_call":
            found[argument.__name__] += 1

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("engine", [Engine.AUTO, Engine.FAST, Engine.PYTHON])
def test_a_worker_compiles_a_schema_once(engine: Engine) -> None:
    rig = Rig(engine, compiled(fields(f"once_{engine}")))
    decode = DecodeCall(rig.data, f"once_{engine}.Wide", ProtobufOptions(), None, engine)
    encode = EncodeCall(rig.data, decode.message, decode.options, engine)
    data = message(rig)
    with counted() as calls:
        for rows in (1, 100, 1, 100, 1):
            column = pa.array([data] * rows, pa.binary())
            # Each task has calls of its own, as Spark sends them.
            structs = pickle.loads(pickle.dumps(decode))(column)
            assert pickle.loads(pickle.dumps(encode))(structs).equals(column)
    expected = {
        "schema/plan.py:compile_plan": 1,
        "upb/declarations.py:_fill": 2,  # one message; for decoding, and for encoding
        "schema/encode_plan.py:compile_encode_plan": 1,
        "ptars/declarations.py:ptars_handler": 0 if engine is Engine.PYTHON else 3,  # to read, to walk, to write
    }
    assert {name: calls[name] for name in expected} == expected


def test_the_first_batch_of_to_protobuf_looks_at_each_field_once() -> None:
    """It compared each column with each field: 2,000 columns took seconds."""
    rig = Rig(Engine.AUTO, compiled(fields("first")))
    structs = rig.call("Wide")(pa.array([message(rig)], pa.binary()))
    call = EncodeCall(rig.data, "first.Wide", ProtobufOptions(), Engine.AUTO)
    with counted() as calls:
        call(structs)
    assert calls["lower"] < 4 * COLUMNS


def test_a_worker_keeps_what_it_compiled_for_some_types_of_a_column_only() -> None:
    """Such as those of a query whose struct grows a column with each micro-batch."""
    rig = Rig(Engine.FAST, compiled(fields("types")))
    call = EncodeCall(rig.data, "types.Wide", ProtobufOptions(), Engine.FAST)
    for number in range(1, 60):
        call(pa.array([{f"field_{4 * number}": "text"}]))
    encoder: Any = call.encoder
    assert len(encoder._writers) <= 16
    assert len(encoder._upb._plans) <= 16


def people(rig: Rig, count: int) -> list[bytes | None]:
    kind = rig.type("NewConsumer")
    return [
        None
        if number % 7 == 3
        else kind(
            key=f"k{number}", number=number, list=range(number % 4), basic={"id": number} if number % 2 else None
        ).SerializeToString()
        for number in range(count)
    ]


def encoder(rig: Rig, message: str) -> EncodeCall:
    call = rig.call(message)
    return EncodeCall(call.descriptors, call.message, call.options, rig.engine)


@pytest.mark.parametrize(("start", "length"), [(0, 0), (0, 5), (3, 1), (5, 20), (17, 83), (99, 1)])
def test_a_slice_is_decoded_and_encoded_as_its_rows_are(start: int, length: int, rig: Rig) -> None:
    data = people(rig, 100)
    whole = pa.array(data, pa.binary())
    call = rig.call("NewConsumer")
    structs = call(whole)
    assert call(whole.slice(start, length)).to_pylist() == structs.to_pylist()[start : start + length]
    encode = encoder(rig, "NewConsumer")
    assert encode(structs).to_pylist() == data
    assert encode(structs.slice(start, length)).to_pylist() == data[start : start + length]


def test_no_rows_and_only_nulls(rig: Rig) -> None:
    call, encode = rig.call("NewConsumer"), encoder(rig, "NewConsumer")
    for data in ([], [None], [None] * 5):
        structs = call(pa.array(data, pa.binary()))
        assert structs.to_pylist() == data
        assert encode(structs).to_pylist() == data
    assert call(pa.array([None, None])).to_pylist() == [None, None]


def test_what_stands_below_a_null_struct_is_not_looked_at(rig: Rig) -> None:
    # Arrow leaves anything there; here an enum name that is none, and lists with values.
    inner = pa.StructArray.from_arrays(
        [pa.array([1, 2]), pa.array(["no such color", "BLUE"])], ["id", "color"], mask=pa.array([True, False])
    )
    lists = pa.array([[1], [2]], pa.list_(pa.int32()))
    structs = pa.StructArray.from_arrays([inner, lists], ["basic", "list"], mask=pa.array([False, True]))
    assert encoder(rig, "NewConsumer")(structs).to_pylist() == [b"\x22\x01\x01", None]


def test_large_types_of_arrow_are_encoded(rig: Rig) -> None:
    kind = pa.struct([("text", pa.large_string()), ("color", pa.large_string())])
    assert rig.encode("Basic", [{"text": "t", "color": "BLUE"}], kind) == [b"\x12\x01t\x18\x05"]
    kind = pa.struct([("int32_value", pa.large_list(pa.int32())), ("bytes_value", pa.large_list(pa.large_binary()))])
    assert rig.encode("Lists", [{"int32_value": [1], "bytes_value": [b"x"]}], kind) == [b"\x12\x01\x01\x7a\x01x"]


def test_small_integers_dates_and_void_columns_are_encoded(rig: Rig) -> None:
    kind = pa.struct([("int32_value", pa.int8()), ("sint32_value", pa.int16()), ("sfixed32_value", pa.date32())])
    message = rig.type("Scalars").FromString(
        rig.encode("Scalars", [{"int32_value": 1, "sint32_value": -2, "sfixed32_value": 3}], kind)[0]
    )
    assert (message.int32_value, message.sint32_value, message.sfixed32_value) == (1, -2, 3)
    kind = pa.struct([("id", pa.int64()), ("text", pa.null())])
    assert rig.encode("Basic", [{"id": 1, "text": None}], kind) == [b"\x08\x01"]


def test_a_number_that_an_unsigned_field_cannot_hold_is_an_error(rig: Rig) -> None:
    kind = pa.struct([("small", pa.int64())])
    assert rig.encode("Unsigned", [{"small": 2**32 - 1}], kind) == [b"\x08\xff\xff\xff\xff\x0f"]
    for value in (2**32, -(2**31) - 1):
        with pytest.raises(Exception, match=r"PROTOBUF_VALUE_OUT_OF_RANGE.*`small`"):
            rig.encode("Unsigned", [{"small": value}], kind)
    kind = pa.struct([("large", pa.decimal128(20, 0))])
    with pytest.raises(Exception, match=r"PROTOBUF_VALUE_OUT_OF_RANGE"):
        rig.encode("Unsigned", [{"large": 2**64}], kind)


@pytest.mark.parametrize("bad", range(0, 64, 7))
def test_a_bad_row_anywhere_leaves_the_others_as_they_are(bad: int, rig: Rig) -> None:
    data = people(rig, 64)
    expected = rig.raw("NewConsumer", data).values.to_pylist()
    for damage in (b"\xff", b"\x22\x01\xff", b"\x08\x01", b"\x0a\x01\xff"):
        spoilt = [*data[:bad], damage, *data[bad + 1 :]]
        seen = rig.raw("NewConsumer", spoilt)
        assert list(seen.errors) == [bad]
        assert seen.values.to_pylist() == [*expected[:bad], None, *expected[bad + 1 :]]


def test_a_message_deeper_than_protobuf_allows_is_a_bad_row(rig: Rig) -> None:
    data = b""
    for _ in range(150):
        data = (
            b"\x12" + (bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])) + data
        )
    seen = rig.raw("Person", [data, b"\x0a\x01a"], {"recursive.fields.max.depth": "2"})
    assert list(seen.errors) == [0]
    assert seen.values.to_pylist()[1] == {"name": "a", "bff": None}


@pytest.mark.parametrize(
    "length", [2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, *(2**64 - back for back in range(1, 12))]
)
@pytest.mark.parametrize("tail", [b"", b"\x08\x01", b"\x0a\x00" * 6])
def test_a_length_that_is_too_large_is_a_bad_row_wherever_it_stands(length: int, tail: bytes, rig: Rig) -> None:
    text = varint(length) + tail
    inside = b"\x12" + text
    places = {
        "RepeatedMessage": [b"\x0a" + text, b"\x0a" + varint(len(inside)) + inside, b"\x9a\x05" + text],
        "Lists": [b"\x12" + text, b"\x72" + text, b"\x7a" + text, b"\x9a\x05" + text],
        "Maps": [b"\x0a" + text, b"\x0a" + varint(len(inside)) + inside],
        "Times": [b"\x0a" + text],
    }
    for message, data in places.items():
        assert list(rig.raw(message, [b"", *data]).errors) == list(range(1, len(data) + 1)), message


def test_a_record_of_the_kinesis_producer_library(rig: Rig) -> None:
    kpl = rig.of("kpl/messages")
    record = kpl.type("AggregatedRecord")(partition_key_table=["a", "b"])
    record.records.add(partition_key_index=1, data=b"payload").tags.add(key="k")
    row = kpl.row("AggregatedRecord", record)
    assert row["partition_key_table"] == ["a", "b"]
    assert row["records"] == [
        {
            "partition_key_index": 1,
            "explicit_hash_key_index": None,
            "data": b"payload",
            "tags": [{"key": "k", "value": None}],
        }
    ]
    assert list(kpl.raw("AggregatedRecord", [b"\x1a\x02\x08\x01", b""]).errors) == [0]
    kpl.again("AggregatedRecord", [record])


def test_a_raw_confluent_frame_gives_an_error_that_says_so() -> None:
    rig = Rig(Engine.AUTO)
    by_guid = b"\x01" + bytes(range(16)) + b"\x00"
    assert "Confluent" in rig.rows("Basic", [by_guid], {"mode": "PERMISSIVE", "on.error": "column"})[0]["error"]
    frame = b"\x00\x00\x00\x00\x07\x00" + rig.type("Basic")(id=1).SerializeToString()
    with pytest.raises(Exception, match="It may be in a Confluent frame") as caught:
        rig.rows("Basic", [frame])
    assert "give schemaRegistry or the option wire.format=confluent" in str(caught.value)
    [row] = rig.rows("Basic", [frame], {"mode": "PERMISSIVE", "on.error": "column"})
    assert "It may be in a Confluent frame" in row["error"]


def test_a_call_travels_as_a_pickle_of_bytes_and_options() -> None:
    rig = Rig(Engine.AUTO)
    call = rig.call("Basic")
    again = pickle.loads(pickle.dumps(call))
    assert again == call
    assert again(pa.array([b"\x08\x01"])).to_pylist()[0]["id"] == 1


def test_workers_load_no_pydantic() -> None:
    code = "import sys, connectors.protobuf.worker; print(sorted(set(sys.modules) & {'pydantic', 'typer', 'rich'}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
