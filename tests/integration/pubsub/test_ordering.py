"""Behaviours 13, 14 and 15 of the Pub/Sub source, and dead-letter attempts: subscriptions that promise more.

By the protocol driver against our own server, which keeps an order as the service does: with a message that comes
again come all later ones of its key, also those that were acked.
"""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_calls import PubSubCalls
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.spark_protocol.driver import TaskWorkers

KEYS = 5


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    with PubSubServer(seed=15) as running:
        yield running


class OrderedRig(PubSubRig):
    """A rig whose messages have keys; payloads count up within their key."""

    def __init__(self, server: PubSubServer, folder: Path, workers: TaskWorkers) -> None:
        super().__init__(server, server.endpoint, folder, workers, ordering=True)
        self.counts = [0] * KEYS
        self.random = random.Random(15)

    def publish_keyed(self, count: int) -> None:
        for _ in range(count):
            key = self.random.randrange(KEYS)
            payload = str(self.counts[key]).encode()
            self.counts[key] += 1
            self.published += self.server.publish(TOPIC, [payload], None, f"key-{key}")

    def assert_in_order(self) -> None:
        self.assert_each_once()
        found: dict[str, list[int]] = {}
        for key, payload in zip(self.sink.values("orderingKey"), self.sink.values("payload"), strict=True):
            found.setdefault(key, []).append(int(payload))
        assert found == {f"key-{key}": list(range(count)) for key, count in enumerate(self.counts)}


@pytest.fixture
def ordered(server: PubSubServer, tmp_path: Path, workers: TaskWorkers) -> OrderedRig:
    return OrderedRig(server, tmp_path, workers)


SMALL = {
    "maxOutstandingBytes": "500",
    "streams": "3",
    "maxRecordsPerTrigger": "40",
    "maxPartitions": "3",
    "partitionBytes": "1",
}


def none(_: OrderedRig) -> None:
    """Nothing goes wrong."""


def lose_responses(rig: OrderedRig) -> None:
    # What is lost on its way is held by nobody until its deadline, and all of its key waits for that.
    rig.server.set_speed(10)
    rig.server.wait_for_streams(3)
    closed = rig.server.counters()["stream-close"]
    rig.server.lose_responses(1)
    rig.publish_keyed(3)
    rig.server.wait_until(lambda: rig.server.counters()["stream-close"] > closed)


def close_streams(rig: OrderedRig) -> None:
    rig.server.close_streams()


def expire_leases(rig: OrderedRig) -> None:
    rig.server.expire_leases(SUBSCRIPTION)


def lose_acks(rig: OrderedRig) -> None:
    rig.server.lose_acks(fraction=0.3)
    rig.server.jump(61)


def redeliver(rig: OrderedRig) -> None:
    rig.server.redeliver(SUBSCRIPTION, count=20, to_other_stream=True)


@pytest.mark.parametrize(
    "trouble",
    [none, lose_responses, close_streams, expire_leases, lose_acks, redeliver],
    ids=lambda each: each.__name__,
)
def test_15_rows_of_a_key_keep_their_order(ordered: OrderedRig, trouble: Callable[[OrderedRig], None]) -> None:
    ordered.publish_keyed(100)
    with ordered.query(SMALL) as query:
        query.run_batch()
        for _ in range(6):
            trouble(ordered)
            ordered.publish_keyed(50)
            query.run_until(lambda batches: len(batches) >= 1)
        ordered.server.clear_faults()
        ordered.server.jump(61)
        ordered.run_until_all(query)
        query.idle(3)
    ordered.assert_in_order()


@pytest.mark.guarantee
def test_15_the_order_outlives_segments_that_are_given_up(ordered: OrderedRig) -> None:
    full = ",".join(
        f"fetcher/{point}=raise:{errno.ENOSPC}:3" for point in ("fetch.before_publish", "segment.before_append")
    )
    with ordered.query(SMALL, failpoints=full) as query:
        for _ in range(10):
            ordered.publish_keyed(40)
            query.run_until(lambda batches: len(batches) >= 1)
        ordered.run_until_all(query)
        query.idle(3)
    assert ordered.server.counters()["nack"] > 0
    ordered.assert_in_order()


@pytest.mark.guarantee
@pytest.mark.parametrize("point", ["store.before_link", "store.after_publish", "fetch.after_ack"])
def test_15_the_order_outlives_killed_fetchers(ordered: OrderedRig, tmp_path: Path, point: str) -> None:
    killed = tmp_path / "killed"
    with ordered.query(SMALL, failpoints=f"fetcher/{point}=kill_once:{killed}:4") as query:
        for _ in range(8):
            ordered.publish_keyed(40)
            query.run_until(lambda batches: len(batches) >= 1)
            ordered.server.jump(11 if killed.exists() else 0)
        ordered.run_until_all(query)
        query.idle(3)
    assert killed.exists()
    ordered.assert_in_order()


@pytest.mark.guarantee
def test_15_the_order_outlives_restarts(ordered: OrderedRig) -> None:
    ordered.publish_keyed(60)
    with ordered.query(SMALL) as query:
        for number in range(4):
            query.run_until(lambda batches: len(batches) >= 1)
            ordered.publish_keyed(60)
            if number % 2:
                for pid in ordered.fetchers(query):
                    os.kill(pid, signal.SIGKILL)
            query.kill()
            ordered.server.jump(11)
            query.restart()
        ordered.run_until_all(query)
        query.idle(3)
    ordered.assert_in_order()


def test_13_with_exactly_once_delivery_a_stale_ack_id_is_tolerated_and_the_newest_one_acks(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers
) -> None:
    rig = PubSubRig(server, server.endpoint, tmp_path, workers, exactly_once=True)
    flag = tmp_path / "paused"
    rig.publish(200)
    with rig.query(failpoints=f"fetcher/fetch.after_publish_before_ack=pause:{flag}") as query:
        rig.run_until_all(query)
        # The rows are durable and not acked: now their ack ids become stale, and the messages come again.
        rig.wait_for(flag.exists)
        server.expire_leases(SUBSCRIPTION)
        rig.wait_for(lambda: server.counters()["deliver"] >= 400)

        def all_acked() -> bool:
            flag.unlink(missing_ok=True)
            return server.backlog(SUBSCRIPTION) == 0

        rig.wait_for(all_acked)
        rig.wait_for(rig.delivered(400))
        query.idle(3)
    assert server.counters()["ack-refused"] >= 200
    assert sorted(rig.acked()) == sorted(rig.published)
    rig.assert_each_once()


def test_14_with_exactly_once_delivery_acks_that_fail_for_now_are_sent_again(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers
) -> None:
    rig = PubSubRig(server, server.endpoint, tmp_path, workers, exactly_once=True)
    server.refuse_acks("transient", count=350)
    with rig.query() as query:
        rig.publish(200)
        rig.run_until_all(query)
        rig.wait_for(lambda: server.backlog(SUBSCRIPTION) == 0)
        query.idle(3)
    counters = server.counters()
    assert (counters["ack-refused"], counters["ack"]) == (350, 200)
    assert (counters["deliver"], counters["expire"]) == (200, 0)
    rig.assert_each_once()


def test_14_with_exactly_once_delivery_acks_that_fail_for_good_bring_copies_that_give_no_rows(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers
) -> None:
    rig = PubSubRig(server, server.endpoint, tmp_path, workers, exactly_once=True)
    server.refuse_acks("permanent", count=100)
    with rig.query() as query:
        rig.publish(200)
        rig.run_until_all(query)
        rig.wait_for(lambda: server.backlog(SUBSCRIPTION) == 100)
        server.jump(61)
        rig.wait_for(lambda: server.backlog(SUBSCRIPTION) == 0)
        rig.wait_for(rig.delivered(300))
        query.idle(3)
    assert server.counters()["ack-refused"] == 100
    rig.assert_each_once()
    assert rig.stats().duplicates == 100


def test_the_attempts_that_a_dead_letter_policy_counts_are_in_their_column(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers
) -> None:
    rig = PubSubRig(server, server.endpoint, tmp_path, workers, dead_letter_topic="projects/shop/topics/dead")
    rig.publish(10)
    with PubSubCalls(server.endpoint) as calls:
        for _ in range(2):
            calls.modify_deadline(SUBSCRIPTION, calls.pull(SUBSCRIPTION, 10), 0)
    with rig.query() as query:
        rig.run_until_all(query)
        rig.publish(5)
        rig.run_until_all(query)
    rig.assert_each_once()
    assert rig.sink.values("deliveryAttempt") == [3] * 10 + [1] * 5


def test_a_filter_of_the_subscription_needs_nothing_of_the_query(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers
) -> None:
    rig = PubSubRig(server, server.endpoint, tmp_path, workers, filter='attributes.kind = "order"')
    rig.publish(10, attributes={"kind": "order"})
    server.publish(TOPIC, [b"x"] * 10, {"kind": "refund"})
    with rig.query() as query:
        rig.run_until_all(query)
        query.idle(3)
    rig.assert_each_once()
