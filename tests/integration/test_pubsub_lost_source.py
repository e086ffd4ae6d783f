"""A subscription that is deleted takes no acked row along: the spool is drained before the query stops."""

from __future__ import annotations

import pytest

from connectors.testing.protocol import FolderSink, ReaderFailedError
from tests.pubsub_rig import SUBSCRIPTION, PubSubRig

CLICKS = "projects/other/subscriptions/clicks"
CLICK_TOPIC = "projects/other/topics/clicks"
SMALL = {"maxRecordsPerTrigger": "10"}


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


def test_available_now_serves_all_acked_rows_of_a_query_that_was_killed_and_ends_with_the_error(rig: PubSubRig) -> None:
    ids = rig.publish(60)
    with rig.query(SMALL) as query:
        query.run_batch()
        rig.wait_for(lambda: rig.acked() == set(ids))
        query.kill()
        rig.delete_subscription()
    with rig.query(SMALL, trigger="availableNow") as query, pytest.raises(ReaderFailedError, match=DRAINED):
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
        with pytest.raises(ReaderFailedError, match=rf"NOT_FOUND.*drained.*{SUBSCRIPTION}.*the other sources goes on"):
            query.run_until(lambda _: False)
    expected += rig.server.publish(CLICK_TOPIC, [b"click"] * 30)
    alone = {"subscriptionId": CLICKS, "spoolLocation": str(rig.folder / "new")}
    sink = FolderSink(rig.folder / "new-sink")
    with rig.query(alone, checkpoint=rig.folder / "new-checkpoint", sink=sink) as query:
        query.run_until(lambda _: rig.sink.rows() + sink.rows() >= len(expected))
    assert sorted(rig.sink.values("messageId") + sink.values("messageId")) == sorted(expected)
