"""The columns of Kinesis."""

from __future__ import annotations

from connectors.core.arrow import arrow_schema
from connectors.kinesis.schema import ARROW_SCHEMA, source_schema


def test_columns_have_the_declared_types() -> None:
    assert source_schema().simpleString() == (
        "struct<partitionKey:string,data:binary,stream:string,shardId:string,sequenceNumber:string,"
        "approximateArrivalTimestamp:timestamp,subSequenceNumber:bigint,explicitHashKey:string>"
    )
    assert arrow_schema(source_schema()).equals(ARROW_SCHEMA)
