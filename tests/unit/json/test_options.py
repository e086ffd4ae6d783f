"""Options of the functions for JSON: those of a registry, and those that Spark gets."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from connectors.core.errors import OptionError
from connectors.json import from_json_registry
from connectors.json.options import parse_json_options
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


def test_the_registry_may_be_among_the_options_as_for_avro(server: SchemaRegistryServer) -> None:
    options = {"confluent.schema.registry.basic.auth.user.info": "canary", "mode": "FAILFAST"}
    with pytest.raises(OptionError, match="a user, a colon and a password"):
        from_json_registry("value", None, options, "orders", server.address)


def test_spark_gets_its_own_options_and_never_none() -> None:
    assert parse_json_options({}).for_spark() == {"mode": "PERMISSIVE"}
    given = {"MODE": "failfast", "timestampformat": "yyyy", "recursiveFieldMaxDepth": "3"}
    assert parse_json_options(given).for_spark() == {"mode": "FAILFAST", "timestampFormat": "yyyy"}
