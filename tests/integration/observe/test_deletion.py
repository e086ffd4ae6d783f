"""A subscription is deleted after its query ended without an error, and only then."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from connectors.cli.main import app
from connectors.core.errors import SourceGoneError
from connectors.observe.spool_probe import SpoolWatch, SpoolWatches
from connectors.observe.watch import Observer
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.client import Transport
from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.ledger.writer_lock import writer_lock
from connectors.spool.store.local import LocalStore, lock_folder
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


def receive(server: PubSubServer, folder: Path, *events: tuple[str, dict[str, Any]]) -> str:
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
    assert receive(server, tmp_path, progress("q", spool), terminated("q", None)) == "subscription_deleted"
    assert not exists(server)


def test_a_query_that_failed_leaves_it(server: PubSubServer, tmp_path: Path, spool: str) -> None:
    assert receive(server, tmp_path, progress("q", spool), terminated("q", "boom")) == "terminated"
    assert exists(server)


def test_a_query_that_runs_leaves_it(server: PubSubServer, tmp_path: Path, spool: str) -> None:
    assert receive(server, tmp_path, progress("q", spool)) == "progress"
    assert exists(server)


def test_another_query_of_the_session_leaves_it(server: PubSubServer, tmp_path: Path, spool: str) -> None:
    assert receive(server, tmp_path, progress("q", spool), terminated("another", None)) == "terminated"
    assert receive(server, tmp_path, progress("q", "another spool"), terminated("q", None)) == "terminated"
    assert exists(server)


def test_a_deletion_that_is_refused_is_written_down(server: PubSubServer, tmp_path: Path, spool: str) -> None:
    server.fail("DeleteSubscription", "PERMISSION_DENIED", times=None)
    assert receive(server, tmp_path, progress("q", spool), terminated("q", None)) == "subscription_kept"
    assert exists(server)


def command(server: PubSubServer, folder: Path, *arguments: str, answer: str | None = None) -> tuple[int, str]:
    options = folder / "options.json"
    options.write_text(json.dumps({"endpoint": server.endpoint, "subscriptionId": "orders", "maxSpoolBytes": "1g"}))
    words = ["spool", "delete-subscriptions", str(folder / "spool"), "--options", str(options), *arguments]
    done = CliRunner().invoke(app, words, input=answer, env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.usefixtures("spool")
def test_the_command_asks_deletes_and_can_be_run_again(server: PubSubServer, tmp_path: Path) -> None:
    code, output = command(server, tmp_path, answer="n\n")
    assert (code, SUBSCRIPTION in output, exists(server)) == (1, True, True)
    for _ in range(2):
        code, output = command(server, tmp_path, "--yes", "--json")
        assert (code, json.loads(output), exists(server)) == (0, {"deleted": [SUBSCRIPTION]}, False)


@pytest.mark.usefixtures("spool")
def test_the_command_is_refused_while_a_query_or_a_fetcher_uses_the_spool(server: PubSubServer, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "spool"), "test")
    query = writer_lock(store, os.getpid())
    query.acquire()
    code, output = command(server, tmp_path, "--yes")
    assert (code, "SPOOL_IN_USE" in output, exists(server)) == (2, True, True)
    query.release()
    store.make_folder("inbox/f1")
    fetcher = lock_folder(store.tree, "inbox/f1")
    assert fetcher is not None
    code, output = command(server, tmp_path, "--yes")
    assert (code, "SPOOL_IN_USE" in output, exists(server)) == (2, True, True)
    os.close(fetcher)
    assert command(server, tmp_path, "--yes")[0] == 0
    assert not exists(server)


@pytest.mark.usefixtures("spool")
def test_the_command_says_why_the_service_refuses(server: PubSubServer, tmp_path: Path) -> None:
    server.fail("DeleteSubscription", "PERMISSION_DENIED", times=None)
    code, output = command(server, tmp_path, "--yes")
    assert (code, SUBSCRIPTION in output, exists(server)) == (2, True, True)


def test_the_command_refuses_a_spool_without_subscriptions(server: PubSubServer, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "spool"), "test")
    store.make_root()
    open_ledger(store, open_identity(store, "kinesis", ("orders",)))
    code, output = command(server, tmp_path, "--yes")
    assert (code, "SPOOL_NO_SUBSCRIPTIONS" in output) == (2, True)
