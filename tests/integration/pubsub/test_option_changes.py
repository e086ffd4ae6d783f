"""Options that change between restarts: each line of docs/explanation/option-changes.md (the real source, our server).

Every test leaves a batch begun and not finished, changes options, and sees the batch made again bit for bit: the
protocol driver compares rows, order and partitions with the first attempt.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from connectors.core.options.declaration import declared_options
from connectors.pubsub.datasource import PubSubDataSource
from connectors.pubsub.options.source import PubSubReadOptions
from tests.support.fetch_program import FetchProgram
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.spark_protocol.driver import (
    Batch,
    DriverCrashedError,
    ReaderFailedError,
    Source,
    TaskFailedError,
)

PAGE = Path(__file__).parents[3] / "docs/explanation/option-changes.md"
BEFORE = {
    "maxRecordsPerTrigger": "60",
    "partitionBytes": "350",
    "maxPartitions": "4",
    "maxOutstandingBytes": "2000",
    "fetchers": "2",
}

# Lines of which every option may change; the new values of all of them, at once.
ALLOWED: Mapping[str, Mapping[str, str]] = {
    "limits": {"maxRecordsPerTrigger": "35", "maxBytesPerTrigger": "500"},
    "fetching": {
        "fetchers": "1",
        "streams": "3",
        "maxOutstandingBytes": "1mb",
        "maxRecordsPerFetch": "7",
        "maxFetchPeriod": "5ms",
    },
    "spool": {"maxSpoolBytes": "3000", "spoolRetention": "1h"},
    "horizon": {"dedupHorizon": "10m"},
    "reader age": {"maxReaderAge": "1m"},
    "attribute": {"dedupAttribute": "order"},
    "epoch": {"dedupEpoch": "1"},
    "compression": {"segmentCompression": "lz4"},
    "account": {
        "clientEmail": "spark@shop.iam.gserviceaccount.com",
        "clientId": "1",
        "privateKey": "none",  # a server on this machine is reached without
        "privateKeyId": "2",
    },
    "provider": {"credentialProvider": "tests.support.providers:token_dict"},
    "waiting": {
        "retryTimeout": "5m",
        "startTimeout": "1s",
        "availableNow": "true",
        "pushDownPredicate": "true",
        "availableNowQuiet": "1s",
        "availableNowMaxWait": "2s",
    },
    "losses": {"failOnDataLoss": "false"},
    "start": {"startingPosition": "latest"},
}


def lines() -> list[set[str]]:
    """The options of each line of the table."""
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [set(re.findall(r"`(\w+)`", row)) for row in rows]


def begin_and_crash(rig: PubSubRig) -> None:
    """Leave a batch of 60 rows and 4 partitions that was begun and not finished."""
    rig.publish(200)
    with rig.query(BEFORE) as query:
        query.run_batch()
        rig.wait_for(rig.delivered(200))
        query.crash_at("tasks_done")
        with pytest.raises(DriverCrashedError):
            rig.run_until_all(query)


def replay_and_finish(rig: PubSubRig, changes: Mapping[str, str]) -> list[Batch]:
    """Go on with other options until all is read, and see that it was as it should; the batches after the replay."""
    with rig.query({**BEFORE, **changes}) as query:
        replayed = query.run_batch()
        assert replayed.replayed
        assert (replayed.rows, len(replayed.tables)) == (60, 4)
        rig.publish(100)
        batches = rig.run_until_all(query)
    rig.assert_each_once()
    return batches


def test_the_table_has_every_option_once() -> None:
    named = [name for line in lines() for name in sorted(line)]
    assert sorted(named) == sorted(row.name for row in declared_options(PubSubReadOptions).values())


def test_every_line_of_allowed_options_is_tested_as_a_whole() -> None:
    assert all(set(changes) in lines() for changes in ALLOWED.values())


@pytest.mark.parametrize("line", ALLOWED)
def test_an_allowed_change_holds_at_once_and_the_unfinished_batch_is_made_again_as_it_was(
    line: str, rig: PubSubRig
) -> None:
    begin_and_crash(rig)
    batches = replay_and_finish(rig, ALLOWED[line])
    assert max(batch.rows for batch in batches) == (25 if line == "limits" else 60)


def test_a_changed_layout_holds_above_the_rows_that_were_there(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    batches = replay_and_finish(rig, {"partitionBytes": "1g", "maxPartitions": "1"})
    partitions = [len(batch.tables) for batch in batches]
    assert partitions[0] == 4
    assert partitions[-1] == 1
    assert partitions == sorted(partitions, reverse=True)


def test_the_same_subscription_under_another_name_is_allowed_and_another_one_is_refused(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    rig.server.create_subscription("projects/shop/subscriptions/other", TOPIC)
    for options in ({"subscriptionId": "projects/shop/subscriptions/other"}, {"subscriptionId": "other"}):
        project = {} if "/" in options["subscriptionId"] else {"projectId": "shop"}
        query = rig.query({**BEFORE, **options, **project})
        with query, pytest.raises(ReaderFailedError, match="SPOOL_OTHER_SOURCE"):
            query.run_batch()
    replay_and_finish(rig, {"projectId": "shop", "subscriptionId": SUBSCRIPTION.rpartition("/")[2]})


def test_the_topic_of_the_subscription_is_allowed_and_another_one_is_refused(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    query = rig.query({**BEFORE, "topicId": "projects/shop/topics/other"})
    rig.publish(100)  # what the spool has not, no batch can have
    with query, pytest.raises(ReaderFailedError, match="PUBSUB_TOPIC_MISMATCH"):
        rig.run_until_all(query)
    with rig.query({**BEFORE, "topicId": TOPIC}) as query:
        rig.publish(100)
        rig.run_until_all(query)
    rig.assert_each_once()


def test_the_way_to_the_service_may_change(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    port, credentials = rig.endpoint.rpartition(":")[2], rig.folder / "key.json"
    credentials.write_text("{}")  # a server on this machine is reached without
    changes = {"endpoint": f"localhost:{port}", "allowInsecure": "true", "credentialsFile": str(credentials)}
    assert set(changes) in lines()
    replay_and_finish(rig, changes)


def test_another_spool_and_a_moved_one_are_refused(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    shutil.copytree(rig.spool, rig.folder / "copy")
    query = rig.query({**BEFORE, "spoolLocation": str(rig.folder / "copy")})
    with query, pytest.raises(ReaderFailedError, match=r"SPOOL_MOVED.*connectors spool adopt"):
        query.run_batch()
    query = rig.query({**BEFORE, "spoolLocation": str(rig.folder / "empty")})
    with query, pytest.raises(ReaderFailedError, match=r"\[SPOOL_OTHER\]"):
        query.run_batch()
    replay_and_finish(rig, {})


def test_an_ephemeral_spool_is_another_one(rig: PubSubRig, tmp_path: Path) -> None:
    begin_and_crash(rig)
    query = rig.query()
    query.sources[0] = Source(PubSubDataSource, rig.options(**{**BEFORE, "spoolLocation": "ephemeral"}))
    query.reader_environment["TMPDIR"] = str(tmp_path)
    with query, pytest.raises(ReaderFailedError, match=r"\[SPOOL_OTHER\]"):
        query.run_batch()
    replay_and_finish(rig, {})


def test_deletion_of_the_subscription_is_refused(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    with pytest.raises(TaskFailedError, match="deleteSubscriptionOnStreamStop"):
        rig.query({**BEFORE, "deleteSubscriptionOnStreamStop": "true"}).start()
    replay_and_finish(rig, {})


def test_fetching_may_move_out_of_the_query(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    with FetchProgram(rig.folder, rig.options(**BEFORE, fetch="external")):
        replay_and_finish(rig, {"fetch": "external"})


def test_a_seek_leaves_the_batch_that_was_begun_as_it_was(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    with rig.query({**BEFORE, "startingTimestamp": "2026-01-01T00:00:00Z"}) as query:
        replayed = query.run_batch()
    assert (replayed.replayed, replayed.rows, len(replayed.tables)) == (True, 60, 4)


def test_another_schema_mode_gives_the_same_messages_in_the_same_partitions(rig: PubSubRig) -> None:
    begin_and_crash(rig)
    shutil.rmtree(rig.checkpoint / "attempts")  # the driver would compare columns too
    (rig.checkpoint / "attempts").mkdir()
    with rig.query({**BEFORE, "schemaMode": "databricks"}, checkpoint=rig.checkpoint) as query:
        other = query.run_batch()
        assert other.replayed
        query.crash_at("tasks_done")
        with pytest.raises(DriverCrashedError):
            query.run_batch()
    (rig.checkpoint / "commits" / str(other.batch_id)).unlink()
    for log in ("offsets", "attempts"):
        (rig.checkpoint / log / str(other.batch_id + 1)).unlink()
    (rig.checkpoint / "attempts" / str(other.batch_id)).unlink()
    with rig.query(BEFORE) as query:
        native = query.run_batch()
    assert native.replayed
    ids = [[table.column("messageId").to_pylist() for table in batch.tables] for batch in (other, native)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 4


def test_an_option_of_batch_reads_is_refused(rig: PubSubRig) -> None:
    with pytest.raises(ReaderFailedError, match=r"OPTION_ILLEGAL.*endingPosition.*batch reads"):
        rig.query({**BEFORE, "endingPosition": "latest"}).start()
