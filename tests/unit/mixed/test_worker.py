"""`from_mixed` on Arrow's columns: each message by its own type, and what is of none; a registry on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from google.protobuf.duration_pb2 import Duration

from connectors.core.errors import ConnectorError
from connectors.mixed.errors import MixedAnalysisError, MixedDataError
from connectors.mixed.selection import By
from connectors.mixed.worker import MixedCall
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.avro_rig import encode
from tests.support.mixed_rig import DETAILS, MEMBERS, ORDER, TOPIC, MixedTopic, order, payment

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FRAME = 5


@pytest.fixture
def topic() -> Iterator[MixedTopic]:
    with SchemaRegistryServer() as running:
        yield MixedTopic(running)


def rows_of(call: MixedCall, messages: Sequence[bytes | None], *others: pa.Array) -> list[Any]:
    result = call(pa.array(messages, pa.binary()), *others)
    result.validate(full=True)
    assert result.type == call(pa.array([], pa.binary()), *(other[:0] for other in others)).type
    rows: list[Any] = result.to_pylist()
    return rows


def whole(kind: str, value: Any) -> dict[str, Any]:
    return {"type": kind, **dict.fromkeys(MEMBERS), kind: value}


def begins(place: int = FRAME, schema: int | None = None) -> dict[str, Any]:
    """What a worker has of a message of JSON: where it begins."""
    return {"value": place, "error": None, "schema": None if schema is None else str(schema)}


def test_interleaved_messages_of_three_formats_have_the_values_of_their_own_functions(topic: MixedTopic) -> None:
    messages: list[bytes | None] = []
    expected: list[Any] = []
    for number in range(60):
        messages += [topic.click_message(number), None, topic.order_message(number), topic.payment_message(number)]
        expected += [whole("click", begins(schema=topic.click)), None]
        expected += [whole("order", order(number) | {"tags": [("a", str(number))]})]
        expected += [whole("payment", payment(number))]
    rows = rows_of(topic.call(), messages)
    assert [row and row["value"] for row in rows] == expected
    assert {None if row is None else str(row["error"]) for row in rows} == {None, "None"}
    sliced = topic.call()(pa.array(messages, pa.large_binary())[3:])
    assert [row and row["value"] for row in sliced.to_pylist()] == expected[3:]


@pytest.mark.parametrize("kind", ["order", "payment", "click"])
def test_a_batch_of_one_type_alone_is_read(topic: MixedTopic, kind: str) -> None:
    message = {"order": topic.order_message(4), "payment": topic.payment_message(4), "click": topic.click_message(4)}
    value = {
        "order": order(4) | {"tags": [("a", "4")]},
        "payment": payment(4),
        "click": begins(schema=topic.click),
    }
    rows = rows_of(topic.call(), [message[kind]] * 3)
    assert rows == [{"value": whole(kind, value[kind]), "error": None}] * 3
    plain = rows_of(topic.call(options={**TOPIC, "mode": "FAILFAST"}), [message[kind]] * 3)
    assert plain == [whole(kind, FRAME if kind == "click" else value[kind])] * 3


def test_a_batch_of_nulls_and_one_of_nothing_are_read(topic: MixedTopic) -> None:
    assert rows_of(topic.call(), [None, None]) == [None, None]
    assert rows_of(topic.call(), []) == []


def test_ids_of_schemas_select_too_and_no_schema_is_asked_for_its_name(topic: MixedTopic) -> None:
    ids = {"order": topic.order, "payment": topic.payment, "click": topic.click}
    members = {name: {**member, "schemaIds": [ids[name]]} for name, member in MEMBERS.items()}
    call = topic.call(members, By.SCHEMA_ID)
    other = topic.frame(77, b"x")
    rows = rows_of(call, [topic.payment_message(1), topic.order_message(1), topic.click_message(1), other])
    assert [row["value"] and row["value"]["type"] for row in rows] == ["payment", "order", "click", None]
    assert rows[3]["error"]["code"] == "MIXED_TYPE_UNKNOWN"
    assert rows[3]["error"]["schema"] == "77"
    assert "77" in rows[3]["error"]["reason"]
    assert all(str(schema) in rows[3]["error"]["reason"] for schema in ids.values())
    assert not any("/77" in path for path in topic.server.requests)


def test_guids_select_as_ids_do(topic: MixedTopic) -> None:
    guid = topic.server.guid(topic.order)
    for text in (str(UUID(bytes=guid)), guid.hex()):
        members = {"order": {**MEMBERS["order"], "schemaIds": [topic.order, text]}}
        by_guid = b"\1" + guid + topic.order_message(1)[FRAME:]
        rows = rows_of(topic.call(members, By.SCHEMA_ID), [by_guid, topic.order_message(1)])
        assert [row["value"]["type"] for row in rows] == ["order", "order"]


def test_a_column_selects_messages_that_have_no_frame(topic: MixedTopic) -> None:
    members: dict[str, dict[str, Any]] = {
        "order": {"format": "avro", "jsonFormatSchema": json.dumps(ORDER), "recordName": ["com.shop.Order", "order"]},
        "payment": {"format": "protobuf", "messageClass": Duration},
        "click": {"format": "json", "schema": '{"type": "object", "properties": {"page": {"type": "string"}}}'},
    }
    call = topic.call(members, By.COLUMN, {"on.error": "column"}, schema_registry=None)
    avro = encode(ORDER, order(2))
    messages = [avro, b"\x08\x05", b"{}", avro, b"", None, b"{}"]
    types = pa.array(["order", "payment", "click", "com.shop.Order", "refund", "order", None], pa.string())
    rows = rows_of(call, messages, types)
    values = [row and row["value"] for row in rows]
    assert [value and value["type"] for value in values] == ["order", "payment", "click", "order", None, None, None]
    assert values[2] is not None
    assert values[2]["click"] == {"value": 0, "error": None}
    assert values[0] == values[3]
    assert rows[5] is None
    assert "'refund'" in rows[4]["error"]
    assert "payment" in rows[4]["error"]
    assert rows[6]["error"] is not None
    assert "NULL" in rows[6]["error"]
    assert rows_of(call, messages, types.cast(pa.large_string())) == rows


def test_a_column_that_is_no_string_is_refused(topic: MixedTopic) -> None:
    call = topic.call(by=By.COLUMN)
    with pytest.raises(ConnectorError, match=r"DATATYPE_MISMATCH.*STRING") as failure:
        call(pa.array([b"x"]), pa.array([1]))
    assert failure.value.code == "DATATYPE_MISMATCH"


def test_ids_in_headers_of_kafka_select(topic: MixedTopic) -> None:
    name, index = "__value_schema_id", b"\x02\x02"
    framed = [topic.order_message(1), topic.payment_message(2), topic.click_message(3)]
    bare = [framed[0][FRAME:], framed[1][FRAME + 2 :], framed[2][FRAME:]]
    guid = topic.server.guid
    headers = [
        [{"key": name, "value": b"\1" + guid(topic.order)}],
        [{"key": name, "value": b"\1" + guid(topic.payment) + index}],
        [{"key": "other", "value": b"1"}, {"key": name, "value": b"\1" + guid(topic.click)}],
    ]
    call = topic.call(headers=True)
    in_headers = rows_of(call, [*bare, framed[0]], pa.array([*headers, None], HEADERS))
    in_frames = rows_of(topic.call(), framed)
    assert [row["value"]["type"] for row in in_headers] == ["order", "payment", "click", "order"]
    assert in_headers[0]["value"] == in_frames[0]["value"] == in_headers[3]["value"]
    assert in_headers[1]["value"] == in_frames[1]["value"]
    assert in_headers[2]["value"]["click"]["value"] == 0


def test_what_is_of_no_type_and_what_a_member_cannot_read_are_bad_rows_among_good_ones(topic: MixedTopic) -> None:
    other = topic.server.register(
        "events-Other", text='{"type": "record", "name": "Other", "fields": []}', schema_type="AVRO"
    )
    messages = [
        topic.order_message(1),
        topic.frame(other, b""),
        topic.frame(topic.order, b"\x02"),
        topic.refund_message(),
        b"no frame",
        topic.frame(4711, b"\0"),
        topic.frame(topic.payment, b"\x02\x02\x0a\x7f"),
        topic.frame(topic.payment, b"\x02\x0e"),
        topic.payment_message(1),
    ]
    rows = rows_of(topic.call(), messages)
    assert [row["value"] is not None for row in rows] == [True, *[False] * 7, True]
    errors = [row["error"] for row in rows]
    assert [error and error["code"] for error in errors] == [
        None,
        "MIXED_TYPE_UNKNOWN",
        "MALFORMED_AVRO_MESSAGE",
        "MIXED_TYPE_UNKNOWN",
        "MIXED_TYPE_UNKNOWN",
        "SCHEMA_NOT_FOUND",
        "MALFORMED_PROTOBUF_MESSAGE",
        "MIXED_TYPE_UNKNOWN",
        None,
    ]
    assert "'Other'" in errors[1]["reason"]
    assert "com.shop.Order, shop.Payment, Click" in errors[1]["reason"]
    assert (errors[1]["schema"], errors[1]["subject"]) == (str(other), None)
    assert (errors[2]["schema"], errors[2]["subject"]) == (str(topic.order), "events-com.shop.Order")
    assert "'shop.Refund'" in errors[3]["reason"]
    assert errors[4]["schema"] is None
    nulls = rows_of(topic.call(options={**TOPIC, "mode": "PERMISSIVE"}), messages)
    assert [row is not None for row in nulls] == [True, *[False] * 7, True]
    texts = rows_of(topic.call(options={**TOPIC, "on.error": "column"}), messages)
    assert [row["error"] for row in texts] == [error and error["reason"] for error in errors]


def test_without_permissive_a_type_that_no_member_has_ends_the_query(topic: MixedTopic) -> None:
    call = topic.call(options=TOPIC)
    with pytest.raises(MixedDataError, match=r"row 2 of the batch.*'shop.Refund'") as failure:
        call(pa.array([None, topic.order_message(1), topic.refund_message()]))
    assert failure.value.code == "MIXED_TYPE_UNKNOWN"


def test_without_permissive_a_bad_row_of_a_member_is_named_by_its_place_in_the_whole_batch(topic: MixedTopic) -> None:
    bad = topic.frame(topic.order, b"\x02")
    messages = [topic.click_message(1), topic.order_message(1), topic.payment_message(1), topic.click_message(2), bad]
    with pytest.raises(ConnectorError, match="row 4 of the batch") as failure:
        topic.call(options=TOPIC)(pa.array(messages))
    assert failure.value.code == "MALFORMED_AVRO_MESSAGE"


@pytest.mark.parametrize("first", ["order", "payment", "click", "unknown"])
def test_without_permissive_the_first_bad_row_of_the_batch_is_named_of_whichever_type_it_is(
    topic: MixedTopic, first: str
) -> None:
    bad = {
        "unknown": (topic.refund_message(), "MIXED_TYPE_UNKNOWN"),
        "click": (topic.frame(topic.click, b""), "MALFORMED_JSON_MESSAGE"),
        "payment": (topic.frame(topic.payment, b"\x02\x02\x0a\x09x"), "MALFORMED_PROTOBUF_MESSAGE"),
        "order": (topic.frame(topic.order, b"\x02"), "MALFORMED_AVRO_MESSAGE"),
    }
    others = [message for kind, (message, _) in bad.items() if kind != first]
    messages = [topic.payment_message(1), None, topic.order_message(1), bad[first][0], *others]
    with pytest.raises(ConnectorError, match=r"row 3 of the batch") as failure:
        topic.call(options=TOPIC)(pa.array([b"", *messages])[1:])
    assert failure.value.code == bad[first][1]


def test_aliases_of_the_readers_record_and_other_names_that_are_listed_select(topic: MixedTopic) -> None:
    reader = ORDER | {"name": "Purchase", "aliases": ["Order"]}
    members = {"order": {"format": "avro", "jsonFormatSchema": json.dumps(reader)}}
    assert rows_of(topic.call(members), [topic.order_message(1)])[0]["error"] is None
    members = {"order": MEMBERS["order"] | {"recordName": ["com.shop.Order", "com.shop.OldOrder"]}}
    old = topic.server.register(
        "events-old", text=json.dumps(ORDER | {"name": "OldOrder", "aliases": ["Order"]}), schema_type="AVRO"
    )
    rows = rows_of(topic.call(members), [topic.frame(old, encode(ORDER, order(1))), topic.order_message(1)])
    assert [row["value"]["type"] for row in rows] == ["order", "order"]


def test_members_without_a_record_name_have_that_of_their_schema(topic: MixedTopic) -> None:
    members: dict[str, dict[str, Any]] = {
        "order": {"format": "avro", "subject": "events-com.shop.Order"},
        "payment": {"format": "protobuf", "subject": "events-shop.Payment", "messageName": "Payment"},
        "click": {"format": "json", "subject": "events-Click"},
    }
    keys = [member.keys for member in topic.call(members, options={"on.error": "details"}).members]
    assert keys == [("com.shop.Order",), ("shop.Payment",), ("Click",)]


def test_the_record_strategy_names_subjects_where_there_is_no_topic(topic: MixedTopic) -> None:
    topic.server.register("com.shop.Order", text=json.dumps(ORDER), schema_type="AVRO")
    call = topic.call({"order": MEMBERS["order"]}, options={"on.error": "details"})
    bad = rows_of(call, [topic.frame(topic.order, b"\x02")])[0]
    assert bad["error"]["subject"] == "com.shop.Order"


def test_messages_of_a_context_are_found_by_the_context_of_the_subjects(topic: MixedTopic) -> None:
    schema = topic.server.register(":.staging:events-com.shop.Order", text=json.dumps(ORDER), schema_type="AVRO")
    members = {"order": {"format": "avro", "subject": ":.staging:events-com.shop.Order"}}
    rows = rows_of(topic.call(members, options={}), [topic.frame(schema, encode(ORDER, order(1)))])
    assert rows[0]["order"]["id"] == 1


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({}, "no record types"),
        ({"Type": MEMBERS["order"]}, "'Type'"),
        ({"order": MEMBERS["order"], "ORDER": MEMBERS["click"]}, "'ORDER'"),
        ({"order": {"format": "thrift"}}, "'thrift'"),
        ({"order": {**MEMBERS["order"], "sujbect": "x"}}, "'sujbect'"),
        ({"order": {**MEMBERS["order"], "options": {"Mode": "PERMISSIVE"}}}, "Mode"),
        ({"a": MEMBERS["order"], "b": MEMBERS["order"]}, "Both a and b"),
        ({"order": {**MEMBERS["order"], "schemaIds": ["x"]}}, "'x'"),
        ({"order": {**MEMBERS["order"], "schemaRegistry": {"address": "http://127.0.0.1:1"}}}, "registry of its own"),
    ],
)
def test_members_that_cannot_be_used_are_refused(topic: MixedTopic, members: Any, what: str) -> None:
    with pytest.raises(MixedAnalysisError, match=what) as failure:
        topic.call(members)
    assert failure.value.code == "MIXED_MEMBER_ILLEGAL"


def test_frames_cannot_select_without_a_registry(topic: MixedTopic) -> None:
    with pytest.raises(ConnectorError, match="registry") as failure:
        topic.call(schema_registry=None, options=DETAILS)
    assert failure.value.code == "OPTION_MISSING"
