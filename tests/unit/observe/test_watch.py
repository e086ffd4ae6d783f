"""Lag from progress reports, and where it goes: pure functions, a file, and metrics over HTTP."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pyspark.errors import PySparkRuntimeError

from connectors.core.errors import ConnectorError, CredentialsError, OptionError
from connectors.kafka.lag import source_lag
from connectors.observe.lag import (
    LagHistory,
    Measurement,
    PartitionLag,
    SourceMeasurement,
    SpoolMeasurement,
    measure,
    spool_lag,
)
from connectors.observe.prometheus import Exporter
from connectors.observe.spool_probe import SpoolWatch, SpoolWatches
from connectors.observe.watch import Observer, watch
from connectors.spool.fetching.placement import Claim, Place, Placement
from connectors.spool.store.base import Holder
from tests.support.spool_writing import SOURCES, HandSpool
from tests.support.waiting import wait_for

KINDS = {"spool": spool_lag, "kafka_py": source_lag}
SECONDS = 1000


def progress(*sources: dict[str, Any], batch: int = 7) -> dict[str, Any]:
    """A progress report as Spark gives it."""
    return {
        "id": "q",
        "runId": "r",
        "name": "orders",
        "batchId": batch,
        "durationMs": {"triggerExecution": 500},
        "sources": list(sources),
    }


def kafka(end: int, latest: int) -> dict[str, Any]:
    return {
        "numInputRows": 10,
        "endOffset": json.dumps({"orders": {"0": end, "1": 4}, "v": 1}),
        "latestOffset": json.dumps({"orders": {"0": latest, "1": 4}, "v": 1}),
    }


def spooled(spool: str, end: int, latest: int) -> dict[str, Any]:
    offset = {"epoch": "e", "spool": spool, "v": 1}
    return {"numInputRows": 3, "endOffset": {**offset, "position": end}, "latestOffset": {**offset, "position": latest}}


def of(*sources: dict[str, Any], now: int = 0, histories: Any = None, spools: Any = None) -> Measurement:
    return measure(progress(*sources), now, KINDS, {} if histories is None else histories, spools or {})


def test_the_lag_of_kafka_is_by_partition_in_records() -> None:
    [source] = of(kafka(10, 15)).sources
    assert (source.kind, source.records) == ("kafka_py", 5)
    assert source.partitions == {"orders-0": PartitionLag(5, 0), "orders-1": PartitionLag(0, 0)}


def test_the_lag_of_kafka_has_the_names_of_sparks_own_source_and_no_other_lag_has() -> None:
    measured = of(kafka(10, 15), spooled("s1", 3, 5), {"numInputRows": 1})
    assert [source["metrics"] for source in measured.to_json()["sources"]] == [
        {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "5", "avgOffsetsBehindLatest": "2.5"},
        {},
        {},
    ]


def test_the_lag_in_time_is_the_age_of_the_first_look_that_saw_an_unread_record() -> None:
    histories: dict[tuple[str, int], LagHistory] = {}
    ages = [
        of(kafka(end, latest), now=now * SECONDS, histories=histories).sources[0].milliseconds
        for now, end, latest in [(0, 10, 10), (1, 10, 12), (3, 10, 20), (4, 12, 20), (5, 20, 20), (9, 20, 21)]
    ]
    assert ages == [0, 0, 2 * SECONDS, 1 * SECONDS, 0, 0]


def test_the_lag_of_kafka_in_time_is_by_the_timestamp_of_the_first_unread_record_also_after_a_restart() -> None:
    """It began near zero with every run, so that a query that failed every few minutes was never far behind."""
    late = kafka(10, 13_610)
    late["latestOffset"] = json.dumps({"orders": {"0": 13_610, "1": 4}, "v": 1, "/times": {"orders": {"0": 1_000}}})
    [source] = of(late, now=901 * SECONDS).sources
    assert source.partitions == {"orders-0": PartitionLag(13_600, 900 * SECONDS), "orders-1": PartitionLag(0, 0)}
    assert source.milliseconds == 900 * SECONDS


@pytest.mark.parametrize("times", [{}, {"orders": {"0": 99_000}}, {"orders": {"0": -1}}, {"orders": 7}, "x", [1]])
def test_a_record_without_a_time_or_from_the_future_is_at_least_as_old_as_it_was_seen(times: Any) -> None:
    histories: dict[tuple[str, int], LagHistory] = {}
    for now in (0, 5):
        late = kafka(10, 15)
        late["latestOffset"] = json.dumps({"orders": {"0": 15, "1": 4}, "v": 1, "/times": times})
        [source] = of(late, now=now * SECONDS, histories=histories).sources
        assert (source.records, source.milliseconds) == (5, now * SECONDS)


def test_a_spool_has_one_lag_in_time_in_the_file_the_log_and_the_metrics() -> None:
    """It was 101 s in the file, 64 s in the metrics and 105 s in the log."""
    spool = SpoolMeasurement("s1", (), 9, 2, 7, 4, 100, 101 * SECONDS)
    found = of(spooled("s1", 4, 7), spools={"s1": spool})
    exporter = Exporter(0)
    exporter.update(found)
    assert found.to_json()["sources"][0]["milliseconds"] == 101 * SECONDS
    assert found.to_json()["sources"][0]["partitions"]["s1"]["milliseconds"] == 101 * SECONDS
    assert "101,000 ms behind" in found.line()
    assert scrape(exporter)["connectors_lag_seconds", "s1"] == 101
    exporter.close()


def test_a_spool_of_which_all_was_read_has_no_lag_though_spark_commits_it_later() -> None:
    spool = SpoolMeasurement("s1", (), 9, 2, 7, 4, 100, 101 * SECONDS)
    [source] = of(spooled("s1", 7, 7), spools={"s1": spool}).sources
    assert (source.records, source.milliseconds) == (0, 0)
    assert source.spool == spool


def test_what_is_unread_ages_between_two_reports_and_what_is_read_does_not() -> None:
    """A batch that hung for an hour left the lag where it was, so no alert fired."""
    found = of(kafka(10, 15), now=2 * SECONDS)
    [source] = found.at(62 * SECONDS, {}).sources
    assert source.partitions == {"orders-0": PartitionLag(5, 60 * SECONDS), "orders-1": PartitionLag(0, 0)}
    assert source.milliseconds == 60 * SECONDS
    assert found.at(62 * SECONDS, {}).time_ms == found.time_ms, "the time of the report"


def test_a_spool_that_fills_while_a_batch_hangs_is_seen() -> None:
    sizes = iter([100, 3_000_000_000])
    spool = Spool(lambda: SpoolMeasurement("s1", (), 9, 2, 7, 4, next(sizes, 3_000_000_000), 1500))
    now = 100.0
    exporter = Exporter(0)

    def clock() -> float:
        nonlocal now
        now += 5
        return now

    with Observer(SpoolWatches([spool], clock=clock), exporter=exporter, refresh_seconds=0.01) as observer:
        observer._listener._put(("progress", progress(spooled("s1", 4, 7))))
        while scrape(exporter).get(("connectors_spool_bytes", "")) != 3e9:
            observer._thread.join(0.01)


def test_a_source_that_counts_no_records_says_how_far_it_is_behind_in_time() -> None:
    kinds = {"other": lambda _end, _latest: {"s/0": PartitionLag(None, 1200), "s/1": PartitionLag(0, 0)}}
    found = measure(progress({"numInputRows": 1}), 0, kinds, {}, {})
    [source] = found.sources
    assert (source.records, source.milliseconds) == (None, 1200)
    assert found.line().endswith("source 0 (other) 1,200 ms behind")


def test_a_stream_that_stands_still_for_long_keeps_its_age_and_little_memory() -> None:
    history = LagHistory()
    for now in range(5000):
        found = history.lag("orders-0", 0, now + 1, now)
    assert found == PartitionLag(5000, 4999)
    assert len(history._seen["orders-0"]) <= 512


def test_a_spool_is_known_by_its_id_and_an_unknown_source_is_no_error() -> None:
    spool = SpoolMeasurement("s1", ("projects/p/subscriptions/s",), 9, 2, 7, 4, 100, 1500)
    unknown = {"numInputRows": 1, "endOffset": "17", "latestOffset": None}
    found = of(spooled("s1", 4, 7), spooled("s2", 1, 1), unknown, spools={"s1": spool})
    assert [(each.kind, each.records, each.milliseconds) for each in found.sources] == [
        ("spool", 3, 1500),
        ("spool", 0, 0),
        ("unknown", 0, 0),
    ]
    assert found.sources[0].spool == spool
    assert found.rows == 7
    assert found.rows_per_second == 14
    assert "2 duplicates dropped" in found.line()


@pytest.mark.parametrize(
    "end",
    [{"spool": "s"}, {"spool": "s", "position": None}, {"spool": "s", "position": "x"}, {"spool": [], "position": 1}],
)
def test_an_offset_that_looks_like_a_spools_and_is_none_is_left_to_others(end: dict[str, Any]) -> None:
    good = spooled("s", 4, 7)
    found = of({"numInputRows": 5, "endOffset": end, "latestOffset": end}, {**good, "latestOffset": end})
    assert [(each.kind, each.records) for each in found.sources] == [("unknown", 0), ("spool", 0)]
    assert found.rows == 8


@pytest.mark.parametrize("end", [None, "null", "no json", {"v": 1, "initial": True}, [], {"spool": "s", "position": 1}])
def test_an_offset_that_is_not_of_kafka_is_left_to_others(end: Any) -> None:
    assert source_lag(end, None) is None


def test_a_spool_is_looked_at_beside_its_query_with_rates(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    ledger = spool.open()
    watcher = SpoolWatch(str(spool.root))
    first = watcher.look()
    assert (first.sources, first.delivered, first.oldest_unread_ms, first.admitted_per_second) == (SOURCES, 0, 0, None)
    spool.write(["a", "b", "a"], published=2_000_000)
    ledger.admit()
    second = watcher.look()
    assert (second.delivered, second.duplicates, second.rows, second.bytes) == (3, 1, 2, 20)
    assert second.oldest_unread_ms > 0
    assert second.admitted_per_second is not None
    assert second.kept_per_second is not None
    assert second.admitted_per_second == pytest.approx(second.kept_per_second * 1.5)
    ledger.commit(2)
    assert watcher.look().oldest_unread_ms == 0


def test_an_observer_shows_where_fetchers_on_executors_run(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    watcher = SpoolWatch(str(spool.root))
    assert watcher.look().executor_fetchers == ()
    placement = Placement(spool.store, 1)
    placement.announce()
    holder = replace(Holder.this_process(), host="worker-7", pid=42)
    claim = Claim(spool.store, placement.job, Place(0, 0, holder, "3"))
    assert claim.take()
    seen = watcher.look()
    assert seen.executor_fetchers == ("0 on worker-7 (executor 3, pid 42)",)
    source = SourceMeasurement("spool", 1, 1, 1, {"": PartitionLag(1, 1)}, seen)
    assert (
        "fetchers on executors: 0 on worker-7 (executor 3, pid 42)"
        in Measurement(1, "q", "r", "", 1, 1, 1, 1.0, (source,)).line()
    )
    claim.leave()
    assert watcher.look().executor_fetchers == ()


def heard(tmp_path: Path, act: Callable[[Observer], None], **arguments: Any) -> list[dict[str, Any]]:
    """The lines that an observer writes about what it is told."""
    with Observer(file=tmp_path / "lines.jsonl", **arguments) as observer:
        act(observer)
    return [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]


def test_each_event_is_one_json_line_and_a_broken_one_does_not_end_the_observer(tmp_path: Path) -> None:
    def act(observer: Observer) -> None:
        put = observer._listener._put
        put(("started", {"query": "q", "run": "r", "name": "orders"}))
        put(("progress", {"no": "report"}))
        put(("progress", progress(kafka(10, 15))))
        put(("terminated", {"query": "q", "run": "r", "exception": None}))

    lines = heard(tmp_path, act)
    assert [line["event"] for line in lines] == ["started", "progress", "terminated"]
    assert lines[1]["sources"][0]["partitions"]["orders-0"]["records"] == 5


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


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_file_is_for_its_owner_alone_as_it_holds_whole_errors(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        heard(tmp_path, lambda _: None)
    finally:
        os.umask(before)
    assert mode(tmp_path / "lines.jsonl") == 0o600


@pytest.mark.parametrize(("given", "then"), [(0o644, 0o600), (0o666, 0o600), (0o640, 0o640), (0o600, 0o600)])
def test_a_file_that_all_may_read_is_closed_to_them_and_a_group_that_was_let_in_stays(
    given: int, then: int, tmp_path: Path
) -> None:
    """0644 is what this file had before; 0640 is what an administrator gives a collector of logs."""
    path = tmp_path / "lines.jsonl"
    path.write_text('{"event": "before"}\n')
    path.chmod(given)
    assert [line["event"] for line in heard(tmp_path, lambda _: None)] == ["before"]
    assert mode(path) == then


class Spool(SpoolWatch):
    """A spool that is looked at in a way of the test's."""

    def __init__(self, look: Callable[[], SpoolMeasurement]) -> None:
        self.path = "s3://spools/orders"
        self.looks = 0
        self._look = look

    def look(self) -> SpoolMeasurement:
        self.looks += 1
        return self._look()


def fails(error: Exception) -> Callable[[], SpoolMeasurement]:
    def look() -> SpoolMeasurement:
        raise error

    return look


@pytest.mark.parametrize(
    "error",
    [CredentialsError("SPOOL_REFUSED", "No"), PermissionError(13, "no"), TimeoutError("no answer"), ValueError("odd")],
    ids=lambda error: type(error).__name__,
)
def test_a_spool_that_cannot_be_seen_hides_no_batch(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(fails(error))

    def act(observer: Observer) -> None:
        for batch in range(3):
            observer._listener._put(("progress", progress(kafka(10, 15), batch=batch)))

    lines = heard(tmp_path, act, spools=SpoolWatches([spool]))
    assert [line["batch"] for line in lines] == [0, 1, 2]
    assert spool.looks == 1
    assert caplog.text.count("[OBSERVE_SPOOL]") == 1


def test_a_spool_that_could_not_be_seen_is_looked_at_again_after_a_while() -> None:
    now = 100.0
    spool = Spool(fails(TimeoutError()))
    watches = SpoolWatches([spool], clock=lambda: now)
    looks = []
    for seconds in (0, 29, 2):
        now += seconds
        assert watches.look() == {}
        looks.append(spool.looks)
    assert looks == [1, 1, 2]


class Store:
    """A store whose looks take so many seconds, of a clock of the test's."""

    def __init__(self, takes: float) -> None:
        self.now = 100.0
        self.rows = 0
        self.spool = Spool(partial(self._look, takes))
        self.watches = SpoolWatches([self.spool], clock=lambda: self.now, patience=1000.0)

    def _look(self, takes: float) -> SpoolMeasurement:
        self.now += takes
        return SpoolMeasurement("s0", (), 9, 2, self.rows, 4, 100, 1500)


@pytest.mark.parametrize(("takes", "pause"), [(0.01, 1.0), (0.25, 1.0), (2.0, 6.0), (4.0, 12.0)])
def test_after_a_look_the_last_answer_is_reported_for_a_second_or_three_times_what_it_took(
    takes: float, pause: float
) -> None:
    store = Store(takes)
    assert store.watches.look()["s0"].rows == 0
    store.rows, ended = 7, store.now
    for part in (0.0, 0.5, 0.99):
        store.now = ended + pause * part
        assert store.watches.look()["s0"].rows == 0
    assert store.spool.looks == 1
    store.now = ended + pause * 1.001
    assert store.watches.look()["s0"].rows == 7


def test_what_is_reported_of_batches_keeps_up_with_a_slow_store() -> None:
    store = Store(3.0)
    behind = []
    for batch in range(200):
        # A batch ends each half second; it is told when that is over, and all before it is told.
        ended = 100.0 + batch / 2
        store.now = max(store.now, ended)
        store.watches.look()
        behind.append(store.now - ended)
    assert max(behind) <= 3.0
    assert store.spool.looks in range(7, 11)


def test_spools_are_looked_at_side_by_side() -> None:
    both = threading.Barrier(2)

    def look() -> SpoolMeasurement:
        both.wait(30)
        return SpoolMeasurement(threading.current_thread().name, (), 9, 2, 7, 4, 100, 1500)

    SpoolWatches([Spool(look), Spool(look)], patience=60.0).look()
    assert not both.broken


def test_the_time_of_a_batch_is_that_at_which_it_was_reported(tmp_path: Path) -> None:
    began, answer = threading.Event(), threading.Event()

    class Slow(SpoolWatches):
        def look(self) -> dict[str, SpoolMeasurement]:
            began.set()
            answer.wait(30)
            return {}

    heard_by: list[int] = []

    def act(observer: Observer) -> None:
        for batch in range(2):
            observer._listener._put(("progress", progress(kafka(10, 15), batch=batch)))
        began.wait(30)
        heard_by.append(time.time_ns() // 1_000_000)
        wait_for(lambda: time.time_ns() // 1_000_000 > heard_by[0])
        answer.set()

    lines = heard(tmp_path, act, spools=Slow([]))
    assert [line["batch"] for line in lines] == [0, 1]
    assert max(line["time_ms"] for line in lines) <= heard_by[0]


def test_a_store_that_does_not_answer_holds_up_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    answer = threading.Event()
    found = SpoolMeasurement("s1", (), 9, 2, 7, 4, 100, 1500)

    def hang() -> SpoolMeasurement:
        answer.wait()
        return found

    spool = Spool(hang)
    watches = SpoolWatches([spool], clock=lambda: now, patience=0.05)

    def act(observer: Observer) -> None:
        for batch in range(20):
            observer._listener._put(("progress", progress(kafka(10, 15), batch=batch)))

    assert [line["batch"] for line in heard(tmp_path, act, spools=watches)] == list(range(20))
    assert caplog.text.count("[OBSERVE_SPOOL]") == 1
    now += 31
    assert watches.look() == {}
    assert spool.looks == 1, "the look that hangs is still under way"
    answer.set()
    watches._looks[spool].join(30)
    now += 31
    assert SpoolWatches([spool]).look() == {"s1": found}
    assert watches.look() == {"s1": found}


def test_a_spool_that_is_not_made_yet_is_looked_at_again_a_second_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    watches = SpoolWatches([SpoolWatch(tmp_path / "spool")], clock=lambda: now)
    assert watches.look() == {}
    HandSpool(tmp_path / "spool").open()
    now += 1
    assert len(watches.look()) == 1
    assert "OBSERVE_SPOOL" not in caplog.text


class Session:
    """What an observer needs of a session; `error` is raised where it is left, or, with `first`, entered."""

    def __init__(self, error: Exception | None = None, *, first: bool = False) -> None:
        self.error = error
        self.first = first
        self.active: list[Any] = []

    @property
    def streams(self) -> Any:
        return self

    def addListener(self, _: object) -> None:  # noqa: N802 - Spark's name
        if self.error is not None and self.first:
            raise self.error

    def removeListener(self, _: object) -> None:  # noqa: N802
        if self.error is not None:
            raise self.error


def session(error: Exception | None = None, *, first: bool = False) -> Any:
    return Session(error, first=first)


@pytest.mark.parametrize("form", ["path", "text", "file:", "file://", "list"])
def test_spools_are_given_as_spool_location_is_or_as_a_single_one(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    HandSpool(folder).open()
    given: Any = {"path": folder, "text": str(folder), "list": [folder]}.get(form, f"{form}{folder}")
    with watch(session(), spools=given) as observer:
        assert observer._spools is not None
        assert len(observer._spools.look()) == 1


@pytest.mark.parametrize("location", ["", "http://host/spool", "s3://", "spool"])
def test_a_place_where_no_spool_can_be_is_reported_at_once(location: str) -> None:
    with pytest.raises(OptionError, match="OBSERVE_SPOOLS"):
        watch(session(), spools=[location])


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


def test_a_full_disk_under_the_lines_leaves_the_rest_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(0)
    with Observer(file="/dev/full", exporter=exporter) as observer:
        for number in range(3):
            observer._listener._put(("progress", progress(kafka(10, 15), batch=number)))
        observer._listener._put(("started", {"query": "other", "run": "o", "name": ""}))
        while not observer._events.empty() or "o" not in observer._running:
            observer._thread.join(0.01)
        assert scraped(exporter, "orders")["connectors_rows_total"] == 30
        observer._listener._put(("terminated", {"query": "q", "run": "r", "exception": None}))
    assert "q" not in observer.latest
    assert caplog.text.count("[OBSERVE_FILE]") == 1
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


def labelled(exporter: Exporter) -> dict[tuple[str, str, str], float]:
    """The samples by query, name and partition."""
    request = urllib.request.Request(exporter.url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request) as answer:
        assert "openmetrics-text" in answer.headers["Content-Type"]
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    keys = [(each.labels["query"], each.name, each.labels.get("partition", "")) for each in samples]
    assert len(set(keys)) == len(keys), "Prometheus refuses a page that has a sample twice"
    return {key: each.value for key, each in zip(keys, samples, strict=True)}


def scrape(exporter: Exporter, query: str = "orders") -> dict[tuple[str, str], float]:
    return {(name, part): value for (of_query, name, part), value in labelled(exporter).items() if of_query == query}


def scraped(exporter: Exporter, query: str) -> dict[str, float]:
    return {name: value for (name, _), value in scrape(exporter, query).items()}


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
