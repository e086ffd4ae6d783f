"""What a task reads: slices of segments, which `connectors.spool.stream.slices` has planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from connectors.spool.errors import reading_errors
from connectors.spool.segments.rows import RowSchema
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess

__all__ = ["Slice", "SpoolRows", "read_slices"]


@dataclass(frozen=True, slots=True)
class Slice:
    """A run of rows of one segment, for a task.

    Attributes:
        source: index of its source in the spool's list.
        first_row, end_row: row indexes in the segment, end excluded.
        position: position of the first row that is no duplicate.
        rows: how many rows are no duplicates.
        row_mask: which rows these are, packed bits; None if all are.
    """

    segment: str
    digest: str
    source: int
    first_row: int
    end_row: int
    position: int
    rows: int
    row_mask: bytes | None


@dataclass(frozen=True, slots=True)
class SpoolRows:
    """Some rows of a segment without duplicates, with consecutive positions from `position` on.

    `source` is the index of their source in the spool's list of sources.
    """

    rows: pa.RecordBatch
    position: int
    source: int

    def with_columns(self, texts: Mapping[str, str]) -> pa.RecordBatch:
        """Return the rows with columns of one text each, and at last ``offset``."""
        first, count = self.position, len(self.rows)
        columns = [
            *self.rows.columns,
            *(pa.repeat(pa.scalar(text, pa.string()), count) for text in texts.values()),
            pa.array(np.arange(first, first + count, dtype=np.int64)),
        ]
        return pa.RecordBatch.from_arrays(columns, names=[*self.rows.schema.names, *texts, "offset"])


def read_slices(
    root: str, slices: Sequence[Slice], access: StoreAccess | None = None, wanted: RowSchema | None = None
) -> Iterator[SpoolRows]:
    """Read the rows of a partition, in order, with the columns that are wanted, or else those that are stored.

    Raises `SpoolVersionError` if a newer version has written them, `SpoolError` if this machine cannot see the spool or
    may not read it, `SpoolDamagedError` if a segment is missing, damaged, or not the one that the ledger admitted.
    """
    store = open_store(root, "reader", access)
    with reading_errors(root):
        store.check_visible()
        for part in slices:
            yield from _read_slice(store, part, wanted)


def _read_slice(store: Store, part: Slice, wanted: RowSchema | None) -> Iterator[SpoolRows]:
    reader = SegmentReader(store, part.segment, part.digest)
    mask: npt.NDArray[np.bool_] | None = None
    if part.row_mask is not None:
        bits = np.frombuffer(part.row_mask, np.uint8)
        mask = np.unpackbits(bits, count=part.end_row - part.first_row).astype(np.bool_)
    position = part.position
    for first, batch in reader.batches(part.first_row, part.end_row, wanted):
        low = first - part.first_row
        rows = batch if mask is None else batch.filter(pa.array(mask[low : low + len(batch)]))
        if len(rows):
            yield SpoolRows(rows, position, part.source)
        position += len(rows)
