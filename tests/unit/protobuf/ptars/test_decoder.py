"""The things that ptars does in its own way, each shown to be so, and each guard shown to hold.

The numbers are those of docs/reference/protobuf-behaviours.md. Where ptars itself changes, the first half of a test
fails: then the guard can be looked at again, with the new version.
"""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from ptars import HandlerPool, PtarsConfig

from connectors.protobuf.errors import ProtobufAnalysisError
from connectors.protobuf.ptars.decoder import PtarsDecoder, PtarsError, guarded, unsupported
from connectors.protobuf.ptars.encoder import PtarsEncoder, _supported
from connectors.protobuf.schema.plan import compile_plan
from connectors.protobuf.upb.decoder import AdaptiveDecoder, UpbDecoder
from connectors.protobuf.worker import EncodeCall, Engine
from tests.support.protobuf_generated import tagged, varint
from tests.support.protobuf_rig import Rig, compiled

PLAIN = Rig(Engine.PYTHON)


FAST = Rig(Engine.FAST)


def handler(rig: Rig, message: str, **config: Any) -> Any:
    """Ptars as it is, for a message."""
    descriptor = rig.schema.find(message)
    return HandlerPool([descriptor.file], PtarsConfig(**config)).get_for_message(descriptor)


def by_ptars(rig: Rig, message: str, data: list[bytes | None], **config: Any) -> list[Any]:
    rows: list[Any] = handler(rig, message, **config).array_to_record_batch(pa.array(data, pa.binary())).to_pylist()
    return rows


def basic(number: int) -> bytes:
    return PLAIN.type("Basic")(id=number, text=f"text {number}").SerializeToString()


@pytest.mark.parametrize("bad", [[7777], [0], [9999], [3, 3000, 6000, 9000], list(range(0, 10_000, 7))])
def test_trap_01_a_bad_row_never_kills_its_batch(bad: list[int]) -> None:
    rows: list[bytes | None] = [basic(number) for number in range(10_000)]
    for place in bad:
        rows[place] = b"\xff" if place % 2 else b"\x12\x02\xff\xff"
    with pytest.raises(ValueError, match=r"varint|UTF-8|EOF"):
        by_ptars(FAST, "Basic", rows)
    seen = FAST.raw("Basic", rows)
    assert sorted(seen.errors) == bad
    values = seen.values.to_pylist()
    assert [place for place, value in enumerate(values) if value is None] == bad
    assert all(value is None or value["text"] == f"text {place}" for place, value in enumerate(values))


def test_trap_02_null_stays_null() -> None:
    assert by_ptars(FAST, "Basic", [None]) == [{"id": 0, "text": "", "color": 0}]
    assert FAST.raw("Basic", [None, basic(1), None]).values.to_pylist() == [
        None,
        {"id": 1, "text": "text 1", "color": None},
        None,
    ]
    assert FAST.raw("Basic", [None, None]).values.null_count == 2


def test_trap_03_large_binary_is_cast_and_a_panic_does_not_escape(caplog: pytest.LogCaptureFixture) -> None:
    large = pa.array([basic(1)], pa.large_binary())
    read = handler(FAST, "Basic").array_to_record_batch
    with pytest.raises(BaseException, match="BinaryArray") as caught:
        read(large)
    assert not isinstance(caught.value, Exception)
    with caplog.at_level(logging.WARNING), pytest.raises(PtarsError, match="panic"):
        guarded(read, large)
    assert "panicked" in caplog.text
    call = FAST.call("Basic")
    assert call(large).to_pylist() == [{"id": 1, "text": "text 1", "color": None}]


def test_trap_04_zero_without_presence_is_null() -> None:
    assert by_ptars(FAST, "Basic", [b""]) == [{"id": 0, "text": "", "color": 0}]
    assert FAST.row("Basic", b"") == {"id": None, "text": None, "color": None}


def test_trap_05_unknown_values_of_enums() -> None:
    assert by_ptars(FAST, "Basic", [b"\x18\x07"], enum_repr="string")[0]["color"] == "7"
    assert FAST.row("Basic", b"\x18\x07")["color"] == "UNKNOWN_ENUM_VALUE_Color_7"
    closed = FAST.of("behaviours2")
    assert by_ptars(closed, "Closed", [b"\x08\x07"])[0]["level"] == 7
    assert list(closed.raw("Closed", [b"\x08\x07", b"\x08\x01"]).errors) == [0]


def test_trap_06_proto2_defaults_required_fields_and_extensions() -> None:
    two = FAST.of("behaviours2")
    assert by_ptars(two, "Defaults", [b""])[0]["number"] is None
    assert two.row("Defaults", b"")["number"] == 7
    assert by_ptars(two, "Required", [b""])[0]["name"] is None
    assert list(two.raw("Required", [b"\x08\x01\x12\x01n", b"\x08\x01"]).errors) == [1]
    message = two.type("Extended")(name="n").SerializeToString() + b"\xa2\x06\x01s"
    assert set(by_ptars(two, "Extended", [message])[0]) == {"name"}
    assert two.row("Extended", message, extensions=True)["extension_string"] == "s"


def test_trap_07_another_wire_type_is_seen() -> None:
    wrong = bytes.fromhex("0a0161")
    assert by_ptars(FAST, "Basic", [wrong])[0]["id"] == 0
    assert "PROTOBUF_FIELD_TYPE_MISMATCH" in FAST.raw("Basic", [basic(1), wrong]).errors[1]


@pytest.mark.parametrize(
    ("message", "data"),
    [
        # -1 in five bytes instead of ten, and five bytes of another wire type.
        ("Scalars", "10ffffffff0f 6d00000000"),
        # Two lists of one number that were not packed, which spares two bytes, and two bytes of another wire type.
        ("Lists", "1001 1801 6000"),
    ],
)
def test_trap_07_another_wire_type_is_seen_where_it_makes_up_for_bytes_that_were_spared(
    message: str, data: str
) -> None:
    assert list(PLAIN.raw(message, [bytes.fromhex(data)]).errors) == [0]
    seen = FAST.raw(message, [b"", bytes.fromhex(data)])
    assert list(seen.errors) == [1]
    assert "PROTOBUF_FIELD_TYPE_MISMATCH" in seen.errors[1]


@pytest.mark.parametrize(("kind", "width"), [("float", 4), ("fixed32", 4), ("double", 8), ("sfixed64", 8)])
@pytest.mark.parametrize("number", [1, 127, 5000])
def test_trap_07_the_rest_of_a_packed_list_is_seen_where_it_makes_up_for_tags_that_were_spared(
    kind: str, width: int, number: int
) -> None:
    text = f'syntax = "proto3"; message M {{ repeated {kind} x = {number} [packed = false]; }}'
    rows = [
        tagged(number, 2, varint(count * width + rest) + b"\0" * (count * width + rest))
        for count in range(1, 12)
        for rest in range(width)
    ]
    slow, fast = (Rig(engine, compiled(text)).raw("M", rows) for engine in (Engine.PYTHON, Engine.FAST))
    assert len(slow.errors) == 11 * (width - 1)
    assert fast.errors == slow.errors
    assert fast.values.equals(slow.values)


def test_trap_07_damage_below_the_root_is_seen() -> None:
    packed = rig_bytes("Lists", "2a05 0100000002")  # a packed fixed32 of five bytes
    assert by_ptars(FAST, "Lists", [packed])[0]["fixed32_value"] == [1]
    assert list(FAST.raw("Lists", [packed, b""]).errors) == [0]


def rig_bytes(message: str, text: str) -> bytes:
    assert FAST.schema.find(message)
    return bytes.fromhex(text)


def test_trap_08_recursion_is_cut_at_its_depth() -> None:
    message = FAST.type("Person")(name="a", bff={"name": "b", "bff": {"name": "c"}})
    kind = handler(FAST, "Person").array_to_record_batch(pa.array([b""], pa.binary())).schema
    assert pa.types.is_binary(kind.field("bff").type)
    assert FAST.row("Person", message, {"recursive.fields.max.depth": "2"}) == {"name": "a", "bff": {"name": "b"}}


def test_trap_09_wrappers_are_structs_unless_unwrapped_and_a_wrapped_zero_is_null() -> None:
    zero = FAST.type("Wrappers")(int32_value={"value": 0}, string_value={"value": "s"}).SerializeToString()
    assert by_ptars(FAST, "Wrappers", [zero])[0]["int32_value"] == 0
    assert FAST.row("Wrappers", zero)["int32_value"] == {"value": None}
    assert FAST.row("Wrappers", zero, {"unwrap.primitive.wrapper.types": "true"})["int32_value"] is None
    # ptars does not look whether the text in a wrapper is UTF-8.
    bad = bytes.fromhex("3203 0a01ff")
    assert list(FAST.raw("Wrappers", [bad, zero]).errors) == [0]


def test_trap_10_unsigned_numbers_wrap() -> None:
    message = FAST.type("Unsigned")(small=2**32 - 1, large=2**64 - 1).SerializeToString()
    assert by_ptars(FAST, "Unsigned", [message])[0]["large"] == 2**64 - 1
    assert FAST.row("Unsigned", message)["large"] == -1


def test_trap_11_times_are_microseconds() -> None:
    default = handler(FAST, "Times").array_to_record_batch(pa.array([b""], pa.binary())).schema.field("time").type
    assert default.unit == "ns"
    found = FAST.raw("Times", [b""]).values.type
    assert found.field("time").type == pa.timestamp("us", "UTC")
    assert found.field("duration").type == pa.duration("us")


def test_trap_12_a_time_that_does_not_fit_is_an_error_and_no_panic() -> None:
    message = FAST.type("Times")()
    message.time.seconds = 2**62
    seen = FAST.raw("Times", [message.SerializeToString(), b""])
    assert list(seen.errors) == [0]
    assert "long overflow" in seen.errors[0]


def test_trap_15_of_a_oneof_ptars_keeps_every_member() -> None:
    both = bytes.fromhex("0a016b 1005 1a0174")
    assert by_ptars(FAST, "OneOf", [both])[0]["number"] == 5
    assert FAST.row("OneOf", both) == {"key": "k", "number": None, "text": "t", "basic": None}


def test_trap_16_a_map_entry_without_its_message_makes_ptars_panic() -> None:
    entry = bytes.fromhex("62020801")
    with pytest.raises(BaseException, match="unmasked nulls"):
        by_ptars(FAST, "Maps", [entry])
    assert FAST.row("Maps", entry)["bool_basic"] == [(True, {"id": None, "text": None, "color": None})]


def test_trap_17_a_large_field_number_takes_memory_so_the_reference_decodes() -> None:
    rig = Rig(Engine.AUTO, compiled('syntax = "proto3"; message M { int32 a = 536870911; int32 b = 1; }'))
    plan = compile_plan(rig.schema.find("M"), rig.schema, rig.call("M").options)
    assert "536870911" in unsupported(plan)
    decoder = rig.call("M").decoder
    assert isinstance(decoder, AdaptiveDecoder)
    assert isinstance(decoder.chosen(pa.array([b""] * 1000)), UpbDecoder)
    assert rig.row("M", rig.type("M")(a=5)) == {"a": 5, "b": None}
    with pytest.raises(ProtobufAnalysisError, match=r"PROTOBUF_ENGINE.*536870911"):
        _ = Rig(Engine.FAST, rig.data).call("M").decoder


def test_trap_18_groups_are_read_by_the_reference() -> None:
    two = Rig(Engine.AUTO, "behaviours2")
    assert two.row("Group", two.type("Group")(before=1, inside={"text": "t"})) == {"before": 1, "inside": {"text": "t"}}
    unknown = basic(1) + bytes.fromhex("a301 0801 a401")  # a group with the number 20
    assert FAST.row("Basic", unknown) == {"id": 1, "text": "text 1", "color": None}


def test_trap_21_names_that_differ_in_case_only_make_ptars_panic() -> None:
    cases = Rig(Engine.FAST, "behaviours_cases")
    with pytest.raises(BaseException, match="camel-case"):
        handler(cases, "Cases")
    message = cases.type("Cases")(name="a", NAME="b")
    assert cases.row("Cases", message, case_sensitive=True) == {"name": "a", "NAME": "b"}


def test_the_fast_codecs_are_the_ones_that_are_tested() -> None:
    assert isinstance(FAST.call("Basic").decoder, PtarsDecoder)
    call = EncodeCall(FAST.data, "behaviours.Basic", FAST.call("Basic").options, Engine.FAST)
    assert isinstance(call.encoder, PtarsEncoder)
    fields = call.encoder._upb.plan(FAST.raw("Basic", [b""]).values.type)
    assert _supported(fields)


def test_ptars_refuses_what_it_cannot_build_with_an_error_of_ours() -> None:
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    file.message_type.add(name="M").field.add(name="a", number=1, type=FieldDescriptorProto.TYPE_INT32, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    with pytest.raises(PtarsError):
        guarded(lambda _: HandlerPool([file]), pa.array([], pa.binary()))
