"""Hostile answers of schema registries and texts of services; and the samples of a metrics endpoint."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

BASIC = 'syntax = "proto3"; package shop; message Basic { int64 id = 1; }'
FORGED = "no\x1b[2J\x1b]0;title\x07 row\r\n26/11/26 INFO forged\u2028line \u202e\x85\ud800end"
"""A text that clears a screen, sets a title, forges a line, and is no UTF-8."""
GOOD = {"id": 1, "schemaType": "PROTOBUF", "schema": "", "references": []}
ODD_SCHEMAS = [
    "[" * 100_000,
    '{"a":' * 100_000,
    "1" * 5000,
    "null",
    json.dumps({**GOOD, "id": True}),
    json.dumps({**GOOD, "id": -1}),
    json.dumps({**GOOD, "id": 2**32}),
    json.dumps({**GOOD, "id": 1.5}),
    json.dumps({**GOOD, "schema": None}),
    json.dumps({**GOOD, "schema": "\ud800"}),
    json.dumps({**GOOD, "schema": "\0"}),
    json.dumps({**GOOD, "schemaType": ["PROTOBUF"]}),
    json.dumps({**GOOD, "subject": "\ud800", "schema": BASIC}),
    json.dumps({**GOOD, "subject": 5, "schema": BASIC}),
    json.dumps({**GOOD, "subject": "x" * 5000, "schema": BASIC}),
    json.dumps({**GOOD, "subject": "\0", "schema": BASIC}),
    json.dumps({**GOOD, "subject": "../x", "schema": BASIC}),
    *(
        json.dumps({**GOOD, "references": references})
        for references in (
            7,
            "text",
            {"name": "a"},
            [None],
            ["text"],
            [{}],
            [{"name": "a", "subject": "b"}],
            [{"name": "a", "subject": "b", "version": "x"}],
            [{"name": "a", "subject": "b", "version": None}],
            [{"name": "a", "subject": None, "version": 1}],
            [{"name": "\ud800", "subject": "b", "version": 1}],
            [{"name": "a", "subject": "\ud800", "version": 1}],
            [{"name": ["a"], "subject": "b", "version": 1}],
        )
    ),
]
DEEP_OPTION = (
    'syntax = "proto3"; import "google/protobuf/descriptor.proto"; message Basic { int64 id = 1; Basic a = 2; }\n'
    f"extend google.protobuf.FileOptions {{ Basic a = 50000; }} option (a) = {{{'a{' * 5000}{'}' * 5000}}};"
)


def samples_of(text: str) -> list[tuple[str, Mapping[str, str], float]]:
    """Name, labels and value of each sample in a text of OpenMetrics."""
    families: Any = text_string_to_metric_families  # comes without types
    return [(sample.name, sample.labels, sample.value) for family in families(text) for sample in family.samples]


_PIECES = (
    FORGED,
    "\x1b]0;t\x07",
    "\x9b31m",
    "\ud800",
    "\udcff",
    "\u202e",
    "\r\n[FORGED] x",
    "\0",
    "%s%n{0}{x}",
    "x" * 999,
)


def hostile_text() -> str:
    """A text of a service with any of what a log and a terminal must not get."""
    return "".join(random.choices([*_PIECES, "a", " ", "é", chr(random.randrange(0x3000))], k=random.randint(1, 8)))
