"""The connectors that the contract suite runs over, and what its tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.harness import SourceHarness
from tests.contract.kafka_harness import KafkaHarness
from tests.contract.kinesis_harness import KinesisEfoHarness, KinesisHarness
from tests.contract.pubsub_harness import PubSubHarness
from tests.contract.reference_harness import ReferenceHarness
from tests.support.spark_protocol.driver import TaskWorkers

HARNESSES: list[type[SourceHarness]] = [
    ReferenceHarness,
    PubSubHarness,
    KafkaHarness,
    KinesisHarness,
    KinesisEfoHarness,
]
"""A connector joins the contract suite by adding its harness here."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each connector; with `batch_harness`, once for each that has a batch read."""
    for fixture, kinds in (
        ("harness", HARNESSES),
        ("batch_harness", [kind for kind in HARNESSES if kind.batch_read]),
    ):
        if fixture in metafunc.fixturenames:
            cases = [pytest.param(kind, id=kind.name, marks=[pytest.mark.long] if kind.long else []) for kind in kinds]
            metafunc.parametrize(fixture, cases, indirect=True)


@pytest.fixture
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceHarness]:
    """A fresh source of one connector."""
    folder = tmp_path / "source"
    folder.mkdir()
    made: SourceHarness = request.param(folder)
    yield made
    made.close()


batch_harness = harness


@pytest.fixture(scope="session")
def workers() -> Iterator[TaskWorkers]:
    """Two workers for all tests, as Spark's reused ones."""
    made = TaskWorkers(2)
    yield made
    made.close()
