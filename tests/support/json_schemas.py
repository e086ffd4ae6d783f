"""JSON Schemas, and the columns that Spark has of them."""

from __future__ import annotations

import json
from typing import Any

from connectors.json.expressions import spark_type
from connectors.json.schema.columns import json_column
from connectors.json.schema.parser import parse_schemas

CONNECT = "org.apache.kafka.connect.data."
NULL: dict[str, Any] = {"type": "null"}
INTEGER, NUMBER, TEXT = {"type": "integer"}, {"type": "number"}, {"type": "string"}
DATE = {"type": "integer", "connect.type": "int32", "title": f"{CONNECT}Date"}
TIMESTAMP = {"type": "integer", "connect.type": "int64", "title": f"{CONNECT}Timestamp"}


def decimal(kind: str, **parameters: str) -> dict[str, Any]:
    return {"type": kind, "connect.type": "bytes", "title": f"{CONNECT}Decimal", "connect.parameters": parameters}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def type_of(schema: Any, depth: int = -1, **references: Any) -> str:
    texts = {name.replace("_", "."): json.dumps(each) for name, each in references.items()}
    column = json_column(parse_schemas(json.dumps(schema), texts), depth)
    kind = spark_type(column)
    spark_type(column, as_read=True).json()
    return kind.simpleString()


TREE = record(value=INTEGER, left={"oneOf": [NULL, {"$ref": "#"}]}, rest=array({"$ref": "#"}))
