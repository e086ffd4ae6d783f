"""Calls for topics with several record types: each message goes through the call of its member."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from connectors.core.errors import ConnectorError
from connectors.core.functions.bad_rows import (
    Decoded,
    binary_column,
    describe_bad_row,
    error_texts,
    text_column,
    with_errors,
)
from connectors.core.functions.call import Call
from connectors.core.functions.columns import bitmap, masked, struct_array, validity_of
from connectors.core.functions.options import BadRowOptions
from connectors.core.processes.pool import Cache
from connectors.mixed.errors import UNKNOWN, MixedDataError
from connectors.mixed.selection import By, Selection
from connectors.registry.frames import Rows
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.kinds import origin_of

TYPE: Final = "type"
"""The field of the result that names the member."""
_SELECTIONS: Final = 128  # calls whose selections a worker retains
_ROW: Final = re.compile(r"row (\d+) of the batch")
_selections: Final = Cache(_SELECTIONS)


@dataclass(frozen=True, slots=True)
class Member:
    """One of the record types.

    Attributes:
        name: of its column.
        call: of its format's function; with an error column unless bad rows end the query.
        keys: the names, ids or values that select it.
        finished_by_spark: whether the column is what `call` returns, with its errors, and Spark decodes the rest.
    """

    name: str
    call: Call
    keys: tuple[str, ...] = ()
    finished_by_spark: bool = False


@dataclass(frozen=True, slots=True)
class MixedCall:
    """One `from_mixed`: returns STRUCT<type, a column for each member>, or with an error column that as a value.

    Attributes:
        registry: where the schemas of frames are; None if a column selects and messages have none.
        headers: whether it gets Kafka's headers.
        is_key: whether these are searched for the schema of the key.
    """

    function: ClassVar = "from_mixed"
    encodes: ClassVar = False

    members: tuple[Member, ...]
    by: By
    options: BadRowOptions
    registry: AnyRegistryOptions | None = None
    headers: bool = False
    is_key: bool = False

    def __call__(self, messages: pa.Array, *others: pa.Array) -> pa.Array:
        """Decode a column, given with Kafka's headers and the column of types, if the call has them."""
        column = binary_column(messages, self.function)
        arrays = [other.combine_chunks() if isinstance(other, pa.ChunkedArray) else other for other in others]
        headers = arrays[0] if self.headers else None
        which, unknown, frames = self._selection.find(column, headers, arrays[-1] if self.by is By.COLUMN else None)
        failures: dict[int, ConnectorError] = {}
        if unknown and not self.options.permissive:
            row = min(unknown)
            where = self._describe(row, unknown[row], column)
            failures[row] = MixedDataError(UNKNOWN, "A message is of no member's type", where)
        valid, errors, columns = which >= 0, [], []
        for place, member in enumerate(self.members):
            mask = which == place
            more: dict[str, Any] = {} if headers is None else {"headers": headers}
            if frames is not None and member.call.function == "from_avro":
                more["frames"] = frames.chosen(mask)
            elif headers is not None:  # so that those of other rows are not read
                more["headers"] = headers.take(pa.array(np.arange(len(mask)), mask=~mask))
            try:
                part = member.call(masked(column, mask), **more)
            except ConnectorError as error:
                match = _ROW.match(error.where)
                if match is None:
                    raise
                failures[int(match[1])] = error
                continue
            if self.options.permissive and not member.finished_by_spark:
                bad = validity_of(part.field("error"))
                valid &= ~bad
                errors.append((np.flatnonzero(bad), part.field("error")))
                part = part.field("value")
            columns.append(part)
        if failures:
            raise failures[min(failures)]
        names = pa.array([member.name for member in self.members], pa.string())
        columns = [names.take(pa.array(which, mask=which < 0)), *columns]
        fields = zip((TYPE, *(member.name for member in self.members)), columns, strict=True)
        kind = pa.struct([pa.field(name, array.type) for name, array in fields])
        values = struct_array(kind, columns, len(column), bitmap(valid))
        if not self.options.error_column:
            return values
        return with_errors(Decoded(values, {}), column, self._errors(unknown, errors, column, headers))

    @property
    def _selection(self) -> Selection:
        def make() -> Selection:
            keys = [member.keys for member in self.members]
            permissive = self.options.permissive
            return Selection(self.by, keys, self.registry, is_key=self.is_key, permissive=permissive)

        selection: Selection = _selections.get(self, make)
        return selection

    def _describe(self, row: int, reason: str, column: pa.BinaryArray) -> str:
        names = ", ".join(member.name for member in self.members)
        return describe_bad_row(row, f"one of {names}", reason, column[row].as_py())

    def _errors(
        self,
        unknown: dict[int, str],
        others: Sequence[tuple[Rows, pa.Array]],
        column: pa.BinaryArray,
        headers: pa.Array | None,
    ) -> pa.Array:
        """Return the errors of all rows: of those of no member, and those of members."""
        texts = error_texts(Decoded(column, unknown), column, lambda _: "")
        if self.options.error_details:
            # Of no subject: each member has its own.
            origin = replace(origin_of(UNKNOWN, self.registry, is_key=self.is_key), subject=None)
            errors = origin.details(texts, column, headers)
        else:
            errors = text_column(texts, len(column))
        parts, source = [errors], np.arange(len(column))
        for rows, array in others:
            if len(rows):
                source[rows] = len(parts) * len(column) + rows
                parts.append(array)
        return errors if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(source))


@dataclass(frozen=True, slots=True)
class MixedEncodeCall:
    """One `to_mixed`, of a struct with a column for each member that is encoded in Python; the first that is not NULL.

    Attributes:
        calls: of each column; those of `to_avro` take it as the only field of a struct.
    """

    function: ClassVar = "to_mixed"
    encodes: ClassVar = True

    calls: tuple[Call, ...]

    def __call__(self, structs: pa.Array) -> pa.BinaryArray:
        if isinstance(structs, pa.ChunkedArray):
            structs = structs.combine_chunks()
        pending, source = np.ones(len(structs), np.bool_), np.full(len(structs), -1, np.int64)
        parts: list[pa.Array] = []
        for place, call in enumerate(self.calls):
            column = structs.field(place)
            rows = np.flatnonzero(pending & validity_of(column))
            if not len(rows):
                continue
            pending[rows] = False
            source[rows] = sum(len(part) for part in parts) + np.arange(len(rows))
            values = column if len(rows) == len(column) else column.take(pa.array(rows))
            if call.function == "to_avro":
                values = struct_array(pa.struct([structs.type.field(place).with_name("value")]), [values], len(rows))
            parts.append(call(values))
        if not parts:
            return pa.nulls(len(structs), pa.binary())
        return pa.concat_arrays(parts).take(pa.array(source, mask=source < 0))
