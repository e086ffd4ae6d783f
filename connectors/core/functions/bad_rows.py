"""Errors of functions, and decoded batches with bad rows: what the user gets for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.errors import AnalysisException

from connectors.core.errors import ConnectorError
from connectors.core.functions.columns import bitmap, struct_array, validity_of
from connectors.core.functions.options import BadRowOptions

_SHOWN_BYTES: Final = 16
_ERROR_BYTES: Final = 1000  # an attribute of Pub/Sub, where bad records go with it, takes 1,024
_DOTS: Final = b"..."


class BadRowError(Exception):
    """Raised inside a codec for a message that cannot be read; its text is the reason."""


class FunctionAnalysisError(ConnectorError, AnalysisException):
    """Raised on the driver when a schema or an argument does not fit; Spark's too, with the same code and text."""

    def __init__(self, code: str, what: str, where: str = "", action: str = "") -> None:
        ConnectorError.__init__(self, code, what, where, action)
        AnalysisException.__init__(self, message=self.sentences, errorClass=code, messageParameters={})


class ColumnTypeError(FunctionAnalysisError):
    """Raised on an executor for a column of another type than a function takes."""


def headers_type_error(kind: str) -> ColumnTypeError:
    """Return the error for a column that doesn't hold Kafka's headers."""
    return ColumnTypeError(
        "DATATYPE_MISMATCH",
        f"Headers are of the type {kind}, and must be ARRAY<STRUCT<key: STRING, value: BINARY>> or MAP<STRING, BINARY>",
        "headers",
        "Give the column headers of the Kafka source, which has it with includeHeaders=true.",
    )


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded batch: a value per row, with a placeholder for each unreadable one, and the reasons by row."""

    values: pa.Array
    errors: dict[int, str]


def binary_column(messages: pa.Array, function: str) -> pa.BinaryArray:
    """Return the column as binary with 32-bit offsets: Spark sends large_binary where large types are switched on."""
    if isinstance(messages, pa.ChunkedArray):
        messages = messages.combine_chunks()
    if kinds.is_binary(messages.type):
        return messages
    if kinds.is_large_binary(messages.type) or kinds.is_null(messages.type):
        return messages.cast(pa.binary())
    raise ColumnTypeError(
        "DATATYPE_MISMATCH",
        f"The first parameter of {function} requires the BINARY type, and is of the type {messages.type}",
        function,
        "Cast the column to BINARY, if it holds messages.",
    )


def describe_bad_row(row: int, name: str, reason: str, data: bytes) -> str:
    """Return where a bad row is, what it was read as, why it cannot be read, and how it begins."""
    shown = f"{len(data)} bytes, which begin with {data[:_SHOWN_BYTES].hex(' ') or 'no byte'}"
    return f"row {row} of the batch as {name}: {_cut(reason, _ERROR_BYTES)}; {shown}"


def present(
    decoded: Decoded,
    messages: pa.BinaryArray,
    options: BadRowOptions,
    name: str,
    hint: Callable[[bytes], str],
    error: Callable[[str, str], ConnectorError],
) -> pa.Array:
    """Return the column that the user gets; under FAILFAST, raise for the first bad row what `error` makes.

    Args:
        decoded: the batch.
        messages: what it was decoded from.
        options: of the function.
        name: what messages were read as.
        hint: returns what to do about a bad message; empty where its bytes do not tell.
        error: returns the error for where a row is and what to do.
    """
    if decoded.errors and not options.permissive:
        row = min(decoded.errors)
        data = messages[row].as_py()
        raise error(describe_bad_row(row, name, decoded.errors[row], data), hint(data).strip())
    return with_errors(decoded, messages, hint) if options.error_column else decoded.values


def with_errors(decoded: Decoded, messages: pa.Array, hint: Callable[[bytes], str]) -> pa.StructArray:
    """Return STRUCT<value, error>, which is NULL where the message is; `hint` follows the reason in the error."""
    texts = pa.nulls(len(messages), pa.string())
    if decoded.errors:
        reasons = {row: _error_text(reason, hint(messages[row].as_py())) for row, reason in decoded.errors.items()}
        texts = pa.array([reasons.get(row) for row in range(len(messages))], pa.string())
    kind = pa.struct([pa.field("value", decoded.values.type), pa.field("error", pa.string())])
    return struct_array(kind, [decoded.values, texts], len(messages), bitmap(validity_of(messages)))


def _error_text(reason: str, hint: str) -> str:
    return _cut(reason, _ERROR_BYTES - len(hint)) + hint


def _cut(text: str, most_bytes: int) -> str:
    """Return a text of at most that many bytes in UTF-8; the end of a longer one gives way to dots."""
    data = text.encode(errors="backslashreplace")
    if len(data) > most_bytes:
        data = data[: most_bytes - len(_DOTS)] + _DOTS
    return data.decode(errors="ignore")
