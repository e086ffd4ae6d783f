"""Avro's single-object encoding: messages that begin with the fingerprint of the schema that they are written by.

    C3 01  fingerprint (8 bytes, little endian)  message

The fingerprint is the CRC-64-AVRO of the schema's parsing canonical form: names are full ones, and what does not say
how bytes are read is left out, such as defaults, aliases and logical types. (Avro's specification; Java's
``BinaryMessageEncoder``.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa

from connectors.avro.schema.parser import NAMED, AvroType
from connectors.functions.columns import validity_of
from connectors.registry.frames import Frames, bounds_of

MARKER: Final = b"\xc3\x01"
PREFIX_BYTES: Final = 10
_EMPTY: Final = 0xC15D213AA4D7A795


def canonical_form(schema: AvroType) -> str:
    """Return the parsing canonical form of a schema."""
    return _form(schema, set())


def _form(schema: AvroType, defined: set[str]) -> str:
    if schema.kind == "union":
        return f"[{','.join(_form(branch, defined) for branch in schema.branches)}]"
    if schema.items is not None:
        name = "items" if schema.kind == "array" else "values"
        return f'{{"type":"{schema.kind}","{name}":{_form(schema.items, defined)}}}'
    if schema.kind not in NAMED:
        return _text(schema.kind)
    if schema.name in defined:
        return _text(schema.name)
    defined.add(schema.name)
    if schema.kind == "fixed":
        inner = f'"size":{schema.size}'
    elif schema.kind == "enum":
        inner = f'"symbols":[{",".join(map(_text, schema.symbols))}]'
    else:
        fields = (f'{{"name":{_text(each.name)},"type":{_form(each.type, defined)}}}' for each in schema.fields)
        inner = f'"fields":[{",".join(fields)}]'
    return f'{{"name":{_text(schema.name)},"type":"{schema.kind}",{inner}}}'


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@cache
def _table() -> tuple[int, ...]:
    """Return what each byte adds to a fingerprint."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY & -(value & 1))  # noqa: PLW2901 - bit by bit
        table.append(value)
    return tuple(table)


def fingerprint(schema: AvroType) -> int:
    """Return the CRC-64-AVRO of the canonical form of a schema."""
    result, table = _EMPTY, _table()
    for byte in canonical_form(schema).encode():
        result = (result >> 8) ^ table[(result ^ byte) & 255]
    return result


def prefix_of(schema: AvroType) -> bytes:
    """Return what stands before each message of a schema."""
    return MARKER + fingerprint(schema).to_bytes(8, "little")


class SingleObjects:
    """Finds the schemas of messages by their fingerprints, among those given; see `FramedDecoder`."""

    def __init__(self, schemas: Iterable[AvroType]) -> None:
        self._schemas = {fingerprint(schema): schema for schema in schemas}

    def find(self, messages: pa.BinaryArray, headers: pa.Array | None) -> Frames:  # noqa: ARG002 - of others
        """Take the frames of a batch apart."""
        if len(messages) == 0:
            return Frames(messages, np.zeros(0, np.int64), np.zeros(0, np.int64))
        bounds = bounds_of(messages)
        frames = Frames(messages, np.full(len(messages), -1, np.int64), bounds[:-1].copy())
        valid, data = validity_of(messages), np.frombuffer(messages.buffers()[2] or b"", np.uint8)
        rows = np.flatnonzero(valid & (np.diff(bounds) >= PREFIX_BYTES))
        if len(rows):
            prefixes = data[bounds[rows][:, None] + np.arange(PREFIX_BYTES)]
            marked = (prefixes[:, : len(MARKER)] == np.frombuffer(MARKER, np.uint8)).all(axis=1)
            rows, prefixes = rows[marked], prefixes[marked]
        if len(rows):
            numbers = np.ascontiguousarray(prefixes[:, len(MARKER) :]).view("<u8")[:, 0]
            different, inverse = np.unique(numbers, return_inverse=True)
            frames.note(rows, different.tolist(), inverse)
            frames.begin[rows] += PREFIX_BYTES
            valid[rows] = False
        for row in np.flatnonzero(valid).tolist():
            begin = messages[row].as_py()[:PREFIX_BYTES].hex(" ") or "no byte"
            frames.errors[row] = f"is in no single-object encoding: it begins with {begin}"
        return frames

    def types(self, counts: Mapping[int | str, int]) -> dict[int | str, AvroType | str]:
        """Return each schema, or why there is none."""
        return {
            number: self._schemas.get(int(number))
            or f"has the fingerprint {int(number):016x}, which is that of none of the schemas given"
            for number in counts
        }
