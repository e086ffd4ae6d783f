"""Arrays as Spark may hand them over: slices, chunks, large types, nothing at all; and batches of mixed quality."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.protobuf.worker import EncodeCall
from tests.support.protobuf_generated import varint
from tests.support.protobuf_rig import Rig


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
