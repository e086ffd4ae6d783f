"""A topic with records of Avro, protobuf and JSON: their schemas in a registry, and messages in its frames."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from connectors.mixed.functions import decode_call
from connectors.mixed.selection import By
from connectors.mixed.worker import MixedCall
from connectors.testing.schema_registry import SchemaRegistryServer
from tests.support.avro_cases import record
from tests.support.avro_rig import encode
from tests.support.protobuf_rig import compiled

LINE = record("Line", ("sku", "string"), ("count", "int"))
ORDER = record(
    "Order",
    ("id", "long"),
    ("lines", {"type": "array", "items": LINE}),
    ("tags", {"type": "map", "values": "string"}),
    ("note", ["null", "string"]),
)
ORDER["namespace"] = "com.shop"
PAYMENT = """syntax = "proto3"; package shop;
message Refund { string reason = 1; }
message Payment { message Card { string holder = 1; } string id = 1; double amount = 2; Card card = 3; }
"""
CLICK = {
    "title": "Click",
    "type": "object",
    "properties": {"page": {"type": "string"}, "at": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
MEMBERS: dict[str, dict[str, Any]] = {
    "order": {"format": "avro", "recordName": "com.shop.Order"},
    "payment": {"format": "protobuf", "recordName": "shop.Payment"},
    "click": {"format": "json", "recordName": "Click"},
}
TOPIC = {"topic": "events"}
DETAILS = {**TOPIC, "on.error": "details"}


def order(number: int) -> dict[str, Any]:
    lines = [{"sku": f"s{item}", "count": item} for item in range(number % 3)]
    return {"id": number, "lines": lines, "tags": {"a": str(number)}, "note": None if number % 2 else "n"}


class MixedTopic:
    """Three types of records by `MEMBERS`, in subjects as TopicRecordNameStrategy names them."""

    def __init__(self, server: SchemaRegistryServer) -> None:
        self.server = server
        self.order = server.register("events-com.shop.Order", text=json.dumps(ORDER), schema_type="AVRO")
        self.payment = server.register("events-shop.Payment", compiled(PAYMENT), "main.proto")
        self.click = server.register("events-Click", text=json.dumps(CLICK), schema_type="JSON")

    @property
    def registry(self) -> dict[str, str]:
        return {"address": self.server.address, "retry.timeout": "300ms"}

    def frame(self, schema: int, message: bytes) -> bytes:
        return b"\0" + schema.to_bytes(4, "big") + message

    def order_message(self, number: int) -> bytes:
        return self.frame(self.order, encode(ORDER, order(number)))

    def payment_message(self, number: int) -> bytes:
        text = f"p{number}".encode()
        return self.frame(self.payment, b"\x02\x02" + b"\x0a" + bytes([len(text)]) + text)  # its index is [1]

    def refund_message(self) -> bytes:
        return self.frame(self.payment, b"\0" + b"\x0a\x01r")

    def click_message(self, number: int) -> bytes:
        return self.frame(self.click, json.dumps({"page": f"/{number}", "at": {"x": number}}).encode())

    def call(
        self,
        members: Mapping[str, Mapping[str, Any]] = MEMBERS,
        by: By = By.RECORD_NAME,
        options: Mapping[str, str] = DETAILS,
        **more: Any,
    ) -> MixedCall:
        return decode_call(members, by, options, **{"schema_registry": self.registry, **more})[0]


def payment(number: int) -> dict[str, Any]:
    return {"id": f"p{number}", "amount": None, "card": None}
