"""Calls that travel to Spark's workers as texts and options, and the decoders built from them, once a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from connectors.avro.decoder.columns import ColumnDecoder
from connectors.avro.decoder.rows import RowDecoder, column_of
from connectors.avro.errors import AvroDataError
from connectors.avro.options import AvroOptions, Rebase
from connectors.avro.schema.parser import parse_schema
from connectors.avro.schema.plan import Node, compile_plan
from connectors.avro.schema.types import arrow_type, spark_type
from connectors.core.pool import Cache
from connectors.functions.bad_rows import BadRowError, Decoded, binary_column, describe_bad_row, with_errors
from connectors.functions.columns import bitmap, selected, struct_array, validity_of
from connectors.registry.frames import ID_END

__all__ = ["AvroDecoder", "DecodeCall"]

_DECODERS: Final = 128  # calls whose decoders a worker retains
_FEW_MESSAGES: Final = 64  # up to here rows are faster: docs/adr/0007-avro-decoder.md
_decoders: Final = Cache(_DECODERS)


class AvroDecoder:
    """Decodes batches by a plan: row by row or in columns, whichever is faster for so many; both give the same."""

    def __init__(self, plan: Node, kind: pa.DataType, *, strict: bool, few: int = _FEW_MESSAGES) -> None:
        self._kind, self._few = kind, few
        self._rows = RowDecoder(plan, strict=strict)
        self._columns = ColumnDecoder(plan, self._rows, strict=strict)

    def decode(self, messages: pa.BinaryArray) -> Decoded:
        """Decode a binary array; never raises for what is in a row.

        A row that cannot be read is a struct of NULLs, and NULL where the type is no struct, as in Spark.
        """
        few = len(messages) <= self._few
        return self._by_rows(messages) if few else self._by_columns(messages)

    def _by_rows(self, messages: pa.BinaryArray) -> Decoded:
        values, errors = [], {}
        for row, data in enumerate(messages.to_pylist()):
            value = None
            if data is not None:
                try:
                    value = self._rows.decode(data)
                except BadRowError as error:
                    errors[row] = str(error)
                    value = {} if kinds.is_struct(self._kind) else None
            values.append(value)
        return Decoded(column_of(values, self._kind), errors)

    def _by_columns(self, messages: pa.BinaryArray) -> Decoded:
        valid = validity_of(messages)
        rows = np.flatnonzero(valid)
        whole = len(rows) == len(messages)
        values, found = self._columns.decode(messages if whole else messages.take(pa.array(rows)))
        if whole and not found:
            return Decoded(values, {})
        errors = {int(rows[row]): reason for row, reason in found.items()}
        missing = ~valid
        missing[list(errors)] = True
        values = values.take(pa.array(np.cumsum(valid) - 1, mask=missing))
        if errors and kinds.is_struct(self._kind):
            known = validity_of(values)
            known[list(errors)] = True
            children = [values.field(place) for place in range(self._kind.num_fields)]
            values = struct_array(self._kind, children, len(values), bitmap(known))
        return Decoded(values, errors)


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """One `from_avro`: by the schema that messages were written with; of all columns unless `fields` names some."""

    function: ClassVar = "from_avro"
    encodes: ClassVar = False

    schema: str
    options: AvroOptions
    fields: tuple[str, ...] | None = None

    def __call__(self, messages: pa.Array) -> pa.Array:
        """Decode a column."""
        column = binary_column(messages, self.function)
        return self._present(self.decoder.decode(column), column)

    @property
    def decoder(self) -> AvroDecoder:
        """The decoder of this call."""
        return _decoders.get(self, self._make)

    def _make(self) -> AvroDecoder:
        writer = parse_schema(self.schema, self.function)
        reader = writer if self.options.avro_schema is None else parse_schema(self.options.avro_schema, "avroSchema")
        kind = spark_type(reader, self.options)
        strict = self.options.datetime_rebase_mode is Rebase.EXCEPTION
        return AvroDecoder(compile_plan(writer, reader, kind, self.options), arrow_type(kind), strict=strict)

    def _present(self, decoded: Decoded, messages: pa.BinaryArray) -> pa.Array:
        if decoded.errors and not self.options.permissive:
            row = min(decoded.errors)
            raise AvroDataError(
                "MALFORMED_AVRO_MESSAGE",
                "Malformed records are detected in record parsing. Current parse mode: FAILFAST",
                describe_bad_row(row, "Avro", decoded.errors[row], messages[row].as_py()),
                hint_of(messages[row].as_py()).strip() or "To get NULL for them, set the option mode to PERMISSIVE.",
            )
        values = decoded.values
        if self.fields is not None:
            values = selected(values, self.fields)
        if not self.options.error_column:
            return values
        return with_errors(Decoded(values, decoded.errors), messages, hint_of)


def hint_of(data: bytes) -> str:
    """Return what to do where a bad message looks as if a frame were before it."""
    if data[:1] == b"\0" and len(data) > ID_END:
        return (
            " It may be in a Confluent frame (a magic byte and the id of a schema): then give substring(data, 6) "
            "instead of data."
        )
    return ""
