"""Lag from progress reports: pure functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.kafka.lag import source_lag
from connectors.observe.lag import (
    LagHistory,
    PartitionLag,
    SpoolMeasurement,
    measure,
)
from connectors.observe.prometheus import Exporter
from connectors.observe.spool_probe import SpoolWatches
from connectors.observe.watch import Observer
from tests.support.observed import Spool, kafka, of, progress, scrape, spooled

SECONDS = 1000


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
