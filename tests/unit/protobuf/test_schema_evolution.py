"""Messages older and newer than their reader: what docs/how-to/schema-evolution.md says, in each codec."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.protobuf.errors import ProtobufDataError
from tests.support.protobuf_rig import Rig, compiled

HEAD = 'syntax = "proto3"; package shop; enum Status { NEW = 0; PAID = 1; '
ORDER = "message Order { string order_id = 1; "
OLD = compiled(HEAD + "} " + ORDER + "int64 amount = 2; Status status = 3; }")
NEW = compiled(
    HEAD
    + "LOST = 2; } "
    + ORDER
    + "int64 total = 2; Status status = 3; string coupon = 4; repeated string lines = 5; }"
)
REMOVED = compiled(HEAD + "} " + ORDER + "reserved 2; }")
PAGE = (Path(__file__).parents[3] / "docs/how-to/schema-evolution.md").read_text(encoding="utf-8")


def test_a_new_field_is_dropped_by_an_old_reader_and_null_for_an_old_message(rig: Rig) -> None:
    old, new = rig.of(OLD), rig.of(NEW)
    written = new.type("Order")(order_id="o1", total=5, status=1, coupon="c")
    assert old.row("Order", written) == {"order_id": "o1", "amount": 5, "status": "PAID"}
    before = old.type("Order")(order_id="o1", amount=5, status=1)
    row = {"order_id": "o1", "total": 5, "status": "PAID", "coupon": None, "lines": []}
    assert new.row("Order", before) == row
    assert new.row("Order", before, {"emit.default.values": "true"}) == row | {"coupon": ""}


def test_a_removed_field_is_null_for_an_old_reader_and_no_column_for_a_new_one(rig: Rig) -> None:
    old, new = rig.of(OLD), rig.of(REMOVED)
    assert old.row("Order", new.type("Order")(order_id="o1"))["amount"] is None
    assert new.row("Order", old.type("Order")(order_id="o1", amount=5)) == {"order_id": "o1"}


def test_a_new_value_of_an_enum_has_a_made_up_name(rig: Rig) -> None:
    row = rig.of(OLD).row("Order", rig.of(NEW).type("Order")(order_id="o1", status=2))
    assert f"`{row['status']}`" in PAGE


def test_a_number_that_is_used_again_is_a_bad_row_or_a_wrong_value(rig: Rig) -> None:
    old = rig.of(OLD)
    text, flag = (
        rig.of(compiled(f'syntax = "proto3"; package shop; {ORDER} {kind} x = 2; }}')) for kind in ("string", "bool")
    )
    with pytest.raises(ProtobufDataError, match="PROTOBUF_FIELD_TYPE_MISMATCH"):
        old.row("Order", text.type("Order")(order_id="o1", x="five"))
    assert old.row("Order", flag.type("Order")(order_id="o1", x=True))["amount"] == 1


ONE = 'syntax = "proto{}"; enum E {{ A = 0; }} message M {{ {} a = 1; N n = 2; }} message N {{ repeated {} l = 1; }}'


@pytest.mark.parametrize(
    ("written", "read", "value", "seen"),
    [
        ("int64", "int32", 2**40 + 5, 5),
        ("uint64", "uint32", 2**40 + 5, 5),
        ("int64", "int32", 2**31, -(2**31)),
        ("sint64", "sint32", 2**40 + 5, 5),
        ("sint64", "sint32", -(2**40) - 5, -5),
        ("int64", "uint64", -1, -1),
        ("uint32", "int32", 2**32 - 1, -1),
        ("fixed64", "sfixed64", 2**64 - 1, -1),
        ("int64", "bool", 2**40, True),
        ("int64", "E", 7, "UNKNOWN_ENUM_VALUE_E_7"),
        ("bytes", "string", "\u017c".encode(), "\u017c"),
    ],
)
def test_a_type_of_the_same_encoding_is_read_as_the_page_says(
    rig: Rig, written: str, read: str, value: object, seen: object
) -> None:
    writer, reader = (rig.of(compiled(ONE.format(3, kind, kind))) for kind in (written, read))
    row = reader.row("M", writer.type("M")(a=value, n={"l": [value]}))
    assert row == {"a": seen, "n": {"l": [seen]}}
    assert f"`{read}`" in PAGE or read == "E"


def test_an_unknown_value_of_a_closed_enum_and_bytes_that_are_not_text_are_read_as_the_page_says(rig: Rig) -> None:
    closed = rig.of(compiled(ONE.format(2, "optional E", "E").replace(" N n", " optional N n")))
    numbers = rig.of(compiled(ONE.format(3, "int32", "int32")))
    with pytest.raises(ProtobufDataError, match="MISMATCH"):
        closed.row("M", numbers.type("M")(a=7))
    assert closed.row("M", numbers.type("M")(n={"l": [7, 0]})) == {"a": None, "n": {"l": ["A"]}}
    data = rig.of(compiled(ONE.format(3, "bytes", "bytes"))).type("M")(a=b"\xff")
    with pytest.raises(ProtobufDataError, match="MALFORMED_PROTOBUF_MESSAGE"):
        rig.of(compiled(ONE.format(3, "string", "string"))).row("M", data)
    lenient = compiled(ONE.format(2, "optional string", "string").replace(" N n", " optional N n"))
    assert rig.of(lenient).row("M", data)["a"] == "\ufffd"
