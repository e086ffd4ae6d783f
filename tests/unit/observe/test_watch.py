"""Lag from progress reports, and where it goes: pure functions, a file, and metrics over HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkRuntimeError

from connectors.core.errors import ConnectorError, OptionError
from connectors.observe.lag import (
    Measurement,
    SpoolMeasurement,
)
from connectors.observe.prometheus import Exporter
from connectors.observe.spool_probe import SpoolWatches
from connectors.observe.watch import Observer, watch
from tests.support.observed import (
    Session,
    Spool,
    heard,
    kafka,
    labelled,
    of,
    progress,
    scrape,
    scraped,
    session,
    spooled,
)


def test_the_end_of_a_run_that_is_reported_after_the_start_of_the_next_one_ends_nothing(tmp_path: Path) -> None:
    found = []

    def act(observer: Observer) -> None:
        for event in (
            ("started", {"query": "q", "run": "first", "name": "orders"}),
            ("progress", progress(kafka(10, 15)) | {"runId": "first"}),
            ("started", {"query": "q", "run": "second", "name": "orders"}),
            ("progress", progress(kafka(15, 15)) | {"runId": "second"}),
            ("progress", progress(kafka(10, 15)) | {"runId": "first"}),
            ("terminated", {"query": "q", "run": "first", "exception": None}),
        ):
            observer._listener._put(event)
        found.append(observer)

    heard(tmp_path, act)
    assert list(found[0].latest) == ["q"]


def observers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "connectors-observer"]


def test_closing_ends_all_though_the_session_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    observer = watch(session(PySparkRuntimeError("[NO_ACTIVE_SESSION] gone")), file=tmp_path / "lines", port=0)
    assert observer.exporter is not None
    port = observer.exporter._server.server_port
    observer.close()
    observer.close()
    assert not observers()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert "OBSERVE_SESSION" in caplog.text


def test_closing_does_not_wait_without_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    began, answer = threading.Event(), threading.Event()

    class Slow(SpoolWatches):
        def look(self) -> dict[str, SpoolMeasurement]:
            began.set()
            answer.wait()
            return {}

    observer = Observer(Slow([]), tmp_path / "lines")
    for _ in range(3):
        observer._listener._put(("progress", progress(kafka(10, 15))))
    began.wait()
    observer.close(timeout=0.1)
    assert "[OBSERVE_LEFT]" in caplog.text
    answer.set()
    observer._thread.join(30)
    assert not observer._thread.is_alive()
    assert "OBSERVE_FAILED" not in caplog.text


@pytest.mark.parametrize("cause", ["file", "session"])
def test_watching_that_cannot_begin_leaves_nothing_open(cause: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    file = tmp_path / ("no folder/lines" if cause == "file" else "lines")
    with pytest.raises((ConnectorError, PySparkRuntimeError)) as error:
        watch(session(PySparkRuntimeError("no session"), first=True), file=file, port=port)
    assert str(error.value).startswith("[OBSERVE_FILE] " if cause == "file" else "no session")
    assert not observers()
    Exporter(port).close()


@pytest.mark.parametrize("port", [70_000, -1])
def test_what_is_no_port_is_a_named_error(port: int) -> None:
    with pytest.raises(OptionError, match="OBSERVE_PORT"):
        Exporter(port)


@pytest.mark.parametrize("address", ["192.0.2.1", "a" * 70])
def test_an_address_that_is_none_of_this_machine_is_a_named_error(address: str) -> None:
    with pytest.raises(ConnectorError, match="OBSERVE_PORT"):
        Exporter(0, address)


def test_metrics_on_an_address_of_ipv6_have_a_url_that_works() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    exporter = Exporter(0, "::1")
    assert exporter.url.startswith("http://[::1]:")
    assert labelled(exporter) == {}
    exporter.close()


def idle(run: str = "r") -> tuple[str, Any]:
    return "idle", {"query": "q", "run": run}


def test_a_query_that_waits_for_data_has_no_rate_and_no_lag_that_grows(tmp_path: Path) -> None:
    """The rate of its last batch stood in the metrics until the next one."""
    spool = Spool(lambda: SpoolMeasurement("s1", (), 9, 2, 7, 4, 100, 1500))
    exporter = Exporter(0)
    found = []

    def act(observer: Observer) -> None:
        put = observer._listener._put
        put(("progress", progress(kafka(15, 15), spooled("s1", 7, 7))))
        put(idle())
        put(("started", {"query": "other", "run": "o", "name": ""}))
        while "o" not in observer._running:
            observer._thread.join(0.01)
        found.append((observer.latest["q"], scrape(exporter, "orders")))

    lines = heard(tmp_path, act, exporter=exporter, spools=SpoolWatches([spool]))
    [(latest, metrics)] = found
    assert (latest.rows, latest.rows_per_second, latest.batch) == (0, 0.0, 7)
    assert [(source.records, source.milliseconds) for source in latest.sources] == [(0, 0), (0, 0)]
    assert metrics["connectors_rows_per_second", ""] == 0
    assert (metrics["connectors_rows_total", ""], metrics["connectors_batches_total", ""]) == (13, 1)
    assert metrics["connectors_spool_bytes", ""] == 100
    assert metrics["connectors_spool_oldest_unread_seconds", ""] == 0, "its last batch waits for the next one"
    batch, waits = lines[0], lines[1]
    assert metrics["connectors_batch_timestamp_seconds", ""] == batch["time_ms"] / 1000
    assert metrics["connectors_reported_timestamp_seconds", ""] == waits["time_ms"] / 1000
    assert waits.keys() == {"v", "event", "time_ms", "query", "run"}, "short, as it comes every ten seconds"


def test_what_an_idle_query_holds_back_stays_its_lag() -> None:
    """As with minOffsetsPerTrigger."""
    late = of(kafka(10, 15), now=2).idle(9)
    assert (late.sources[0].records, late.sources[0].milliseconds) == (5, 7)
    assert late.idle(11).sources[0].milliseconds == 9


def test_idleness_of_an_earlier_run_changes_nothing(tmp_path: Path) -> None:
    found = []

    def act(observer: Observer) -> None:
        put = observer._listener._put
        put(("started", {"query": "q", "run": "r", "name": "orders"}))
        put(idle())
        put(("progress", progress(kafka(15, 15)) | {"runId": "second"}))
        put(idle())
        found.append(observer)

    assert [line["event"] for line in heard(tmp_path, act)] == ["started", "idle", "progress", "idle"]
    assert found[0].latest["q"].rows_per_second == 20


def events_then(exporter: Exporter, *events: tuple[str, Any]) -> dict[str, float]:
    """What is served of the query once an observer has dealt with some events."""
    with Observer(exporter=exporter) as observer:
        for event in events:
            observer._listener._put(event)
        observer._listener._put(("started", {"query": "other", "run": "o", "name": ""}))
        while "o" not in observer._running:
            observer._thread.join(0.01)
        return scraped(exporter, "orders")


STARTED = ("started", {"query": "q", "run": "r", "name": "orders"})


@pytest.mark.parametrize("events", [[STARTED], [STARTED, idle()]], ids=["started", "idle"])
def test_a_query_has_metrics_from_its_start_on_also_while_it_has_had_no_batch(events: list[tuple[str, Any]]) -> None:
    """It had none until its first batch: one that hung in it, or waited for data, was seen nowhere."""
    found = events_then(Exporter(0), *events)
    assert (found["connectors_running"], found["connectors_failed"]) == (1, 0)
    assert (found["connectors_rows_total"], found["connectors_batches_total"]) == (0, 0)
    now = time.time()
    assert now - 60 < found["connectors_started_timestamp_seconds"] <= found["connectors_reported_timestamp_seconds"]
    assert found["connectors_reported_timestamp_seconds"] <= now
    assert not found.keys() & {"connectors_batch", "connectors_batch_seconds", "connectors_batch_timestamp_seconds"}


def test_a_query_that_ran_before_it_was_watched_has_metrics_too(tmp_path: Path) -> None:
    running = Session()
    running.active = [SimpleNamespace(id="q", runId="r", name="orders")]
    with watch(cast("Any", running), port=0, file=tmp_path / "lines") as observer:
        assert observer.exporter is not None
        while not scraped(observer.exporter, "orders"):
            observer._thread.join(0.01)
        assert scraped(observer.exporter, "orders")["connectors_running"] == 1
        running.active = []
        observer._listener._put(("terminated", {"query": "q", "run": "r", "exception": None}))
    assert [json.loads(line)["event"] for line in (tmp_path / "lines").read_text().splitlines()] == [
        "started",
        "terminated",
    ]


@pytest.mark.parametrize(("exception", "failed"), [(None, 0), ("it broke", 1)])
def test_a_query_that_has_ended_says_how_as_long_as_the_driver_runs(exception: str | None, failed: int) -> None:
    """Its metrics went with it, so that a failure looked like a stop."""
    end = ("terminated", {"query": "q", "run": "r", "exception": exception})
    found = events_then(Exporter(0), STARTED, ("progress", progress(kafka(10, 15))), end)
    assert (found.pop("connectors_running"), found.pop("connectors_failed")) == (0, failed)
    assert found.keys() == {"connectors_started_timestamp_seconds"}, "an old lag or rate is none"


@pytest.mark.parametrize("query", ["q", "another"])
def test_a_query_that_is_started_again_has_not_failed(query: str) -> None:
    """With the same checkpoint or with another one."""
    end = ("terminated", {"query": "q", "run": "r", "exception": "it broke"})
    found = events_then(Exporter(0), STARTED, end, ("started", {"query": query, "run": "s", "name": "orders"}))
    assert (found["connectors_running"], found["connectors_failed"]) == (1, 0)


def test_queries_that_have_ended_are_not_remembered_without_limit() -> None:
    exporter = Exporter(0)
    for number in range(500):
        query = Measurement.started(number, f"q{number}", "r", "")
        exporter.start(query)
        exporter.end(query.query, failed=True)
    assert len({query for query, *_ in labelled(exporter)}) <= 100
    exporter.close()


def test_metrics_are_served_as_openmetrics_until_the_query_ends() -> None:
    exporter = Exporter(0)
    spool = SpoolMeasurement("s1", (), 9, 2, 7, 4, 100, 1500)
    for _ in range(2):
        exporter.update(of(kafka(10, 15), spooled("s1", 4, 7), spools={"s1": spool}))
    found = scrape(exporter)
    assert found["connectors_lag_records", "orders-0"] == 5
    assert found["connectors_rows_total", ""] == 26
    assert found["connectors_spool_duplicates_total", ""] == 2
    assert found["connectors_spool_oldest_unread_seconds", ""] == 1.5
    exporter.end("q", failed=False)
    assert ("connectors_lag_records", "orders-0") not in scrape(exporter)
    exporter.close()


def test_a_port_that_is_taken_is_reported() -> None:
    exporter = Exporter(0)
    with pytest.raises(ConnectorError, match="OBSERVE_PORT"):
        Exporter(exporter._server.server_port)
    exporter.close()


@pytest.mark.parametrize(("name", "spools"), [("orders", ["s"]), ("projects/p/subscriptions/s", [])])
def test_a_subscription_whose_query_cannot_be_known_is_not_taken_for_deletion(name: str, spools: list[str]) -> None:
    session: Any = None
    with pytest.raises(OptionError, match="OBSERVE_DELETE_SUBSCRIPTIONS"):
        watch(session, spools=spools, deleteSubscriptions=[name])
