"""What the doctor says of a checkpoint of ``kafka_py``, on librdkafka's mock cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.checks import Finding, Outcome
from connectors.kafka.checks import check
from connectors.testing.kafka import MockKafka


@pytest.fixture(scope="module")
def mock() -> Iterator[MockKafka]:
    with MockKafka() as made:
        made.create_topic("t", 1)
        yield made


def look(mock: MockKafka, checkpoint: Path) -> Finding:
    options = {"kafka.bootstrap.servers": mock.endpoint, "subscribe": "t"}
    return next(each for each in check(options, {}, checkpoint) if each.check == "checkpoint")


def test_a_checkpoint_that_is_not_there_yet_is_that_of_a_new_query(mock: MockKafka, tmp_path: Path) -> None:
    for checkpoint in (tmp_path / "not" / "there", tmp_path):
        found = look(mock, checkpoint)
        assert (found.outcome, found.found) == (Outcome.OK, f"{checkpoint} is not there yet: a new query")


def test_what_is_no_checkpoint_of_this_machine_is_a_failure(mock: MockKafka, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for checkpoint in (tmp_path, tmp_path / "file", Path("s3://bucket/checkpoint")):
        found = look(mock, checkpoint)
        assert (found.outcome, found.code) == (Outcome.FAILURE, "CHECKPOINT_UNREADABLE")
