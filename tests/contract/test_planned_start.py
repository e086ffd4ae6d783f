"""Where a batch begins on a Spark that does not say it: at the end planned last, or the query stops by name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from connectors.core.datasource import ConnectorSource, PlannedStartReader
from connectors.core.errors import OffsetError
from connectors.core.offsets import SENTINEL, START_KEY
from tests.contract.conftest import HARNESSES
from tests.contract.harness import SourceHarness
from tests.contract.reference_harness import ReferenceHarness

Offset = Mapping[str, Any]


KINDS = [kind for kind in HARNESSES if kind is not ReferenceHarness]
"""The reference source has no such reader."""


@pytest.fixture(
    params=[pytest.param(kind, id=kind.name, marks=[pytest.mark.long] if kind.long else []) for kind in KINDS]
)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceHarness]:
    made: SourceHarness = request.param(tmp_path)
    yield made
    made.close()


@contextmanager
def source_process(harness: SourceHarness) -> Iterator[PlannedStartReader]:
    """Make the reader as Spark does when a query starts, with options in lower case."""
    module, _, name = harness.source.partition(":")
    kind: type[ConnectorSource] = getattr(import_module(module), name)
    made = PlannedStartReader(kind.stream_reader({key.lower(): value for key, value in harness.options().items()}))
    try:
        yield made
    finally:
        made.stop()


def next_end(reader: PlannedStartReader, harness: SourceHarness, before: Offset) -> dict[str, Any]:
    """Ask until there is something new, as Spark does."""
    end = time.monotonic() + harness.patience
    while (found := reader.latestOffset()) == before:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def run_batches(harness: SourceHarness) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run two batches in a process of their own; return their ends."""
    with source_process(harness) as reader:
        start, ends = dict(SENTINEL), []
        for _ in range(2):
            harness.publish(2)
            ends.append(next_end(reader, harness, start))
            reader.partitions(start, ends[-1])
            reader.commit(ends[-1])
            start = ends[-1]
    return ends[0], ends[1]


@pytest.mark.guarantee
def test_a_spark_that_asks_for_an_offset_before_it_plans_its_checkpoint_stops_the_query(source: SourceHarness) -> None:
    _, newest = run_batches(source)
    source.publish(2)
    with source_process(source) as reader:
        end = next_end(reader, source, SENTINEL)
        with pytest.raises(OffsetError) as caught:
            reader.partitions(newest, end)
    assert caught.value.code == "SPARK_START_UNKNOWN"


@pytest.mark.guarantee
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "repeated"])
def test_a_batch_after_a_restart_begins_at_the_end_that_was_planned_first(
    source: SourceHarness, *, is_committed: bool
) -> None:
    older, newest = run_batches(source)
    source.publish(2)
    with source_process(source) as reader:
        reader.partitions(newest, newest)
        if not is_committed:
            reader.partitions(older, newest)
        end = next_end(reader, source, newest)
        assert START_KEY not in end
        assert reader.partitions(newest, end)
