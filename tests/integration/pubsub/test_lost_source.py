"""A source that is lost takes no row along: what is acked is served before the query stops.

A subscription whose topic was deleted holds its messages and delivers them, so those are read first too.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.spark_protocol.driver import FolderSink, ReaderFailedError

CLICKS = "projects/other/subscriptions/clicks"
CLICK_TOPIC = "projects/other/topics/clicks"
SMALL = {"maxRecordsPerTrigger": "10"}


TOPIC_GONE = r"PUBSUB_TOPIC_DELETED.*all of its 60 rows were read"
DRAINED = r"PUBSUB_SUBSCRIPTION_NOT_FOUND.*all of its 60 rows were read"


def test_all_acked_rows_are_served_before_a_running_query_stops_and_the_next_start_says_the_same(
    rig: PubSubRig,
) -> None:
    ids = rig.publish(60)
    with rig.query(SMALL) as query:
        query.run_batch()
        rig.wait_for(lambda: rig.acked() == set(ids))
        rig.delete_subscription()
        with pytest.raises(ReaderFailedError, match=DRAINED):
            query.run_until(lambda _: False)
    rig.assert_each_once()
    with rig.query(SMALL) as query, pytest.raises(ReaderFailedError, match=DRAINED):
        query.run_batch()


@pytest.mark.guarantee
def test_available_now_serves_all_acked_rows_of_a_query_that_was_killed_and_ends_with_the_error(rig: PubSubRig) -> None:
    ids = rig.publish(60)
    with rig.query(SMALL) as query:
        query.run_batch()
        rig.wait_for(lambda: rig.acked() == set(ids))
        query.kill()
        rig.delete_subscription()
    with rig.query(SMALL, trigger="available_now") as query, pytest.raises(ReaderFailedError, match=DRAINED):
        query.run_until(lambda _: False)
    rig.assert_each_once()


def test_of_two_subscriptions_the_one_that_is_left_goes_on_with_a_new_spool_without_loss(rig: PubSubRig) -> None:
    rig.server.create_subscription(CLICKS, CLICK_TOPIC)
    expected = [*rig.publish(30), *rig.server.publish(CLICK_TOPIC, [b"click"] * 30)]
    with rig.query({**SMALL, "subscriptionId": f"{SUBSCRIPTION},{CLICKS}"}) as query:
        query.run_batch()
        rig.wait_for(rig.delivered(60))
        rig.delete_subscription()
        expected += rig.server.publish(CLICK_TOPIC, [b"click"] * 30)
        with pytest.raises(
            ReaderFailedError, match=rf"NOT_FOUND.*drained.*{SUBSCRIPTION}.*the other sources continues"
        ):
            query.run_until(lambda _: False)
    expected += rig.server.publish(CLICK_TOPIC, [b"click"] * 30)
    alone = {"subscriptionId": CLICKS, "spoolLocation": str(rig.folder / "new")}
    sink = FolderSink(rig.folder / "new-sink")
    with rig.query(alone, checkpoint=rig.folder / "new-checkpoint", sink=sink) as query:
        query.run_until(lambda _: rig.sink.rows() + sink.rows() >= len(expected))
    assert sorted(rig.sink.values("messageId") + sink.values("messageId")) == sorted(expected)


def test_what_a_subscription_holds_when_its_topic_is_deleted_is_read_before_a_running_query_stops(
    rig: PubSubRig,
) -> None:
    # So small a spool that most of the messages are still with the service when the topic goes.
    with rig.query({"maxSpoolBytes": "20000", "maxOutstandingBytes": "5000"}) as query:
        rig.publish(5000, size=100)
        query.run_batch()
        rig.delete_topic()
        assert len(rig.acked()) < 5000
        with pytest.raises(ReaderFailedError, match=r"PUBSUB_TOPIC_DELETED.*all of its 5000 rows were read"):
            query.run_until(lambda _: False, timeout=60.0)
    rig.assert_each_once()


def test_a_query_that_starts_when_the_topic_is_deleted_reads_what_the_subscription_holds_first(rig: PubSubRig) -> None:
    rig.publish(60)
    rig.delete_topic()
    with rig.query({**SMALL, "topicId": TOPIC}) as query, pytest.raises(ReaderFailedError, match=TOPIC_GONE):
        query.run_until(lambda _: False)
    rig.assert_each_once()


@pytest.mark.guarantee
def test_messages_that_a_killed_fetcher_held_come_back_before_the_query_of_a_deleted_topic_stops(
    rig: PubSubRig,
) -> None:
    options = {"maxFetchPeriod": "10m"}
    with rig.query(options) as query:
        query.run_trigger()
        # The first segment goes at once, and the next one after the period.
        first = set(rig.publish(1))
        rig.wait_for(lambda: rig.acked() == first)
        rig.publish(59)
        rig.wait_for(lambda: rig.server.outstanding(SUBSCRIPTION) == 59)
        fetchers = rig.fetchers(query)
        # All of a sudden: a fetcher whose reader has ended spools and acks what it holds.
        for pid in fetchers:
            os.kill(pid, signal.SIGSTOP)
        query.kill()
        for pid in fetchers:
            os.kill(pid, signal.SIGKILL)
    assert fetchers
    assert rig.acked() == first
    rig.delete_topic()
    with rig.query() as query, pytest.raises(ReaderFailedError, match=TOPIC_GONE):
        query.run_until(lambda _: False, timeout=60.0)
    rig.assert_each_once()


def test_available_now_reads_what_a_subscription_without_a_topic_holds_and_ends_well(rig: PubSubRig) -> None:
    rig.publish(60)
    rig.delete_topic()
    for _ in range(2):
        with rig.query({"availableNowQuiet": "4s"}, trigger="available_now") as query:
            query.process_available()
    rig.assert_each_once()
