"""The test servers in the thread of a notebook, which runs an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from connectors.testing.kafka.mock import MockKafka
from connectors.testing.kinesis import KinesisServer
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from connectors.testing.schema_registry import SchemaRegistryServer


@pytest.mark.parametrize("server", [PubSubServer, KinesisServer, MockKafka, SchemaRegistryServer, ObjectStoreServer])
def test_a_server_starts_and_ends_while_an_event_loop_runs(server: Callable[[], AbstractContextManager[Any]]) -> None:
    async def cell() -> None:
        with server():
            pass

    asyncio.run(cell())
