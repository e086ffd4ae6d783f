"""What calls of `from_json_registry` and `to_json_registry` are refused for, before Spark is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.core.errors import ConnectorError, OptionError, SourceGoneError
from connectors.json import from_json_registry, to_json_registry
from connectors.json.errors import JsonAnalysisError
from connectors.testing.schema_registry import SchemaRegistryServer

ORDER = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
DAYS = json.dumps({"type": "integer", "title": "org.apache.kafka.connect.data.Date"})


@pytest.fixture(scope="module")
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        running.register("orders", text=ORDER, schema_type="JSON")
        running.register("days", text=DAYS, schema_type="JSON")
        running.register("avro", text='"int"', schema_type="AVRO")
        yield running


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, OptionError, "OPTION_MISSING.*The function needs the registry"),
        ({"schema": ORDER}, OptionError, "OPTION_MISSING.*The function needs the registry"),
        ({"subject": "orders"}, OptionError, "OPTION_MISSING.*The function needs the registry"),
        ({"schemaRegistryAddress": "ADDRESS"}, OptionError, "OPTION_MISSING.*subject"),
        ({"schemaRegistry": {"address": "ADDRESS"}}, OptionError, "OPTION_MISSING.*subject"),
        ({"schemaRegistry": {"address": "ADDRESS", "subjekt": "x"}}, OptionError, "OPTION_UNKNOWN.*subjekt"),
        (
            {"schemaRegistry": {"address": "ADDRESS"}, "schemaRegistryAddress": "ADDRESS"},
            OptionError,
            "OPTION_CONFLICT.*schemaRegistryAddress",
        ),
        ({"subject": "nothing"}, SourceGoneError, "SCHEMA_NOT_FOUND.*nothing"),
        ({"subject": "avro"}, ConnectorError, "SCHEMA_UNUSABLE.*'AVRO'.*from_avro.*type JSON"),
        ({"subject": 7}, OptionError, "OPTION_ILLEGAL.*subject"),
        ({"subject": "orders", "options": {"mode": "DROPMALFORMED"}}, JsonAnalysisError, "PARSE_MODE_UNSUPPORTED"),
        ({"subject": "orders", "options": {"dateFormatt": "y"}}, OptionError, "OPTION_UNKNOWN.*dateFormat"),
        ({"subject": "orders", "options": {"mode": "FAILFAST", "on.error": "column"}}, OptionError, "on.error"),
        ({"subject": "orders", "options": {"columnNameOfCorruptRecord": "ID"}}, OptionError, "OPTION_ILLEGAL.*'ID'"),
        ({"subject": "days", "options": {"columnNameOfCorruptRecord": "bad"}}, OptionError, "OPTION_ILLEGAL.*'bad'"),
        ({"subject": "orders", "fields": ["no"]}, JsonAnalysisError, "JSON_FIELD_MISSING.*'no'.*id"),
        ({"subject": "days", "fields": ["no"]}, JsonAnalysisError, "JSON_FIELD_MISSING.*none"),
        ({"subject": "orders", "schema": 7}, JsonAnalysisError, "JSON_SCHEMA_MISSING"),
        ({"subject": "orders", "schema": "id INT"}, JsonAnalysisError, "CANNOT_PARSE_JSON_SCHEMA"),
    ],
)
def test_a_call_that_cannot_be_is_refused(
    server: SchemaRegistryServer, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = json.loads(json.dumps(arguments).replace("ADDRESS", server.address))
    if "subject" in given and given != {"subject": "orders"}:
        given["schemaRegistry"] = {"address": server.address, "retry.timeout": "0"}
    with pytest.raises(error, match=text):
        from_json_registry("value", **given)


def test_to_json_registry_does_not_write_what_to_json_cannot(server: SchemaRegistryServer) -> None:
    with pytest.raises(JsonAnalysisError, match=r"JSON_TYPE_NOT_SUPPORTED.*Kafka Connect"):
        to_json_registry("value", subject="days", schemaRegistryAddress=server.address)
    with pytest.raises(OptionError, match=r"OPTION_MISSING.*subject"):
        to_json_registry("value", schemaRegistryAddress=server.address)
