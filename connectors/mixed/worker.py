"""Calls for topics with several record types: each message goes through the call of its member."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from connectors.avro.worker import EncodeCall as AvroEncodeCall
from connectors.core.errors import ConnectorError
from connectors.core.functions.bad_rows import Decoded, binary_column, present, with_errors
from connectors.core.functions.call import Call
from connectors.core.functions.columns import bitmap, masked, struct_array, validity_of
from connectors.core.functions.options import BadRowOptions
from connectors.core.processes.pool import Cache
from connectors.mixed.errors import UNKNOWN, MixedDataError
from connectors.mixed.selection import By, Member, Selection
from connectors.registry.frames import Rows
from connectors.registry.kinds import origin_of

TYPE: Final = "type"
"""The field of the result that names the member."""
_ROW: Final = re.compile(r"row (\d+) of the batch")
_selections: Final = Cache(128)  # of the calls of a worker, each with the schemas that it knows


@dataclass(frozen=True, slots=True)
class MixedCall:
    """One `from_mixed`: returns STRUCT<type, a column for each member>, or with an error column that as a value.

    The column comes with Kafka's `headers`, if these are given, and with that of types, if such a column selects.
    """

    function: ClassVar = "from_mixed"
    encodes: ClassVar = False

    selection: Selection
    options: BadRowOptions
    headers: bool = False

    @property
    def members(self) -> tuple[Member, ...]:
        return self.selection.members

    def __call__(self, messages: pa.Array, *others: pa.Array) -> pa.Array:
        column = binary_column(messages, self.function)
        arrays = [other.combine_chunks() if isinstance(other, pa.ChunkedArray) else other for other in others]
        headers = arrays[0] if self.headers else None
        selection = _selections.get(self.selection, lambda: self.selection)
        which, unknown, frames = selection.find(column, headers, arrays[-1] if selection.by is By.COLUMN else None)

        def calls() -> Iterator[Callable[[], pa.Array]]:
            yield partial(self._show_unknown, unknown, column, headers)
            for place, member in enumerate(self.members):
                mask, more = which == place, dict[str, Any]()
                if frames is not None and member.takes_frames:
                    more["frames"] = frames.chosen(mask)
                if headers is not None:  # without frames, those of other rows would be read too
                    more["headers"] = headers if more else headers.take(pa.array(np.arange(len(mask)), mask=~mask))
                yield partial(member.call, masked(column, mask), **more)

        parts, failures = [], dict[int, ConnectorError]()
        for call in calls():
            try:
                parts.append(call())
            except ConnectorError as error:  # under FAILFAST, the first bad row of all is named
                if (match := _ROW.match(error.where)) is None:
                    raise
                failures[int(match[1])] = error
        if failures:
            raise failures[min(failures)]
        return self._joined(column, which, *parts)

    def _show_unknown(self, unknown: dict[int, str], column: pa.BinaryArray, headers: pa.Array | None) -> pa.Array:
        """Return the column, with the errors of messages of no member if these are asked for; raise under FAILFAST."""
        # Of no subject: each member has its own.
        origin = replace(origin_of(UNKNOWN, self.selection.registry, is_key=self.selection.is_key), subject=None)
        name = f"one of {', '.join(member.name for member in self.members)}"
        error = partial(MixedDataError, UNKNOWN, "A message is of no member's type")
        shown = Decoded(column, unknown)
        return present(shown, column, self.options, name, lambda _: "", error, origin=origin, headers=headers)

    def _joined(self, column: pa.BinaryArray, which: Rows, shown: pa.Array, *parts: pa.Array) -> pa.Array:
        """Return the result of the call, of what `_show_unknown` and the members have returned."""
        names = pa.array([member.name for member in self.members], pa.string())
        columns = {TYPE: names.take(pa.array(which, mask=which < 0))}
        errors = [shown.field("error")] if self.options.error_column else []
        valid, source = which >= 0, np.arange(len(column))
        for member, part in zip(self.members, parts, strict=True):
            columns[member.name] = part
            if self.options.permissive and not member.finished_by_spark:
                columns[member.name] = part.field("value")
                bad = validity_of(part.field("error"))
                valid &= ~bad
                if self.options.error_column and bad.any():
                    source[bad] += len(errors) * len(column)
                    errors.append(part.field("error"))
        kind = pa.struct([(name, array.type) for name, array in columns.items()])
        values = struct_array(kind, list(columns.values()), len(column), bitmap(valid))
        if not errors:
            return values
        joined = errors[0] if len(errors) == 1 else pa.concat_arrays(errors).take(pa.array(source))
        return with_errors(Decoded(values, {}), column, joined)


@dataclass(frozen=True, slots=True)
class MixedEncodeCall:
    """One `to_mixed`, of a struct with a column for each member that Python encodes, all but one of them NULL."""

    function: ClassVar = "to_mixed"
    encodes: ClassVar = True

    calls: tuple[Call, ...]

    def __call__(self, structs: pa.Array) -> pa.BinaryArray:
        if isinstance(structs, pa.ChunkedArray):
            structs = structs.combine_chunks()
        source, count = np.full(len(structs), -1, np.int64), 0
        parts: list[pa.Array] = [pa.array([], pa.binary())]
        for place, call in enumerate(self.calls):
            values = structs.field(place)
            rows = np.flatnonzero(validity_of(values))
            if not len(rows):
                continue
            if len(rows) < len(values):
                values = values.take(pa.array(rows))
            if isinstance(call, AvroEncodeCall):  # which sees by the field of a struct whether there can be NULL
                values = struct_array(pa.struct([structs.type.field(place)]), [values], len(rows))
            source[rows] = count + np.arange(len(rows))
            count += len(rows)
            parts.append(call(values))
        return pa.concat_arrays(parts).take(pa.array(source, mask=source < 0))
