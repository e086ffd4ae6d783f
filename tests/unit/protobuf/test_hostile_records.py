"""Records made to break what a bad record is sent to: their errors have a bounded length, cut at a character."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors.protobuf.errors import ProtobufDataError
from connectors.pubsub.sink.rows import MAX_VALUE_BYTES
from tests.support.protobuf_generated import varint
from tests.support.protobuf_rig import Rig, compiled

NAMES = [f"a_required_field_with_a_long_name_number_{number}" for number in range(60)]
REQUIRED = (
    'syntax = "proto2"; message M { '
    + " ".join(f"required int32 {name} = {number + 1};" for number, name in enumerate(NAMES))
    + " }"
)
ANY = 'syntax = "proto3"; import "google/protobuf/any.proto"; message M { google.protobuf.Any any = 1; }'
DEEP = 'syntax = "proto3"; message M { M child = 1; string text = 2; }'
COLUMN = {"mode": "PERMISSIVE", "on.error": "column"}
MOST = 1000


def any_of(url: str, value: bytes = b"") -> bytes:
    inner = _delimited(1, url.encode()) + _delimited(2, value)
    return _delimited(1, inner)


def _delimited(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


HOSTILE = {
    "60 missing fields": (REQUIRED, b"", {}),
    "an Any of an unknown type with a long name": (ANY, any_of("type.googleapis.com/" + "x" * 5000), {}),
    "an Any with a long name of many bytes a character": (ANY, any_of("type.googleapis.com/" + "\u20ac" * 3000), {}),
    "an Any whose url is not a type": (ANY, any_of("\u20ac" * 3000), {}),
    "text that is not UTF-8": (DEEP, _delimited(2, b"\xff" * 3000), {}),
    "cut short": (DEEP, b"\x0a\x7f", {}),
    "like a frame": (DEEP, b"\0\0\0\0\x01\0" + b"\xff" * 3000, {}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_error_fits_into_an_attribute_of_pubsub(case: str, rig: Rig) -> None:
    text, data, options = HOSTILE[case]
    rig = rig.of(compiled(text))
    json = {"convert.any.fields.to.json": "true"} if text == ANY else {"recursive.fields.max.depth": "2"}
    [row] = rig.rows("M", [data], COLUMN | (json if text != REQUIRED else {}) | options)
    assert row["value"] is None
    assert 0 < len(row["error"].encode()) <= MOST <= MAX_VALUE_BYTES


def test_a_long_error_says_that_it_was_cut_and_keeps_its_advice(rig: Rig) -> None:
    data = b"\0\0\0\0\x01\0"
    [row] = rig.of(compiled(REQUIRED)).rows("M", [b""], COLUMN)
    assert row["error"].startswith(f"Message missing required fields: {NAMES[0]}, ")
    assert row["error"].endswith("...")
    [framed] = rig.of(compiled(DEEP)).rows("M", [data + b"\xff"], COLUMN | {"recursive.fields.max.depth": "2"})
    assert framed["error"].endswith("or the option wire.format=confluent.")


def test_the_error_that_ends_a_query_is_bounded_too(rig: Rig) -> None:
    call = rig.of(compiled(REQUIRED)).call("M", {})
    with pytest.raises(ProtobufDataError) as caught:
        call(pa.array([b""], pa.binary()))
    assert len(str(caught.value)) < 2 * MOST
