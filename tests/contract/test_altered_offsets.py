"""A checkpoint that was altered gives the same rows, or a named error before any row; for each connector."""

from __future__ import annotations

import importlib
import json
import random
from typing import Any

from connectors.core.errors import ConnectorError
from connectors.testing.spark_protocol.driver import InProcessWorkers
from tests.contract.harness import SourceHarness
from tests.contract.queries import query_of, read_until
from tests.contract.reference_harness import ReferenceHarness
from tests.support.alterations import alterations, json_text

TRIED = 80


def read_two_batches(harness: SourceHarness, workers: InProcessWorkers) -> tuple[Any, list[Any]]:
    """A reader in this process, on a source of which a query has read two batches, and the offsets of that query."""
    with query_of(harness, workers) as query:
        for _ in range(2):
            read_until(query, harness.publish(4), harness)
        offsets = [json.loads(str(query.checkpoint.offsets(batch)[0])) for batch in range(query.batch_id)]
    module, _, name = harness.source.partition(":")
    options = {key.lower(): value for key, value in harness.options().items()}
    source = getattr(importlib.import_module(module), name)(options)
    return source.streamReader(source.schema()), offsets


def rows(reader: Any, harness: SourceHarness, start: Any, end: Any) -> list[list[Any]]:
    """The keys of a batch, by partition: all of it is planned before a row is read."""
    parts = [part.read() for part in reader.partitions(start, end)]
    return [[key for batch in part for key in batch.column(harness.key).to_pylist()] for part in parts]


def test_an_altered_offset_gives_the_same_rows_or_a_named_error(
    harness: SourceHarness, workers: InProcessWorkers
) -> None:
    if isinstance(harness, ReferenceHarness):  # a toy, which shows what a reader must do
        return
    reader, (first, *_, last) = read_two_batches(harness, workers)
    try:
        compare(harness, reader, first, last)
    finally:
        reader.stop()


def compare(harness: SourceHarness, reader: Any, first: Any, last: Any) -> None:
    """Read two batches with altered offsets."""
    sentinel = reader.initialOffset()
    ranges = [(sentinel, first), (first, last)]
    wanted = [rows(reader, harness, *each) for each in ranges]
    assert wanted[1]
    cases = [(0, 1, *each) for each in alterations(first)]
    cases += [(1, side, *each) for side, offset in enumerate((first, last)) for each in alterations(offset)]
    cases += [(0, 0, *each) for each in alterations(sentinel)]
    refused = 0
    for of, side, done, altered in random.sample(cases, min(TRIED, len(cases))):
        if done.endswith("= {}"):  # what a query over nothing holds, which is another query
            continue
        offsets = list(ranges[of])
        offsets[side] = json.loads(json_text(altered))
        try:
            found = rows(reader, harness, *offsets)
        except ConnectorError:  # each has a code
            refused += 1
            continue
        assert found == wanted[of], f"{('start', 'end')[side]} of batch {of}: {done}"
    assert refused > TRIED // 4
