"""Messages that were made to do harm, text that is not text, and the choice of a decoder."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from connectors.protobuf.ptars.decoder import PtarsDecoder
from connectors.protobuf.upb.decoder import AdaptiveDecoder, UpbDecoder
from connectors.protobuf.worker import Engine
from tests.support.protobuf_rig import Rig, compiled

DEEP = 150_000


START, END = b"\x7b", b"\x7c"  # of a group with the number 15, which no message here declares


@pytest.mark.parametrize("data", [START * DEEP, START * DEEP + END * DEEP], ids=["open", "closed"])
def test_groups_nested_deeper_than_the_stack_are_a_bad_row_and_not_the_end_of_the_process(
    data: bytes, rig: Rig
) -> None:
    seen = rig.raw("Basic", [b"\x08\x01", data, None, b"\x08\x02"])
    assert list(seen.errors) == [1]
    assert [row and row["id"] for row in seen.values.to_pylist()] == [1, None, None, 2]


def test_many_groups_side_by_side_are_read_over(rig: Rig) -> None:
    assert rig.row("Basic", b"\x08\x01" + (START + END) * 20_000)["id"] == 1


TEXTS = 'syntax = "proto2"; {} message M {{ optional string text = 1; map<string, string> texts = 2; }}'


BAD_TEXT, BAD_KEY, BAD_VALUE = (bytes.fromhex(each) for each in ("0a01ff", "12060a01ff120161", "12060a0161 1201ff"))


def test_maps_of_proto2_hold_nothing_but_utf_8(rig: Rig) -> None:
    seen = rig.of(compiled(TEXTS.format(""))).raw("M", [BAD_TEXT, BAD_KEY, BAD_VALUE])
    assert sorted(seen.errors) == [1, 2]
    assert seen.values.to_pylist()[0] == {"text": "\ufffd", "texts": []}


def test_a_file_with_java_string_check_utf8_holds_nothing_but_utf_8(rig: Rig) -> None:
    seen = rig.of(compiled(TEXTS.format("option java_string_check_utf8 = true;"))).raw("M", [BAD_TEXT, b"\x0a\x01a"])
    assert list(seen.errors) == [0]
    assert seen.values.to_pylist()[1] == {"text": "a", "texts": []}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # As new String(bytes, UTF_8) of OpenJDK has it.
        ("eda080", "\ufffd"),
        ("41eda08042", "A\ufffdB"),
        ("edbfbf", "\ufffd"),
        ("eda0bdedb880", "\ufffd\ufffd"),
        ("eda0", "\ufffd"),
        ("eda041", "\ufffdA"),
        ("ed9fbf", "\ud7ff"),
        ("ed", "\ufffd"),
        ("e282eda080", "\ufffd\ufffd"),
        ("f0808080", "\ufffd\ufffd\ufffd\ufffd"),
    ],
)
def test_surrogates_in_lenient_text_are_as_many_replacements_as_in_java(data: str, expected: str, rig: Rig) -> None:
    text = bytes.fromhex(data)
    assert rig.of("behaviours2").row("Plain", b"\x12" + bytes([len(text)]) + text)["text"] == expected


LENGTHS = """syntax = "proto3"; message N { repeated int32 r = 1; string s = 2; }
message M { N one = 1; int32 x = 2; repeated N many = 3; map<string, N> named = 4; }"""


WRONG_TYPE = b"\x12\x00"  # x as bytes


KEY = b"\x0a\x01k"


def short(length: int) -> bytes:
    """An N of so many bytes, which has one more if it is written in the usual way, with its number packed."""
    return b"\x08\x05\x12" + bytes([length - 4]) + b"a" * (length - 4)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x7f" + short(127),
        b"\x1a\x7f" + short(127),
        # The value of an entry, and the entry itself.
        b"\x22\x84\x01" + KEY + b"\x12\x7f" + short(127),
        b"\x22\x7f" + KEY + b"\x12\x7a" + short(122),
    ],
    ids=["message", "list", "value", "entry"],
)
def test_a_byte_spared_in_a_length_hides_no_field_of_another_wire_type(data: bytes, rig: Rig) -> None:
    seen = rig.of(compiled(LENGTHS)).raw("M", [data, data + WRONG_TYPE])
    assert list(seen.errors) == [1]
    assert "PROTOBUF_FIELD_TYPE_MISMATCH" in seen.errors[1]


@pytest.mark.parametrize(("rows", "kind"), [(1, UpbDecoder), (64, UpbDecoder), (65, PtarsDecoder)])
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
    assert type(decoder.chosen(pa.array([few], pa.binary()))) is UpbDecoder
    assert type(decoder.chosen(pa.array([many], pa.binary()))) is PtarsDecoder
    assert rig.rows("Lists", [many])[0]["int32_value"] == list(range(100_000))


@pytest.mark.parametrize("rows", [1, 65])
def test_a_batch_of_any_size_has_the_same_values_and_errors(rows: int) -> None:
    made: list[Callable[[], Rig]] = [lambda: Rig(Engine.AUTO), lambda: Rig(Engine.PYTHON)]
    data = [b"\x08\x01", None, b"\xff", b"", b"\x08\x00"] * rows
    auto, python = (rig().raw("Basic", data[:rows]) for rig in made)
    assert auto.errors == python.errors
    assert auto.values.equals(python.values)
