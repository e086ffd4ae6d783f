"""How many schemas one batch of messages may ask a registry for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from connectors.avro.functions import decode_call
from connectors.testing.schema_registry import SchemaRegistryServer

COLUMN = {"mode": "PERMISSIVE", "on.error": "column"}
MANY = 1000
MOST_SCHEMAS = 256


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as running:
        yield running


def framed(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + b"\x0a"


def rows_of(server: SchemaRegistryServer, rows: list[bytes], **more: str) -> list[Any]:
    given = {"address": server.address, "retry.timeout": "0", **more}
    call, _ = decode_call('"long"', COLUMN, schema_registry=given)
    return call(pa.array(rows, pa.binary())).to_pylist()  # type: ignore[no-any-return]


def test_thousands_of_schemas_in_one_batch_cost_a_bounded_number_of_requests(server: SchemaRegistryServer) -> None:
    for _ in range(MANY):
        server.register("orders", text='"long"', schema_type="AVRO")
    usual = framed(MANY)  # of more rows than any other
    rows = [framed(number) for number in range(1, MANY)] + [usual] * 3
    for _ in range(3):
        found = rows_of(server, rows)
        read = [row for row in found if row["error"] is None]
        assert len(read) == MOST_SCHEMAS + 2
        assert [row["value"] for row in found[-3:]] == [5] * 3
        assert "256" in next(row["error"] for row in found if row["error"])
    assert len(server.requests) == MOST_SCHEMAS  # the same ones each time


def test_as_many_schemas_as_a_batch_may_have_are_read(server: SchemaRegistryServer) -> None:
    for _ in range(MOST_SCHEMAS):
        server.register("orders", text='"long"', schema_type="AVRO")
    found = rows_of(server, [framed(number + 1) for number in range(MOST_SCHEMAS)])
    assert all(row == {"value": 5, "error": None} for row in found)
