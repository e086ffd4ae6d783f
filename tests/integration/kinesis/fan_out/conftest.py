"""A server of Kinesis, and queries by subscriptions on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.support.kinesis_efo import Efo
from tests.support.kinesis_rig import KinesisRig


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    made.close()


@pytest.fixture
def efo(server: KinesisServerProcess, tmp_path: Path) -> Iterator[Efo]:
    server.set_takeover(0)
    yield Efo(KinesisRig(server, tmp_path), tmp_path / "spool")
    server.clear_faults()
    server.set_transition(0)


@pytest.fixture
def two(server: KinesisServerProcess, tmp_path: Path) -> Iterator[Efo]:
    """A stream of two shards."""
    server.set_takeover(0)
    yield Efo(KinesisRig(server, tmp_path, shards=2), tmp_path / "spool")
    server.clear_faults()
