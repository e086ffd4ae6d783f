"""Wide messages: what depends on the schema alone is made once a worker, and a small batch costs little."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from connectors.protobuf.errors import ProtobufDataError
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.ptars.decoder import PtarsDecoder
from connectors.protobuf.ptars.encoder import PtarsEncoder
from connectors.protobuf.upb.decoder import AdaptiveDecoder, RowDecoder, UpbDecoder
from connectors.protobuf.upb.encoder import AdaptiveEncoder, RowEncoder, UpbEncoder
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine
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


def test_a_batch_of_one_row_makes_few_calls_for_its_columns() -> None:
    rig = Rig(Engine.AUTO, compiled(fields("one_row")))
    decode = rig.call("Wide")
    encode = EncodeCall(rig.data, decode.message, decode.options, Engine.AUTO)
    column = pa.array([message(rig)], pa.binary())
    for _ in range(2):
        assert encode(decode(column)).equals(column)
    with counted() as calls:
        structs = decode(column)
    assert calls["ours"] < COLUMNS / 10
    with counted() as calls:
        assert encode(structs).equals(column)
    assert COLUMNS <= calls["ours"] < 1.2 * COLUMNS


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


@pytest.mark.parametrize(
    ("rows", "kind"), [(1, RowDecoder), (8, RowDecoder), (9, UpbDecoder), (64, UpbDecoder), (65, PtarsDecoder)]
)
def test_auto_takes_the_codec_that_is_fastest_for_the_size_of_a_batch(rows: int, kind: type) -> None:
    rig = Rig(Engine.AUTO)
    decoder = rig.call("Basic").decoder
    assert isinstance(decoder, AdaptiveDecoder)
    column = pa.array([rig.type("Basic")(id=1).SerializeToString()] * rows, pa.binary())
    assert type(decoder.chosen(column)) is kind


def test_auto_takes_ptars_for_one_row_with_very_many_values() -> None:
    rig = Rig(Engine.AUTO)
    decoder = rig.call("Lists").decoder
    assert isinstance(decoder, AdaptiveDecoder)
    few, many = (rig.type("Lists")(int32_value=range(count)).SerializeToString() for count in (10, 100_000))
    assert type(decoder.chosen(pa.array([few], pa.binary()))) is RowDecoder
    assert type(decoder.chosen(pa.array([many], pa.binary()))) is PtarsDecoder
    assert rig.rows("Lists", [many])[0]["int32_value"] == list(range(100_000))


@pytest.mark.parametrize(
    ("rows", "kind"), [(1, RowEncoder), (8, RowEncoder), (9, UpbEncoder), (32, UpbEncoder), (33, PtarsEncoder)]
)
def test_auto_takes_the_encoder_that_is_fastest_for_the_size_of_a_batch(rows: int, kind: type) -> None:
    rig = Rig(Engine.AUTO)
    encoder = EncodeCall(rig.data, "behaviours.Basic", ProtobufOptions(), Engine.AUTO).encoder
    assert isinstance(encoder, AdaptiveEncoder)
    encoder.encode(pa.array([{"id": 1}]))
    assert type(encoder.chosen(pa.array([{"id": 1}] * rows))) is kind


def test_a_row_that_cannot_be_encoded_has_the_error_of_the_reference() -> None:
    kind = pa.struct([("id", pa.int64()), ("color", pa.string())])
    texts = []
    for engine in (Engine.AUTO, Engine.PYTHON):
        rig = Rig(engine)
        rig.encode("Basic", [{"id": 1, "color": "RED"}], kind)
        with pytest.raises(ProtobufDataError, match="PINK") as caught:
            rig.encode("Basic", [{"id": 1, "color": "RED"}, {"id": 2, "color": "PINK"}], kind)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_columns_of_one_field_and_times_that_python_has_not_are_encoded_in_small_batches() -> None:
    """A struct may have two columns of one name, and a Timestamp goes beyond the year 9999."""
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    late = pa.array([{"time": 1 << 60}], pa.struct([("time", pa.int64())]))
    late = late.view(pa.struct([("time", pa.timestamp("us", "UTC"))]))
    for message, structs in (("Basic", twice), ("Times", late)):
        found = []
        for engine in (Engine.AUTO, Engine.PYTHON):
            rig = Rig(engine)
            call = EncodeCall(rig.data, f"behaviours.{message}", ProtobufOptions(), engine)
            found += [call(structs).to_pylist() for _ in range(2)]
        assert found == [found[0]] * 4
        assert found[0][0]


@pytest.mark.parametrize("rows", [1, 9, 65])
def test_a_batch_of_any_size_has_the_same_values_and_errors(rows: int) -> None:
    made: list[Callable[[], Rig]] = [lambda: Rig(Engine.AUTO), lambda: Rig(Engine.PYTHON)]
    data = [b"\x08\x01", None, b"\xff", b"", b"\x08\x00"] * rows
    auto, python = (rig().raw("Basic", data[:rows]) for rig in made)
    assert auto.errors == python.errors
    assert auto.values.equals(python.values)
