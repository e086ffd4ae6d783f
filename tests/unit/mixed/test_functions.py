"""`to_mixed` on Arrow's columns: what is written is read, and what cannot be written is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.errors import ConnectorError
from connectors.mixed.errors import MixedAnalysisError
from connectors.mixed.functions import encode_call
from connectors.mixed.selection import By
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.mixed_rig import MEMBERS, ORDER, TOPIC, MixedTopic, order

WRITTEN = {name: MEMBERS[name] for name in ("order", "payment")}


@pytest.fixture
def topic() -> Iterator[MixedTopic]:
    with SchemaRegistryServer() as running:
        yield MixedTopic(running)


def read_values(topic: MixedTopic, messages: list[bytes | None]) -> pa.StructArray:
    return topic.call(options=TOPIC)(pa.array(messages, pa.binary()))


def column_of(values: pa.StructArray) -> pa.StructArray:
    """What Spark sends: a column for each member that Python writes."""
    return pa.StructArray.from_arrays([values.field("order"), values.field("payment")], ["order", "payment"])


def test_what_is_written_is_read(topic: MixedTopic) -> None:
    messages: list[bytes | None] = [topic.order_message(1), None, topic.payment_message(2), topic.order_message(5)] * 20
    values = read_values(topic, messages)
    _, call = encode_call(WRITTEN, TOPIC, schema_registry=topic.registry)
    for column in (column_of(values), column_of(values)[3:], pa.chunked_array([column_of(values)])):
        written = call(column)
        assert written.type == pa.binary()
        assert read_values(topic, written.to_pylist()).to_pylist() == values[len(values) - len(written) :].to_pylist()
        assert written.to_pylist() == messages[len(values) - len(written) :]


@pytest.mark.parametrize("kind", ["order", "payment"])
def test_a_batch_of_one_type_alone_is_written(topic: MixedTopic, kind: str) -> None:
    message = topic.order_message(4) if kind == "order" else topic.payment_message(4)
    _, call = encode_call(WRITTEN, TOPIC, schema_registry=topic.registry)
    assert call(column_of(read_values(topic, [message] * 3))).to_pylist() == [message] * 3


def test_rows_without_a_value_and_empty_batches_are_written(topic: MixedTopic) -> None:
    _, call = encode_call(WRITTEN, TOPIC, schema_registry=topic.registry)
    empty = column_of(read_values(topic, [None, None]))
    assert call(empty).to_pylist() == [None, None]
    assert call(empty[:0]).to_pylist() == []


def test_schemas_in_headers_are_those_of_each_member(topic: MixedTopic) -> None:
    topic.server.register("events-com.shop.Order2", text=json.dumps(ORDER | {"name": "Order2"}), schema_type="AVRO")
    members = {"a": MEMBERS["order"], "b": MEMBERS["order"] | {"recordName": "com.shop.Order2"}}
    options = {**TOPIC, "schema.id.serializer": "header"}
    writings, _ = encode_call(members, options, schema_registry=topic.registry)
    headers = [writing.header for writing in writings]
    assert headers[0] == ("__value_schema_id", b"\1" + topic.server.guid(topic.order))
    assert headers[1] not in (None, headers[0])


@pytest.mark.parametrize(
    ("members", "options", "what"),
    [
        (WRITTEN, {**TOPIC, "schema.id.serializer": "header"}, "protobuf"),
        (WRITTEN, {**TOPIC, "auto.register.schemas": "true"}, "auto.register.schemas"),
        (
            {"a": {**MEMBERS["order"], "options": {"schema.id.serializer": "header"}}, "b": MEMBERS["payment"]},
            TOPIC,
            "Only some types",
        ),
    ],
)
def test_members_that_cannot_be_written_so_are_refused(
    topic: MixedTopic, members: Any, options: dict[str, str], what: str
) -> None:
    with pytest.raises(MixedAnalysisError, match=what) as failure:
        encode_call(members, options, schema_registry=topic.registry)
    assert failure.value.code == "MIXED_MEMBER_ILLEGAL"


def test_a_member_without_a_subject_is_refused(topic: MixedTopic) -> None:
    with pytest.raises(ConnectorError) as failure:
        encode_call({"order": {"format": "avro"}}, schema_registry=topic.registry)
    assert failure.value.code == "OPTION_MISSING"


def test_a_schema_that_is_given_is_registered_under_the_subject_of_its_record(topic: MixedTopic) -> None:
    schema = json.dumps(ORDER | {"name": "New"})
    members = {"new": {"format": "avro", "jsonFormatSchema": schema, "recordName": "com.shop.New"}}
    options = {**TOPIC, "auto.register.schemas": "true"}
    _, call = encode_call(members, options, schema_registry=topic.registry)
    values = read_values(topic, [topic.order_message(1)])
    written = call(pa.StructArray.from_arrays([values.field("order")], ["new"])).to_pylist()
    call_of = topic.call({"new": {"format": "avro", "subject": "events-com.shop.New"}}, By.RECORD_NAME)
    assert call_of(pa.array(written)).to_pylist()[0]["value"]["new"] == order(1) | {"tags": [("a", "1")]}


def test_fields_which_say_what_is_read_do_not_hinder_writing(topic: MixedTopic) -> None:
    fields = {"order": ["id"], "payment": ["id"]}
    members = {name: {**member, "fields": fields[name]} for name, member in WRITTEN.items()}
    _, call = encode_call(members, TOPIC, schema_registry=topic.registry)
    messages: list[bytes | None] = [topic.order_message(1), topic.payment_message(2)]
    assert call(column_of(read_values(topic, messages))).to_pylist() == messages
