"""Subjects that a strategy names, in the context of topic or subject."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from connectors.avro.functions import encode_call
from connectors.core.errors import OptionError
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.avro_cases import record

A_B = record("Pair", ("a", "int"), ("b", "int"))


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


@pytest.mark.parametrize(
    ("given", "subject", "expected"),
    [
        ({"topic": "orders"}, ":.staging:", ":.staging:orders-value"),
        ({"topic": ":.staging:orders"}, None, ":.staging:orders-value"),
        ({"topic": ":.staging:orders", "subject.name.strategy": "TopicRecordNameStrategy"}, None,
         ":.staging:orders-shop.Pair"),
        ({"topic": ":.staging:orders", "subject.name.strategy": "RecordNameStrategy"}, None, ":.staging:shop.Pair"),
        ({"subject.name.strategy": "RecordNameStrategy"}, ":.staging", ":.staging:shop.Pair"),
        ({"topic": ":.staging:orders"}, ":.staging:", ":.staging:orders-value"),
    ],
)  # fmt: skip
def test_a_strategy_names_subjects_in_the_context_that_topic_or_subject_gives(
    server: SchemaRegistryServer, given: dict[str, str], subject: str | None, expected: str
) -> None:
    schema = json.dumps({**A_B, "name": "shop.Pair"})
    server.register(expected, text='"int"', schema_type="AVRO")
    server.register(expected, text=schema, schema_type="AVRO")
    guid = server.guid(2, ":.staging:")
    header = {**given, "schema.id.serializer": "header"}
    assert encode_call(schema, header, subject, server.address).header == ("__value_schema_id", b"\1" + guid)


def test_two_contexts_of_topic_and_subject_contradict_each_other(server: SchemaRegistryServer) -> None:
    with pytest.raises(OptionError, match=r"OPTION_CONFLICT.*topic"):
        encode_call('"int"', {"topic": ":.a:orders"}, ":.b:", server.address)
