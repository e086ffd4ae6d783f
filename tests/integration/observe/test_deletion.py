"""A subscription is deleted after its query ended without an error, and only then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.core.errors import SourceGoneError
from connectors.observe.spool_probe import SpoolWatch, SpoolWatches
from connectors.observe.watch import Observer
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.client import Transport
from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.store.local import LocalStore
from connectors.testing.pubsub import PubSubServer

SUBSCRIPTION = "projects/shop/subscriptions/orders"


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    with PubSubServer() as running:
        running.create_subscription(SUBSCRIPTION, "projects/shop/topics/orders")
        yield running


def progress(query: str, spool: str) -> tuple[str, dict[str, Any]]:
    offset = {"epoch": "e", "position": 0, "spool": spool, "v": 1}
    source = {"numInputRows": 0, "endOffset": offset, "latestOffset": offset}
    return "progress", {"id": query, "runId": f"run of {query}", "batchId": 1, "sources": [source]}


def terminated(query: str, exception: str | None) -> tuple[str, dict[str, Any]]:
    return "terminated", {"query": query, "run": f"run of {query}", "exception": exception}


def hear(server: PubSubServer, folder: Path, *events: tuple[str, dict[str, Any]]) -> str:
    """Tell an observer of events; the last that it wrote."""
    watches = SpoolWatches([SpoolWatch(folder / "spool")])
    options = {"endpoint": server.endpoint}
    with Observer(watches, folder / "lines", deletions=(SUBSCRIPTION,), deletion_options=options) as observer:
        for event in events:
            observer._listener._put(event)
    return str(json.loads((folder / "lines").read_text().splitlines()[-1])["event"])


def exists(server: PubSubServer) -> bool:
    with PubSubClient(Transport(server.endpoint, secure=False, local=True)) as client:
        try:
            client.get_subscription(SUBSCRIPTION)
        except SourceGoneError:
            return False
    return True


@pytest.fixture
def spool(tmp_path: Path) -> str:
    store = LocalStore(str(tmp_path / "spool"), "test")
    store.make_root()
    identity = open_identity(store, "pubsub", (SUBSCRIPTION,))
    open_ledger(store, identity)
    return identity.spool


def test_a_query_that_ended_without_an_error_takes_its_subscription_along(
    server: PubSubServer, tmp_path: Path, spool: str
) -> None:
    assert hear(server, tmp_path, progress("q", spool), terminated("q", None)) == "subscription_deleted"
    assert not exists(server)


def test_a_query_that_failed_leaves_it(server: PubSubServer, tmp_path: Path, spool: str) -> None:
    assert hear(server, tmp_path, progress("q", spool), terminated("q", "boom")) == "terminated"
    assert exists(server)


def test_a_query_that_runs_leaves_it(server: PubSubServer, tmp_path: Path, spool: str) -> None:
    assert hear(server, tmp_path, progress("q", spool)) == "progress"
    assert exists(server)


def test_another_query_of_the_session_leaves_it(server: PubSubServer, tmp_path: Path, spool: str) -> None:
    assert hear(server, tmp_path, progress("q", spool), terminated("another", None)) == "terminated"
    assert hear(server, tmp_path, progress("q", "another spool"), terminated("q", None)) == "terminated"
    assert exists(server)


def test_a_deletion_that_is_refused_is_written_down(server: PubSubServer, tmp_path: Path, spool: str) -> None:
    server.fail("DeleteSubscription", "PERMISSION_DENIED", times=None)
    assert hear(server, tmp_path, progress("q", spool), terminated("q", None)) == "subscription_kept"
    assert exists(server)
