"""Lag from progress reports, and where it goes: pure functions, a file, and metrics over HTTP."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from connectors.core.errors import ConnectorError, OptionError
from connectors.kafka.lag import source_lag
from connectors.observe.exporter import Exporter
from connectors.observe.listener import Observer, watch
from connectors.observe.measure import LagHistory, Measurement, PartitionLag, SpoolMeasurement, measure, spool_lag
from connectors.observe.spools import SpoolWatch
from tests.spool_writing import SOURCES, HandSpool

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


def test_the_lag_in_time_is_the_age_of_the_first_look_that_saw_an_unread_record() -> None:
    histories: dict[tuple[str, int], LagHistory] = {}
    ages = [
        of(kafka(end, latest), now=now * SECONDS, histories=histories).sources[0].milliseconds
        for now, end, latest in [(0, 10, 10), (1, 10, 12), (3, 10, 20), (4, 12, 20), (5, 20, 20), (9, 20, 21)]
    ]
    assert ages == [0, 0, 2 * SECONDS, 1 * SECONDS, 0, 0]


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
    assert "2 duplicates struck out" in found.line()


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
    exporter.forget("q")
    assert scrape(exporter) == {}
    exporter.close()


def scrape(exporter: Exporter) -> dict[tuple[str, str], float]:
    request = urllib.request.Request(exporter.url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request) as answer:
        assert "openmetrics-text" in answer.headers["Content-Type"]
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, sample.labels.get("partition", "")): sample.value for sample in samples}


def test_a_port_that_is_taken_is_told() -> None:
    exporter = Exporter(0)
    with pytest.raises(ConnectorError, match="OBSERVE_PORT"):
        Exporter(exporter._server.server_port)
    exporter.close()


@pytest.mark.parametrize(("name", "spools"), [("orders", ["s"]), ("projects/p/subscriptions/s", [])])
def test_a_subscription_whose_query_cannot_be_known_is_not_taken_for_deletion(name: str, spools: list[str]) -> None:
    session: Any = None
    with pytest.raises(OptionError, match="OBSERVE_DELETE_SUBSCRIPTIONS"):
        watch(session, spools=spools, deleteSubscriptions=[name])
