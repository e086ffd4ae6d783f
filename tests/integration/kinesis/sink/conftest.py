"""A server of Kinesis with a stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.kinesis.datasource import _record_limit
from connectors.testing.kinesis import KinesisServer


@pytest.fixture(scope="module")
def shared() -> Iterator[KinesisServer]:
    with KinesisServer() as running:
        yield running


@pytest.fixture
def server(shared: KinesisServer) -> Iterator[KinesisServer]:
    shared.create_stream("orders")
    shared.reset_calls()
    _record_limit.cache_clear()
    yield shared
    shared.clear_faults()
    shared.delete_stream("orders")
