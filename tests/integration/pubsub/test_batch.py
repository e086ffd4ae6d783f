"""Batch reads: the kept rows of a spool, and a look at the subscription (behaviour 21), by the protocol driver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from connectors.pubsub.datasource import PubSubDataSource
from connectors.spool import stats
from connectors.spool.store.base import Holder
from connectors.testing.pubsub import PubSubServer
from connectors.testing.spark_protocol.driver import (
    BatchRead,
    ReaderFailedError,
    TaskFailedError,
    TaskWorkers,
    descendants,
)
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig


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


# -- peek ---------------------------------------------------------------------------------------------------------


def peek(rig: PubSubRig, **options: str) -> BatchRead:
    return batch(rig, batchMode="peek", startTimeout="60s", **options)


def test_21_a_peek_shows_what_would_be_delivered_and_hands_all_of_it_back(rig: PubSubRig) -> None:
    ids = rig.publish(40, attributes={"kind": "peeked"})
    with peek(rig, peekMaxRows="40") as read:
        first = rows_of(read)
        assert rows_of(read) == first
        rig.server.wait_until(lambda: rig.server.outstanding(SUBSCRIPTION) == 0)
    assert rig.server.counters()["expire"] == 0
    assert [row["messageId"] for row in first] == ids
    assert [row["offset"] for row in first] == list(range(40))
    assert [dict(row["attributes"]) for row in first] == [{"kind": "peeked"}] * 40
    assert rig.acked() == set()
    assert rig.server.backlog(SUBSCRIPTION) == 40
    assert not rig.spool.exists()
    with rig.query() as query:
        rig.run_until_all(query)
    rig.assert_each_once()


def test_21_a_peek_ends_at_its_time_and_gives_no_more_rows_than_asked_for(rig: PubSubRig) -> None:
    assert rows_of_peek(rig, peekTime="1s") == []
    rig.publish(50)
    assert len(rows_of_peek(rig, peekMaxRows="7")) == 7
    rig.server.ignore_flow_control()
    assert len(rows_of_peek(rig, peekMaxRows="7")) == 7
    assert len(rows_of_peek(rig, peekTime="6s")) == 50
    rig.server.wait_until(lambda: rig.server.outstanding(SUBSCRIPTION) == 0)
    assert rig.server.counters()["expire"] == 0
    assert rig.acked() == set()


def test_21_a_peek_shows_what_a_subscription_holds_whose_topic_was_deleted(rig: PubSubRig) -> None:
    rig.publish(20)
    rig.delete_topic()
    # Longer than the time after which a stream's fetcher says that the subscription is empty.
    assert len(rows_of_peek(rig, peekTime="13s")) == 20


def rows_of_peek(rig: PubSubRig, **options: str) -> list[dict[str, Any]]:
    with peek(rig, **options) as read:
        return rows_of(read)


def test_21_leases_of_a_peek_are_kept_until_its_end(rig: PubSubRig) -> None:
    """Longer than the deadline of ten seconds: nothing expires, so nothing comes twice."""
    rig.publish(20)
    assert len(rows_of_peek(rig, peekTime="12s")) == 20
    rig.server.wait_until(lambda: rig.server.outstanding(SUBSCRIPTION) == 0)
    counters = rig.server.counters()
    assert (counters["expire"], counters["deliver"]) == (0, 20)


def test_21_a_peek_without_a_spool_location_keeps_its_folder_in_the_temporary_one(
    rig: PubSubRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    rig.publish(5)
    options = rig.options(batchMode="peek", peekMaxRows="5")
    del options["spoolLocation"]
    with BatchRead(PubSubDataSource, options, workers=1) as read:
        assert len(rows_of(read)) == 5
        (folder,) = (path for path in (tmp_path / "temporary").rglob("*.peek-*"))
        assert folder.stat().st_mode & 0o777 == 0o700


ENDED = replace(Holder.this_process(), jvm=999_999_999, jvm_start=1)
ELSEWHERE = replace(ENDED, machine="the boot of another machine")


def left_by_a_peek(folder: Path, name: str, holder: Holder | None) -> Path:
    """What a peek leaves; without a holder it has only begun."""
    left = folder / name
    left.mkdir()
    (left / "rows").touch()
    if holder is not None:
        (left / "holder").write_text(json.dumps(asdict(holder)))
    return left


def test_21_a_peek_removes_what_those_of_drivers_that_are_gone_left(rig: PubSubRig) -> None:
    gone = left_by_a_peek(rig.folder, "spool.peek-999999999-0", ENDED)
    others = [
        left_by_a_peek(rig.folder, "spool.peek-999999999-1", ELSEWHERE),
        left_by_a_peek(rig.folder, "spool.peek-999999999-2", None),
    ]
    # As one that another peek has removed between being found and being looked at.
    (rig.folder / "spool.peek-999999999-3").symlink_to(rig.folder / "absent")
    rig.publish(1)
    with peek(rig, peekMaxRows="1") as read:
        assert len(rows_of(read)) == 1
        assert not gone.exists()
        assert all((other / "rows").exists() for other in others)
        (mine,) = set(rig.folder.glob("spool.peek-*/spool.json"))
        rows_of_peek(rig, peekMaxRows="1")
        assert mine.exists(), "a driver that lives keeps its folder"


def test_21_the_name_of_a_spool_is_no_pattern(rig: PubSubRig) -> None:
    mine = left_by_a_peek(rig.folder, "spool[s].peek-999999999-0", ENDED)
    other = left_by_a_peek(rig.folder, "spools.peek-999999999-0", ENDED)
    rig.publish(1)
    rows_of_peek(rig, peekMaxRows="1", spoolLocation=str(rig.folder / "spool[s]"))
    assert (mine.exists(), other.exists()) == (False, True)


def test_21_a_peek_of_what_is_not_there_is_a_named_error_and_creates_nothing(rig: PubSubRig) -> None:
    other = "projects/shop/subscriptions/other"
    with pytest.raises(TaskFailedError, match=r"PUBSUB_SUBSCRIPTION_NOT_FOUND.*subscriptions/other"):
        rows_of_peek(rig, subscriptionId=other, topicId=TOPIC)
    assert not list(rig.folder.glob("spool.peek-*"))
    rig.server.fail("StreamingPull", "PERMISSION_DENIED", times=None)
    with pytest.raises(TaskFailedError, match=r"roles/pubsub\.subscriber"):
        rows_of_peek(rig)
    # Neither is anything of it left.
    assert not list(rig.folder.glob("spool.peek-*"))


def test_21_a_peek_beside_a_query_takes_nothing_from_it_for_good(rig: PubSubRig) -> None:
    with rig.query() as query:
        rig.publish(20)
        rig.run_until_all(query)
        rig.server.pause_deliveries()
        rig.publish(20)
        rig.server.resume_deliveries()
        rows_of_peek(rig, peekTime="1s")
        rig.run_until_all(query)
    rig.assert_each_once()


def test_21_no_process_of_a_peek_outlives_it(rig: PubSubRig, workers: TaskWorkers) -> None:
    rig.publish(3)
    with peek(rig, peekMaxRows="3") as read:
        assert not [pid for worker in workers.pids for pid in descendants(worker)]
        assert len(rows_of(read)) == 3


def test_options_of_a_batch_are_refused_in_a_stream_and_the_other_way_round_nothing_is(rig: PubSubRig) -> None:
    for name, value in {"batchMode": "peek", "endingPosition": "latest", "peekTime": "1s", "peekMaxRows": "1"}.items():
        with pytest.raises(ReaderFailedError, match=rf"{name} is for batch reads"):
            rig.query({name: value}).start()
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
