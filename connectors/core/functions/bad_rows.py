"""Errors of functions, and decoded batches with bad rows: what the user gets for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.errors import AnalysisException

from connectors.core.errors import ConnectorError
from connectors.core.functions.columns import bitmap, struct_array, validity_of
from connectors.core.functions.options import DETAILS, BadRowOptions

_SHOWN_BYTES: Final = 16
_ERROR_BYTES: Final = 1000  # an attribute of Pub/Sub, where bad records go with it, takes 1,024
_DOTS: Final = b"..."
_CODE: Final = re.compile(r"\[([A-Z0-9_]+)\] ")


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


@dataclass(frozen=True, slots=True)
class Origin:
    """Where bad rows come from.

    Attributes:
        code: of the error that the first of them would be under FAILFAST.
        subject: of the registry, as the call names it; None without one.
        schemas_of: returns the schemas in the frames of messages, given with Kafka's headers: ids, or None.
    """

    code: str
    subject: str | None = None
    schemas_of: Callable[[pa.BinaryArray, pa.Array | None], list[str | None]] | None = None

    def details(self, errors: Mapping[int, str], messages: pa.Array, headers: pa.Array | None) -> pa.StructArray:
        """Return STRUCT<code, reason, schema, subject> for each message, NULL where there is no error."""
        kind = pa.struct([(name, pa.string()) for name in DETAILS.names])
        if not errors:
            return pa.nulls(len(messages), kind)
        rows = sorted(errors)
        chosen = pa.array(rows, pa.int64())
        schemas: list[str | None] = [None] * len(rows)
        if self.schemas_of is not None:
            schemas = self.schemas_of(messages.take(chosen), None if headers is None else headers.take(chosen))
        values: list[tuple[str | None, ...] | None] = [None] * len(messages)
        for row, schema in zip(rows, schemas, strict=True):
            code = _CODE.match(errors[row])
            values[row] = self.code if code is None else code[1], errors[row], schema, self.subject
        return pa.array(values, kind)


def present(
    decoded: Decoded,
    messages: pa.BinaryArray,
    options: BadRowOptions,
    name: str,
    hint: Callable[[bytes], str],
    error: Callable[[str, str], ConnectorError],
    *,
    origin: Origin,
    headers: pa.Array | None,
) -> pa.Array:
    """Return the column that the user gets; under FAILFAST, raise for the first bad row what `error` makes.

    Args:
        decoded: the batch.
        messages: what it was decoded from.
        options: of the function.
        name: what messages were read as.
        hint: returns what to do about a bad message; empty where its bytes do not tell.
        error: returns the error for where a row is and what to do.
        origin: where bad rows come from.
        headers: Kafka's, if the call has them.
    """
    if decoded.errors and not options.permissive:
        row = min(decoded.errors)
        data = messages[row].as_py()
        raise error(describe_bad_row(row, name, decoded.errors[row], data), hint(data).strip())
    if not options.error_column:
        return decoded.values
    texts = error_texts(decoded, messages, hint)
    details = origin.details(texts, messages, headers) if options.error_details else text_column(texts, len(messages))
    return with_errors(decoded, messages, details)


def error_texts(decoded: Decoded, messages: pa.Array, hint: Callable[[bytes], str]) -> dict[int, str]:
    """Return the texts of errors by row; `hint` follows each reason."""
    return {row: _error_text(reason, hint(messages[row].as_py())) for row, reason in decoded.errors.items()}


def text_column(texts: Mapping[int, str], length: int) -> pa.StringArray:
    """Return a column of texts by row, NULL for all other rows."""
    return pa.array([texts.get(row) for row in range(length)], pa.string()) if texts else pa.nulls(length, pa.string())


def with_errors(decoded: Decoded, messages: pa.Array, errors: pa.Array, **more: pa.Array) -> pa.StructArray:
    """Return STRUCT<value, error>, with more fields after these, which is NULL where the message is."""
    columns = {"value": decoded.values, "error": errors, **more}
    kind = pa.struct([(name, column.type) for name, column in columns.items()])
    return struct_array(kind, list(columns.values()), len(messages), bitmap(validity_of(messages)))


def _error_text(reason: str, hint: str) -> str:
    return _cut(reason, _ERROR_BYTES - len(hint)) + hint


def _cut(text: str, most_bytes: int) -> str:
    """Return a text of at most that many bytes in UTF-8; the end of a longer one gives way to dots."""
    data = text.encode(errors="backslashreplace")
    if len(data) > most_bytes:
        data = data[: most_bytes - len(_DOTS)] + _DOTS
    return data.decode(errors="ignore")
