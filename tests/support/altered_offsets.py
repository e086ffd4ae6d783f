"""Altered offsets of a query that has read two batches: what is planned and read from them, for any connector."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import Any

from tests.contract.harness import SourceHarness
from tests.contract.queries import query_of, read_until
from tests.support.alterations import alterations, json_text
from tests.support.spark_protocol.driver import InProcessWorkers


@dataclass(frozen=True)
class AlteredOffset:
    """One alteration: which end of which of the two batches, what was done, and what stands there now."""

    batch: int
    side: int
    done: str
    value: Any

    def __str__(self) -> str:
        return f"{('start', 'end')[self.side]} of batch {self.batch}: {self.done}"


class AlterableBatches:
    """Two batches that a query has read, and a reader in this process that reads them again.

    Args:
        harness: of the connector.
        workers: for the query.
    """

    def __init__(self, harness: SourceHarness, workers: InProcessWorkers) -> None:
        self._harness = harness
        with query_of(harness, workers) as query:
            for _ in range(2):
                read_until(query, harness.publish(4), harness)
            offsets = [json.loads(str(query.checkpoint.offsets(batch)[0])) for batch in range(query.batch_id)]
        module, _, name = harness.source.partition(":")
        options = {key.lower(): value for key, value in harness.options().items()}
        source = getattr(importlib.import_module(module), name)(options)
        self.reader = source.streamReader(source.schema())
        first, last, sentinel = offsets[0], offsets[-1], self.reader.initialOffset()
        self._ranges = [(sentinel, first), (first, last)]
        self._wanted = [self._rows(*each) for each in self._ranges]
        assert self._wanted[1]
        found = [AlteredOffset(0, 1, *each) for each in alterations(first)]
        found += [
            AlteredOffset(1, side, *each) for side, offset in enumerate((first, last)) for each in alterations(offset)
        ]
        found += [AlteredOffset(0, 0, *each) for each in alterations(sentinel)]
        # What a query over nothing holds is that of another query.
        self.cases = [each for each in found if not each.done.endswith("= {}")]

    def has_same_rows(self, altered: AlteredOffset) -> bool:
        """Whether the batch has the rows that it had; an error is raised before any row is read."""
        offsets = list(self._ranges[altered.batch])
        offsets[altered.side] = json.loads(json_text(altered.value))
        return self._rows(*offsets) == self._wanted[altered.batch]

    def _rows(self, start: Any, end: Any) -> list[list[Any]]:
        """The keys of a batch, by partition: all of it is planned before a row is read."""
        parts = [part.read() for part in self.reader.partitions(start, end)]
        return [[key for batch in part for key in batch.column(self._harness.key).to_pylist()] for part in parts]
