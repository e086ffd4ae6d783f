"""A decoded batch, and what the user sees of it under each mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa

from connectors.protobuf.columns import bitmap, struct_array, validity_of
from connectors.protobuf.errors import ProtobufDataError, data_error
from connectors.protobuf.options import ProtobufOptions, WireFormat

__all__ = ["BadRowError", "Decoded", "Decoder", "present"]

_SHOWN_BYTES: Final = 16
# By the magic byte: the least bytes of a frame, which are that one, the id or the GUID, and one of message indexes.
_CONFLUENT_BYTES: Final = {b"\0": 6, b"\1": 18}


class BadRowError(Exception):
    """Raised inside a codec for a message that cannot be read; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded batch: a struct a row, NULL where the input is or could not be read, and the reasons by row."""

    values: pa.StructArray
    errors: dict[int, str] = field(default_factory=dict)


class Decoder(Protocol):
    """Turns messages into structs."""

    def decode(self, messages: pa.Array) -> Decoded:
        """Decode a binary array; never raises for what is in a row."""
        ...


def present(decoded: Decoded, messages: pa.Array, options: ProtobufOptions, name: str) -> pa.Array:
    """Return the column that the user gets for messages of this full name.

    Raises:
        ProtobufDataError: MALFORMED_PROTOBUF_MESSAGE for the first bad row, under FAILFAST.
    """
    if decoded.errors and not options.permissive:
        raise _malformed(min(decoded.errors), decoded, messages, options, name)
    if not options.error_column:
        return decoded.values
    texts = pa.nulls(len(messages), pa.string())
    if decoded.errors:
        reasons = {row: reason + _hint(messages[row].as_py(), options) for row, reason in decoded.errors.items()}
        texts = pa.array([reasons.get(row) for row in range(len(messages))], pa.string())
    kind = pa.struct([pa.field("value", decoded.values.type), pa.field("error", pa.string())])
    return struct_array(kind, [decoded.values, texts], len(messages), bitmap(validity_of(messages)))


def _malformed(
    row: int, decoded: Decoded, messages: pa.Array, options: ProtobufOptions, name: str
) -> ProtobufDataError:
    data = messages[row].as_py()
    shown = data[:_SHOWN_BYTES].hex(" ") or "no byte"
    return data_error(
        "MALFORMED_PROTOBUF_MESSAGE",
        failFastMode="FAILFAST",
        where=f"row {row} of the batch as {name}: {decoded.errors[row]}; {len(data)} bytes, which begin with {shown}",
        action=_hint(data, options).strip(),
    )


def _hint(data: bytes, options: ProtobufOptions) -> str:
    """Return what to do where a bad message looks like a frame: no message begins with a 0 or a 1."""
    framed = len(data) >= _CONFLUENT_BYTES.get(data[:1], len(data) + 1)
    if options.wire_format is not WireFormat.RAW or not framed:
        return ""
    return (
        " It starts with a Confluent frame (a magic byte and the id of a schema); pass schemaRegistry=... or the "
        "option wire.format=confluent."
    )
