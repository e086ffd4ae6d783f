"""Batch reads: the kept rows of a spool, and a look at the subscription (behaviour 21), by the protocol driver."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from connectors.core.processes.spark import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from connectors.pubsub.datasource import PubSubBatchReader, PubSubDataSource
from connectors.spool import stats
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import (
    BatchRead,
    ReaderFailedError,
    TaskFailedError,
    TaskWorkers,
)


@pytest.fixture
def rig(tmp_path: Path, workers: TaskWorkers) -> Iterator[PubSubRig]:
    with PubSubServer() as server:
        yield PubSubRig(server, server.endpoint, tmp_path, workers)


def batch(rig: PubSubRig, **options: str) -> BatchRead:
    return BatchRead(PubSubDataSource, rig.options(**options), workers=rig.workers)


def rows_of(read: BatchRead) -> list[dict[str, Any]]:
    return [row for table in read.collect() for row in table.to_pylist(maps_as_pydicts=None)]


def rows(rig: PubSubRig, **options: str) -> list[dict[str, Any]]:
    with batch(rig, **options) as read:
        return rows_of(read)


def positions(rig: PubSubRig, **options: str) -> list[int]:
    return [row["offset"] for row in rows(rig, **options)]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(rig: PubSubRig, batches: int = 3, of: int = 20) -> None:
    """Fill the spool: so many batches, of which all but the last are committed."""
    with rig.query() as query:
        for _ in range(batches):
            rig.publish(of)
            rig.run_until_all(query)
        query.idle(3)


def test_21_the_kept_rows_of_a_spool_are_those_of_the_stream_and_nothing_is_changed(rig: PubSubRig) -> None:
    fill(rig)
    before = files_of(rig.spool)
    found = rows(rig)
    assert files_of(rig.spool) == before
    streamed = rig.sink.table()
    assert streamed is not None
    assert found == sorted(streamed.to_pylist(maps_as_pydicts=None), key=lambda row: row["offset"])
    assert [row["messageId"] for row in found] == rig.published


def test_21_a_batch_reads_between_positions(rig: PubSubRig) -> None:
    fill(rig)
    committed = rig.stats().committed
    assert committed == 40
    assert positions(rig, startingPosition="committed") == list(range(committed, 60))
    assert positions(rig, endingPosition="committed") == list(range(committed))
    assert positions(rig, startingPosition="7", endingPosition="31", partitionBytes="100") == list(range(7, 31))
    assert positions(rig, startingPosition="60") == []
    assert positions(rig, startingPosition="latest", endingPosition="earliest") == []


def test_21_copies_that_were_dropped_are_no_rows_of_a_batch(rig: PubSubRig) -> None:
    rig.server.duplicate(1.0, "same_response")
    with rig.query() as query:
        rig.publish(50)
        rig.run_until_all(query)
        rig.wait_for(rig.delivered(100))
    assert positions(rig) == list(range(50))


def test_21_partitions_are_cut_as_asked_for(rig: PubSubRig) -> None:
    fill(rig)
    with batch(rig, partitionBytes="400", maxPartitions="5") as read:
        assert [table.num_rows for table in read.collect()] == [20, 20, 20]
    with batch(rig, partitionBytes="40", maxPartitions="5") as read:
        assert [table.num_rows for table in read.collect()] == [12] * 5


def test_21_a_batch_runs_beside_the_query_and_every_action_sees_the_same_rows(rig: PubSubRig) -> None:
    with rig.query() as query:
        rig.publish(30)
        rig.run_until_all(query)
        with batch(rig) as read:
            first = rows_of(read)
            rig.publish(30)
            rig.run_until_all(query)
            assert rows_of(read) == first
        assert [row["messageId"] for row in first] == rig.published[:30]
        assert positions(rig) == list(range(60))
        rig.publish(10)
        rig.run_until_all(query)
    rig.assert_each_once()


def test_21_rows_that_the_query_frees_meanwhile_are_an_error_that_names_the_option(rig: PubSubRig) -> None:
    with rig.query() as query:
        rig.publish(30)
        rig.run_until_all(query)
        with batch(rig) as read:
            for _ in range(25):
                rig.publish(1)
                rig.run_until_all(query)
            rig.wait_for(lambda: rig.stats().oldest > 0 if query.run_trigger() is None else True)
            with pytest.raises(TaskFailedError, match=r"SPOOL_ROWS_FREED.*position 0 on.*spoolRetention"):
                read.collect()
        oldest = rig.stats().oldest
        with pytest.raises(TaskFailedError, match=r"SPOOL_ROWS_FREED.*earliest"):
            positions(rig, startingPosition="0")
        assert positions(rig) == list(range(oldest, 55))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"startingPosition": "61"}, r"SPOOL_OFFSET_ABOVE_HEAD.*startingPosition is 61.*ends at 60"),
        ({"endingPosition": "61"}, r"SPOOL_OFFSET_ABOVE_HEAD.*endingPosition is 61.*ends at 60"),
        ({"startingPosition": "30", "endingPosition": "29"}, r"SPOOL_OFFSETS_BACKWARDS"),
        ({"subscriptionId": "projects/shop/subscriptions/other"}, r"SPOOL_OTHER_SOURCE.*orders.*other"),
        ({"startingPosition": "first"}, r"OPTION_ILLEGAL.*startingPosition.*a position"),
    ],
)
def test_21_a_range_that_cannot_be_read_is_a_named_error(rig: PubSubRig, options: dict[str, str], error: str) -> None:
    fill(rig)
    with pytest.raises(TaskFailedError, match=error):
        rows(rig, **options)


def test_21_no_spool_and_a_damaged_one_are_named_errors(rig: PubSubRig) -> None:
    with pytest.raises(TaskFailedError, match=r"SPOOL_NOT_FOUND.*spoolLocation"):
        rows(rig)
    assert not rig.spool.exists()
    fill(rig)
    segment = next(rig.spool.glob("inbox/*/0.arrow"))
    segment.unlink()
    with pytest.raises(TaskFailedError, match=r"SPOOL_SEGMENT_DAMAGED.*is missing"):
        rows(rig)


def test_21_a_copy_of_a_spool_can_be_read(rig: PubSubRig, tmp_path: Path) -> None:
    fill(rig)
    shutil.copytree(rig.spool, tmp_path / "backup")
    assert positions(rig, spoolLocation=str(tmp_path / "backup")) == list(range(60))


def test_options_of_a_batch_are_refused_in_a_stream_and_the_other_way_round_nothing_is(rig: PubSubRig) -> None:
    with pytest.raises(ReaderFailedError, match="endingPosition is for batch reads"):
        rig.query({"endingPosition": "latest"}).start()
    with pytest.raises(ReaderFailedError, match=r"startingPosition cannot be 5.*committed, earliest or latest"):
        rig.query({"startingPosition": "5"}).start()
    fill(rig, 1)
    assert positions(rig, maxRecordsPerTrigger="3", dedupAttribute="uid") == list(range(20))
    assert stats(str(rig.spool)).rows == 20


# -- what the rows are, in batches and streams ----------------------------------------------------------------------


def test_the_columns_of_databricks_in_a_stream_and_in_batches(rig: PubSubRig) -> None:
    rig.publish(10, attributes={"kind": "test"})
    with rig.query({"schemaMode": "databricks"}) as query:
        batches = query.run_until(lambda _: rig.sink.rows() == 10)
    rows_read = [row for each in batches for table in each.tables for row in table.to_pylist()]
    native = rows(rig)
    assert rows(rig, schemaMode="databricks") == rows_read
    assert [tuple(row) for row in rows_read] == [
        ("messageId", "payload", "attributes", "publishTimestampInMillis")
    ] * 10
    for ours, theirs in zip(native, rows_read, strict=True):
        assert (theirs["messageId"], theirs["payload"]) == (ours["messageId"], ours["payload"])
        assert theirs["attributes"] == '{"kind":"test"}'
        assert theirs["publishTimestampInMillis"] == int(ours["publishTimestamp"].timestamp() * 1000)


def test_compressed_segments_give_the_same_rows_beside_plain_ones(rig: PubSubRig) -> None:
    for compression in ("none", "lz4"):
        with rig.query({"segmentCompression": compression, "spoolRetention": "1h"}) as query:
            rig.publish(2000, size=200)
            rig.run_until_all(query)
    rig.assert_each_once()
    # Two streams bring them, so their order is that of arrival; a batch read has it from the spool, as the stream had.
    assert [row["messageId"] for row in rows(rig)] == rig.sink.values("messageId")
    assert sorted(rig.sink.values("messageId")) == sorted(rig.published)
    sizes = sorted(path.stat().st_size for path in rig.spool.glob("inbox/*/*.arrow"))
    assert sum(sizes) < 2000 * 200 * 1.7


def filtered(rig: PubSubRig, *filters: Filter, **options: str) -> list[dict[str, Any]]:
    """Return what a batch read with filters reads, before Spark applies them."""
    reader = PubSubBatchReader(CaseInsensitiveDict(rig.options(pushDownPredicate="true", **options)))
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark applies them too"
    parts = reader.partitions()
    return [row for part in parts for page in reader.read(part) for row in page.to_pylist(maps_as_pydicts=None)]


def test_filters_on_the_offset_cut_what_a_batch_reads(rig: PubSubRig) -> None:
    fill(rig)
    column = ("offset",)

    def read(*filters: Filter, **options: str) -> list[int]:
        return [row["offset"] for row in filtered(rig, *filters, **options)]

    assert read(GreaterThan(column, 6), LessThanOrEqual(column, 30), partitionBytes="100") == list(range(7, 31))
    assert read(EqualTo(column, 21)) == [21]
    assert read(In(column, (21, 24, None))) == [21, 22, 23, 24]
    assert read(GreaterThanOrEqual(column, 10), startingPosition="40") == list(range(40, 60))
    assert read(LessThan(column, 50), startingPosition="40") == list(range(40, 50))
    assert read(GreaterThan(column, 59)) == read(LessThan(column, 0)) == read(GreaterThan(column, 1 << 40)) == []


def test_filters_on_publish_time_and_subscription_leave_segments_out(rig: PubSubRig) -> None:
    fill(rig)
    rows = filtered(rig)
    times = [row["publishTimestamp"] for row in rows]
    column = ("publishTimestamp",)
    conditions: list[tuple[type[Filter], Callable[[dt.datetime, dt.datetime], bool]]] = [
        (GreaterThanOrEqual, dt.datetime.__ge__),
        (GreaterThan, dt.datetime.__gt__),
        (LessThan, dt.datetime.__lt__),
        (EqualTo, dt.datetime.__eq__),
    ]
    for time in times[::7]:
        for kind, matches in conditions:
            found = filtered(rig, kind(column, time))
            wanted = [row for row in rows if matches(row["publishTimestamp"], time)]
            assert [row for row in found if row in wanted] == wanted
    assert len(filtered(rig, GreaterThanOrEqual(column, times[-1]))) < len(rows)
    assert filtered(rig, GreaterThan(column, times[-1] + dt.timedelta(seconds=1))) == []
    assert filtered(rig, EqualTo(("subscription",), rows[0]["subscription"])) == rows
    assert filtered(rig, EqualTo(("subscription",), "projects/shop/subscriptions/other")) == []
