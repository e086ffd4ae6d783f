"""The schema of a connector's rows in segments, which has a version of its own.

A connector that adds a column raises the version. Segments carry it in the metadata of their Arrow schema, with the
version of the pack that wrote them; one without it has version 1. Columns are found by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

import connectors
from connectors.core.errors import SpoolVersionError

_VERSION_KEY: Final = b"spool.rows.version"
_WRITER_KEY: Final = b"spool.rows.writer"
_FIRST_VERSION: Final = 1

Projection = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True)
class RowSchema:
    """The columns of rows, and the version that counts their changes, from 1 on.

    A column that an older segment lacks has its value in `defaults`, else null. With `all_present` such a segment
    cannot be read: for a cache, whose rows must be those that the service would give.
    """

    version: int
    columns: pa.Schema
    defaults: Mapping[str, Any] = field(default_factory=dict)
    all_present: bool = False

    @cached_property
    def stamped(self) -> pa.Schema:
        writer = connectors.__version__.encode()
        return self.columns.with_metadata({_VERSION_KEY: str(self.version).encode(), _WRITER_KEY: writer})

    def projection(self, stored: pa.Schema, where: str) -> Projection | None:
        """Return what makes rows of this schema of those of a segment; None if they are so already.

        Raises `SpoolVersionError` for another version that cannot be read, and `ValueError` for a schema that no
        version has written.
        """
        metadata = stored.metadata or {}
        text = metadata.get(_VERSION_KEY, b"%d" % _FIRST_VERSION)
        if not text.isdigit() or int(text) < _FIRST_VERSION:
            raise ValueError("its version is not a number")
        if int(text) <= self.version and stored.equals(self.columns):
            return None
        names = stored.names
        if len(set(names)) != len(names):
            raise ValueError("it has a column twice")
        unknown = sorted(set(names) - set(self.columns.names))
        missing = sorted(set(self.columns.names) - set(names))
        if int(text) > self.version or unknown or (missing and self.all_present):
            raise self._unreadable(int(text), metadata.get(_WRITER_KEY, b"").decode(), unknown, missing, where)
        for name in names:
            if stored.field(name).type != self.columns.field(name).type:
                raise ValueError(f"its column {name} is of another type")
        return self._projected

    def _projected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        present = set(rows.schema.names)
        columns = [
            rows.column(column.name)
            if column.name in present
            else pa.repeat(pa.scalar(self.defaults.get(column.name), column.type), len(rows))
            for column in self.columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.columns)

    def _unreadable(
        self, version: int, writer: str, unknown: list[str], missing: list[str], where: str
    ) -> SpoolVersionError:
        parts = [f"the unknown columns {', '.join(unknown)}"] if unknown else []
        parts += [f"no {', '.join(missing)}"] if missing and self.all_present else []
        has = f", with {' and '.join(parts)}" if parts else ""
        what = f"A segment has rows of version {version}{has}, but this package reads rows of version {self.version}"
        wrote = f"{writer}, which wrote it" if writer else "that wrote it"
        action = f"Run the version of pyspark-stream-connectors {wrote}, or a newer one. The rows stay in the spool."
        return SpoolVersionError("SPOOL_ROWS_VERSION", what, where, action)
