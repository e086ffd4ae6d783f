"""The behaviours of the Pub/Sub source, by the numbers they have in the docs (explanation/behaviours.md).

Each runs the real source - reader process, fetcher processes, ledger - by the protocol driver against our own server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.spark_protocol.driver import (
    DriverCrashedError,
    ReaderDiedError,
    ReaderFailedError,
    TaskFailedError,
)


def test_01_every_message_is_one_row_with_equal_payload_and_attributes(rig: PubSubRig) -> None:
    sent = {}
    for number in range(40):
        payload, attributes = os.urandom(number + 1), {f"key-{index}": f"välue-{number}" for index in range(number % 4)}
        (message,) = rig.server.publish(TOPIC, [payload], attributes, "")
        sent[message] = (payload, attributes)
        rig.published.append(message)
    with rig.query() as query:
        rig.run_until_all(query)
        query.idle(3)
    rig.assert_each_once()
    rows = rig.sink.table()
    assert rows is not None
    got = {row["messageId"]: (row["payload"], dict(row["attributes"])) for row in rows.to_pylist(maps_as_pydicts=None)}
    assert got == sent
    assert set(rows["subscription"].to_pylist()) == {SUBSCRIPTION}
    assert set(rows["deliveryAttempt"].to_pylist()) == {None}
    assert rows["publishTimestamp"].null_count == 0


def test_02_a_message_delivered_twice_in_one_response_is_one_row(rig: PubSubRig) -> None:
    rig.server.duplicate(1.0, "same_response")
    rig.publish(50)
    with rig.query() as query:
        rig.run_until_all(query)
        rig.wait_for(rig.delivered(100))
        query.idle(3)
    rig.assert_each_once()
    assert rig.stats().duplicates == 50


def test_03_a_message_redelivered_minutes_after_its_ack_to_another_stream_gives_no_row(rig: PubSubRig) -> None:
    ids = rig.publish(50)
    with rig.query() as query:
        rig.run_until_all(query)
        rig.wait_for(lambda: rig.acked() == set(ids))
        rig.server.jump(300)
        rig.server.redeliver(SUBSCRIPTION, to_other_stream=True)
        rig.wait_for(rig.delivered(100))
        query.idle(3)
    rig.assert_each_once()


def test_04_a_message_redelivered_after_a_restart_gives_no_row(rig: PubSubRig) -> None:
    ids = rig.publish(50)
    with rig.query() as query:
        rig.run_until_all(query)
        rig.wait_for(lambda: rig.acked() == set(ids))
        query.kill()
        rig.server.redeliver(SUBSCRIPTION)
        query.restart()
        query.idle(1)
        rig.wait_for(rig.delivered(100))
        query.idle(3)
    rig.assert_each_once()


@pytest.mark.guarantee
@pytest.mark.parametrize("point", ["fetcher/fetch.after_publish_before_ack", "fetcher/fetch.after_ack"])
def test_05_a_fetcher_killed_before_or_after_its_ack_of_a_segment_not_yet_admitted(rig: PubSubRig, point: str) -> None:
    rig.publish(200)
    with rig.query(failpoints=f"{point}=kill,reader/ledger.before_admit=kill") as query:
        with pytest.raises(ReaderDiedError):
            rig.run_until_all(query)
        rig.server.jump(60)
        query.restart(reader_environment={"CONNECTORS_FAILPOINTS": ""})
        rig.run_until_all(query)
        query.idle(3)
    rig.assert_each_once()


@pytest.mark.guarantee
def test_06_a_kill_after_admission_and_before_the_ack_gives_each_message_once(rig: PubSubRig, tmp_path: Path) -> None:
    rig.publish(200)
    flag = tmp_path / "paused"
    with rig.query(failpoints=f"fetcher/fetch.after_publish_before_ack=pause:{flag}") as query:
        rig.run_until_all(query)
        assert rig.acked() == set()
        for pid in rig.fetchers(query):
            os.kill(pid, 9)
        query.kill()
        rig.server.jump(60)
        query.restart(reader_environment={"CONNECTORS_FAILPOINTS": ""})
        query.idle(1)
        rig.wait_for(lambda: len(rig.acked()) == 200)
        rig.wait_for(rig.delivered(400))
        query.idle(3)
    rig.assert_each_once()


@pytest.mark.guarantee
@pytest.mark.parametrize("step", ["offsets_logged", "tasks_done", "sink_written"])
def test_07_a_batch_killed_before_sparks_commit_is_replayed_bit_for_bit(rig: PubSubRig, step: str) -> None:
    rig.publish(500)
    options = {"maxRecordsPerTrigger": "130", "partitionBytes": "1000", "maxPartitions": "3"}
    with rig.query(options) as query:
        query.run_batch()
        query.crash_at(step)
        with pytest.raises(DriverCrashedError):
            rig.run_until_all(query)
        rig.publish(100)
        query.restart()
        replayed = query.run_batch()
        assert replayed.replayed
        assert len(replayed.tables) == 3
        rig.run_until_all(query)
    rig.assert_each_once()


def test_08_a_partition_read_again_gives_the_same_rows(rig: PubSubRig) -> None:
    rig.server.duplicate(0.3, "same_response")
    rig.publish(300)
    with rig.query({"partitionBytes": "1000"}, task_attempts=3) as query:
        rig.run_until_all(query)
    rig.assert_each_once()


@pytest.mark.parametrize("point", ["store.before_sync", "store.before_link", "store.before_folder_sync"])
def test_09_nothing_is_acked_before_its_segment_is_durable(rig: PubSubRig, tmp_path: Path, point: str) -> None:
    flag = tmp_path / "paused"
    rig.publish(100)
    with rig.query(failpoints=f"fetcher/{point}=pause:{flag}") as query:
        query.run_trigger()
        rig.wait_for(flag.exists)
        time.sleep(0.3)  # no event shows that nothing is acked: the fetcher stands still
        assert rig.acked() == set()
        while flag.exists() or rig.sink.rows() < 100:
            flag.unlink(missing_ok=True)
            query.run_trigger()
        rig.wait_for(lambda: len(rig.acked()) == 100 or flag.unlink(missing_ok=True))
    rig.assert_each_once()


def test_09_a_durable_segment_of_a_dead_fetcher_is_admitted(rig: PubSubRig) -> None:
    rig.publish(100)
    with rig.query(failpoints="reader/ledger.before_admit=kill") as query:
        with pytest.raises(ReaderDiedError):
            rig.run_until_all(query)
        rig.wait_for(lambda: len(rig.acked()) == 100)
        query.restart(reader_environment={"CONNECTORS_FAILPOINTS": ""})
        rig.run_until_all(query)
    rig.assert_each_once()


def test_10_acks_that_fail_five_times_are_retried(rig: PubSubRig) -> None:
    rig.server.fail("Acknowledge", "UNAVAILABLE", times=5)
    rig.publish(100)
    with rig.query() as query:
        rig.run_until_all(query)
        rig.wait_for(lambda: len(rig.acked()) == 100)
        query.idle(3)
    rig.assert_each_once()


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": "37"}, {"maxBytesPerTrigger": "740"}])
def test_19_limits_cut_inside_a_segment_and_the_next_batch_goes_on(rig: PubSubRig, limit: dict[str, str]) -> None:
    rig.publish(200)
    with rig.query({**limit, "maxFetchPeriod": "300ms"}) as query:
        batches = rig.run_until_all(query)
    rig.assert_each_once()
    rows = [batch.rows for batch in batches if batch.rows]
    assert max(rows) == 37
    assert rows.count(37) >= 4


def available_now(**options: str) -> dict[str, str]:
    return {"availableNowQuiet": "5s", "availableNowMaxWait": "60s", "maxRecordsPerTrigger": "100", **options}


def test_20_available_now_delivers_what_was_published_before_its_start_and_ends(rig: PubSubRig) -> None:
    rig.publish(350)
    with rig.query(available_now(), trigger="available_now") as query:
        batches = query.process_available()
        assert not query.is_running
    rig.assert_each_once()
    assert max(batch.rows for batch in batches) == 100


def test_20_available_now_ends_on_an_empty_subscription(rig: PubSubRig) -> None:
    with rig.query(available_now(), trigger="available_now") as query:
        query.process_available()
        assert not query.is_running
    assert rig.sink.rows() == 0


def test_20_available_now_ends_under_a_running_producer(rig: PubSubRig) -> None:
    before = rig.publish(200)
    ending = threading.Event()

    def produce() -> None:
        while not ending.wait(0.05):
            rig.publish(5)

    producer = threading.Thread(target=produce)
    with rig.query(available_now(maxRecordsPerTrigger="10000"), trigger="available_now") as query:
        producer.start()
        try:
            query.process_available()
        finally:
            ending.set()
            producer.join()
        assert not query.is_running
    found = rig.sink.values("messageId")
    assert set(before) <= set(found)
    assert len(found) == len(set(found))


def test_20_available_now_delivers_what_is_redelivered_to_it_late(rig: PubSubRig) -> None:
    rig.publish(50)
    rig.server.pause_deliveries()
    resume = threading.Timer(2.5, rig.server.resume_deliveries)
    resume.start()
    try:
        with rig.query(available_now(availableNowQuiet="8s"), trigger="available_now") as query:
            query.process_available()
    finally:
        resume.join()
    rig.assert_each_once()


def test_20_available_now_waits_for_what_a_fetcher_still_holds(rig: PubSubRig) -> None:
    rig.publish(50)
    with rig.query(
        available_now(), trigger="available_now", failpoints="fetcher/fetch.before_publish=sleep:8"
    ) as query:
        query.process_available()
        assert not query.is_running
    rig.assert_each_once()


def test_20_once_takes_everything_that_is_there_in_one_batch(rig: PubSubRig) -> None:
    rig.publish(350)
    with rig.query(available_now(), trigger="once") as query:
        batches = query.process_available()
    rig.assert_each_once()
    assert [batch.rows for batch in batches] == [350]


def test_22_a_backlog_older_than_the_ack_deadline_is_not_lost_while_the_query_is_stopped(rig: PubSubRig) -> None:
    rig.publish(100)
    with rig.query() as query:
        rig.run_until_all(query)
        query.stop()
        rig.publish(100)
        rig.server.jump(120)
        query.restart()
        rig.run_until_all(query)
    rig.assert_each_once()


NEW = "projects/shop/subscriptions/new"


def test_23_an_absent_subscription_is_created_when_the_topic_is_given_and_the_spool_is_new(rig: PubSubRig) -> None:
    with rig.query({"subscriptionId": NEW, "topicId": TOPIC}) as query:
        query.run_batch()
        rig.publish(20)
        rig.run_until_all(query)
    rig.assert_each_once()


def test_23_an_absent_subscription_without_a_topic_stops_with_the_command_that_creates_it(rig: PubSubRig) -> None:
    with (
        rig.query({"subscriptionId": NEW}) as query,
        pytest.raises(ReaderFailedError, match=r"PUBSUB_SUBSCRIPTION_NOT_FOUND.*gcloud pubsub subscriptions create"),
    ):
        query.run_batch()


def test_23_a_vanished_subscription_stops_the_query_unless_data_loss_is_accepted(rig: PubSubRig) -> None:
    rig.publish(20)
    with rig.query({"topicId": TOPIC}) as query:
        rig.run_until_all(query)
        query.stop()
        rig.delete_subscription()
        query.restart()
        with pytest.raises(ReaderFailedError, match="PUBSUB_SUBSCRIPTION_NOT_FOUND"):
            query.run_until(lambda _: False, 60)
    with rig.query({"topicId": TOPIC, "failOnDataLoss": "false"}) as query:
        rig.wait_for(lambda: len(rig.server.streams(SUBSCRIPTION)) > 0 if query.run_trigger() is None else False)
        rig.publish(20)
        rig.run_until_all(query)
    rig.assert_each_once()


def test_24_deleting_the_subscription_on_stop_is_refused_with_the_command_that_does_it(rig: PubSubRig) -> None:
    with pytest.raises(TaskFailedError, match=r"connectors spool delete-subscriptions"):
        rig.query({"deleteSubscriptionOnStreamStop": "true"}).start()


def test_25_a_deleted_topic_stops_the_query_with_what_to_do(rig: PubSubRig) -> None:
    rig.delete_topic()
    with rig.query() as query, pytest.raises(ReaderFailedError, match=r"PUBSUB_TOPIC_DELETED.*subscriptions/orders"):
        query.run_until(lambda _: False)


def test_25_a_subscription_detached_under_a_running_query_stops_it(rig: PubSubRig) -> None:
    rig.publish(10)
    with rig.query() as query:
        rig.run_until_all(query)
        rig.detach_subscription()
        with pytest.raises(ReaderFailedError, match=r"PUBSUB_SUBSCRIPTION_DETACHED.*subscriptions/orders"):
            query.run_until(lambda _: False, 60)


def test_25_permission_denied_names_the_role_and_the_resource(rig: PubSubRig) -> None:
    rig.server.fail("StreamingPull", "PERMISSION_DENIED", times=None)
    with (
        rig.query() as query,
        pytest.raises(ReaderFailedError, match=r"roles/pubsub\.subscriber.*subscriptions/orders|orders.*roles/pubsub"),
    ):
        query.run_until(lambda _: False, 60)


def test_27_a_second_query_on_the_spool_is_refused_and_changes_nothing(rig: PubSubRig) -> None:
    rig.publish(50)
    with rig.query() as query:
        rig.run_until_all(query)
        before = settled_files(rig)
        with (
            rig.query(checkpoint=rig.folder / "other", sink=None) as second,
            pytest.raises(
                ReaderFailedError,
                match=r"SPOOL_IN_USE.*its own source and spoolLocation.*one query with foreachBatch.*a stream "
                r"with itself",
            ),
        ):
            second.run_batch()
        assert files_of(rig.spool) == before
        rig.publish(50)
        rig.run_until_all(query)
    rig.assert_each_once()


def test_27_a_paused_writer_that_was_taken_over_serves_and_writes_nothing_more(rig: PubSubRig) -> None:
    rig.publish(50)
    with rig.query(checkpoint=rig.folder / "zombie", sink=None) as zombie:
        zombie.run_until(lambda batches: sum(batch.rows for batch in batches) == 50)
        os.kill(zombie.reader.pid, signal.SIGSTOP)
        # Without its file the lock keeps nobody away, as on a file system that forgets locks: only epochs are left.
        (rig.spool / "lock").unlink()
        try:
            with rig.query({"startingPosition": "earliest"}) as query:
                rig.publish(50)
                rig.run_until_all(query)
                records = files_of(rig.spool / "ledger")
                os.kill(zombie.reader.pid, signal.SIGCONT)
                # What its fetchers bring meanwhile is durable and acked, so the new writer admits it.
                rig.publish(50)
                with pytest.raises(ReaderFailedError, match="SPOOL_FENCED"):
                    zombie.run_until(lambda _: False)
                rig.run_until_all(query)
                assert records <= files_of(rig.spool / "ledger")
        finally:
            if zombie.is_running:
                os.kill(zombie.reader.pid, signal.SIGCONT)
    rig.assert_each_once()


def settled_files(rig: PubSubRig) -> set[tuple[str, bytes]]:
    """Every file of a spool, its lock too, when the running query has nothing more to write."""
    rig.wait_for(lambda: rig.server.backlog(SUBSCRIPTION) == 0)
    before, after = set(), files_of(rig.spool)
    while before != after:
        time.sleep(0.3)
        before, after = after, files_of(rig.spool)
    return after


def files_of(folder: Path) -> set[tuple[str, bytes]]:
    found = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # freed meanwhile
            if path.is_file():
                found.add((str(path), path.read_bytes()))
    return found


@pytest.mark.guarantee
def test_28_streams_that_the_server_closes_again_and_again_lose_and_double_nothing(rig: PubSubRig) -> None:
    rig.server.close_streams_every(0.3)
    with rig.query() as query:
        for _ in range(20):
            rig.publish(50)
            rig.run_until_all(query)
        query.idle(3)
    rig.assert_each_once()


def test_an_outage_of_the_service_is_in_the_log_and_so_is_its_end(rig: PubSubRig) -> None:
    with rig.query() as query:
        rig.publish(10)
        rig.run_until_all(query)
        for method in ("StreamingPull", "ModifyAckDeadline", "Acknowledge", "GetSubscription"):
            rig.server.fail(method, times=None)
        rig.server.close_streams()
        rig.wait_for(lambda: "[SPOOL_FETCHING_INTERRUPTED] 1 of 1" in "\n".join(query.reader.log), timeout=60.0)
        assert "PUBSUB_UNAVAILABLE" in "\n".join(query.reader.log)
        rig.server.clear_faults()
        rig.publish(10)
        rig.run_until_all(query)
        rig.wait_for(lambda: "[SPOOL_FETCHING_RESUMED]" in "\n".join(query.reader.log), timeout=60.0)
    rig.assert_each_once()


def test_a_new_checkpoint_begins_after_what_was_committed(rig: PubSubRig) -> None:
    rig.publish(30)
    with rig.query() as query:
        rig.run_until_all(query)
        rig.publish(30)
        rig.run_until_all(query)
        rig.publish(30)
        rig.run_until_all(query)
        committed = rig.stats().committed
    assert committed >= 30
    with rig.query(checkpoint=rig.folder / "new", sink=None) as query:
        batch = query.run_batch()
    assert batch.values("messageId") == rig.published[committed:]


@pytest.mark.parametrize("limit", [{}, {"maxRecordsPerTrigger": "400"}])
def test_a_backlog_of_ten_times_the_spools_cap_drains(rig: PubSubRig, limit: dict[str, str]) -> None:
    # Each of two streams may bring one response of 1,000 messages more than the cap, after each of two starts.
    rig.publish(8000, size=100)
    options = {"maxSpoolBytes": "20000", "maxOutstandingBytes": "5000", **limit}
    with rig.query(options) as query:
        query.run_batch()
        query.kill()
        query.restart()
        rig.run_until_all(query, timeout=60)
    rig.assert_each_once()


def test_a_segment_larger_than_the_spools_cap_passes(rig: PubSubRig) -> None:
    for _ in range(5):
        rig.publish(1, size=60_000)
    with rig.query({"maxSpoolBytes": "10000", "maxBytesPerTrigger": "1000"}) as query:
        rig.run_until_all(query)
    rig.assert_each_once()


def test_25_a_refused_subscription_that_cannot_be_read_stops_the_query_and_keeps_its_spool(rig: PubSubRig) -> None:
    rig.server.fail("GetSubscription", "PERMISSION_DENIED", times=None)
    text = "This method is not supported for this subscription type."
    rig.server.fail("StreamingPull", "FAILED_PRECONDITION", times=None, message=text)
    with rig.query() as query, pytest.raises(ReaderFailedError, match=r"PUBSUB_SUBSCRIPTION_NOT_PULLABLE.*describe"):
        query.run_until(lambda _: False, 60)
