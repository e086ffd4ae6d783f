"""A checkpoint that was altered gives the same rows, or a named error before any row; for each connector."""

from __future__ import annotations

import random

from connectors.core.errors import ConnectorError
from tests.contract.harness import SourceHarness
from tests.contract.reference_harness import ReferenceHarness
from tests.support.altered_offsets import AlterableBatches
from tests.support.spark_protocol.driver import InProcessWorkers

TRIED = 80


def test_an_altered_offset_gives_the_same_rows_or_a_named_error(
    harness: SourceHarness, workers: InProcessWorkers
) -> None:
    if isinstance(harness, ReferenceHarness):  # a toy, which shows what a reader must do
        return
    batches = AlterableBatches(harness, workers)
    refused = 0
    try:
        for altered in random.sample(batches.cases, min(TRIED, len(batches.cases))):
            try:
                assert batches.has_same_rows(altered), altered
            except ConnectorError:  # each has a code
                refused += 1
    finally:
        batches.reader.stop()
    assert refused > TRIED // 4
