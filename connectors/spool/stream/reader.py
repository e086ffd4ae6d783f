"""What a task does: read its slices from the segments. Spark's workers import it, so it imports little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from connectors.spool.errors import reading_errors
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.stream.planning import Slice

__all__ = ["SpoolRows", "read_slices"]


@dataclass(frozen=True, slots=True)
class SpoolRows:
    """Some rows of a segment without duplicates, with consecutive positions from `position` on.

    `source` is the index of their subscription in the spool's list of sources.
    """

    rows: pa.RecordBatch
    position: int
    source: int


def read_slices(root: str, slices: Sequence[Slice], access: StoreAccess | None = None) -> Iterator[SpoolRows]:
    """Read the rows of a partition, in order.

    Raises:
        SpoolError: this machine cannot see the spool, or the user of the task may not read it.
        SpoolDamagedError: a segment is missing or damaged, or not the one that the ledger admitted.
    """
    store = open_store(root, "reader", access)
    with reading_errors(root):
        store.check_visible()
        for part in slices:
            yield from _read_slice(store, part)


def _read_slice(store: Store, part: Slice) -> Iterator[SpoolRows]:
    reader = SegmentReader(store, part.segment, part.digest)
    span = part.end_row - part.first_row
    mask = None if part.kept is None else np.unpackbits(np.frombuffer(part.kept, np.uint8), count=span).astype(np.bool_)
    position = part.position
    for first, batch in reader.batches(part.first_row, part.end_row):
        rows = batch
        if mask is not None:
            low = first - part.first_row
            rows = batch.filter(pa.array(mask[low : low + len(batch)]))
        if len(rows):
            yield SpoolRows(rows, position, part.source)
        position += len(rows)
