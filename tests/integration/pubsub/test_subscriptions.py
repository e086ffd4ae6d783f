"""Several subscriptions in one query: one spool, fetchers of their own, ids of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import OptionError
from connectors.pubsub.options.source import parse_read_options
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.spark_protocol.driver import ReaderFailedError, TaskWorkers

REFUNDS = "projects/shop/subscriptions/refunds"
REFUND_TOPIC = "projects/shop/topics/refunds"
AUDIT = "projects/audit/subscriptions/all"
ALL = {"subscriptionId": f"{SUBSCRIPTION}, {REFUNDS},{AUDIT}"}


@pytest.fixture
def rig(tmp_path: Path, workers: TaskWorkers) -> Iterator[PubSubRig]:
    with PubSubServer(seed=4) as server:
        made = PubSubRig(server, server.endpoint, tmp_path, workers, ordering=True)
        server.create_subscription(REFUNDS, REFUND_TOPIC, ordering=True)
        # It has the messages of another one too, under the same ids.
        server.create_subscription(AUDIT, TOPIC)
        yield made


def publish(rig: PubSubRig, count: int) -> Counter[tuple[str, str]]:
    """Publish to both topics; each message as (subscription, id), for each subscription that has it."""
    orders, refunds = ([], [])
    for number in range(count):
        orders += rig.server.publish(TOPIC, [str(number).encode()], None, f"key-{number % 2}")
        refunds += rig.server.publish(REFUND_TOPIC, [str(number).encode()], None, f"key-{number % 2}")
    pairs = [(SUBSCRIPTION, each) for each in orders] + [(AUDIT, each) for each in orders]
    return Counter(pairs + [(REFUNDS, each) for each in refunds])


def found(rig: PubSubRig) -> Counter[tuple[str, str]]:
    return Counter(zip(rig.sink.values("subscription"), rig.sink.values("messageId"), strict=True))


@pytest.mark.guarantee
def test_every_subscription_is_read_once_through_kills_and_in_order(rig: PubSubRig) -> None:
    expected = publish(rig, 30)
    with rig.query(ALL | {"maxOutstandingBytes": "500"}) as query:
        query.run_until(lambda _: rig.sink.rows() >= expected.total())
        assert len(rig.fetchers(query)) == 3
        query.kill()
        expected += publish(rig, 30)
        query.restart()
        query.run_until(lambda _: rig.sink.rows() >= expected.total())
        rig.wait_for(lambda: all(rig.server.backlog(name) == 0 for name in (SUBSCRIPTION, REFUNDS, AUDIT)))
        query.idle(3)
    assert found(rig) == expected
    assert rig.sink.values("offset") == list(range(expected.total()))
    orders: dict[tuple[str, str], list[int]] = {}
    columns = (rig.sink.values(name) for name in ("subscription", "orderingKey", "payload"))
    for subscription, key, payload in zip(*columns, strict=True):
        orders.setdefault((subscription, key), []).append(int(payload))
    for subscription in (SUBSCRIPTION, REFUNDS):
        for key in range(2):
            assert orders[subscription, f"key-{key}"] == [*range(key, 30, 2)] * 2


def test_a_redelivery_is_dropped_for_its_own_subscription(rig: PubSubRig) -> None:
    expected = publish(rig, 20)
    with rig.query(ALL) as query:
        query.run_until(lambda _: rig.sink.rows() >= expected.total())
        rig.wait_for(lambda: rig.server.backlog(AUDIT) == 0)
        rig.server.redeliver(AUDIT)
        rig.wait_for(rig.delivered(expected.total() + 20))
        query.idle(3)
    assert found(rig) == expected


def test_the_order_of_their_names_does_not_matter_but_which_they_are_does(rig: PubSubRig) -> None:
    expected = publish(rig, 5)
    with rig.query(ALL) as query:
        query.run_until(lambda _: rig.sink.rows() >= expected.total())
    with rig.query({"subscriptionId": f"{AUDIT},{SUBSCRIPTION},{REFUNDS}"}) as query:
        expected += publish(rig, 5)
        query.run_until(lambda _: rig.sink.rows() >= expected.total())
    with (
        rig.query({"subscriptionId": f"{AUDIT},{SUBSCRIPTION}"}) as query,
        pytest.raises(ReaderFailedError, match="SPOOL_OTHER_SOURCE"),
    ):
        query.run_batch()
    assert found(rig) == expected


def test_one_that_is_absent_stops_the_query_and_is_named(rig: PubSubRig) -> None:
    with (
        rig.query({"subscriptionId": f"{SUBSCRIPTION},projects/shop/subscriptions/absent"}) as query,
        pytest.raises(ReaderFailedError, match=r"PUBSUB_SUBSCRIPTION_NOT_FOUND.*subscriptions/absent"),
    ):
        query.run_batch()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"subscriptionId": "a,b"}, "projectId is required"),
        ({"subscriptionId": "a,,b", "projectId": "p"}, "neither an id nor a full path"),
        ({"subscriptionId": "a,projects/p/subscriptions/a", "projectId": "p"}, "twice"),
        ({"subscriptionId": "a,projects/q/subscriptions/b", "projectId": "p"}, "one says p, the other q"),
    ],
)
def test_lists_that_are_not_legal_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        parse_read_options({"spoolLocation": "/tmp/spool", **options}, {})


def test_ids_are_completed_and_sorted() -> None:
    options = parse_read_options({"spoolLocation": "/tmp/spool", "subscriptionId": "b, a,c", "projectId": "p"}, {})
    assert options.subscriptions == tuple(f"projects/p/subscriptions/{name}" for name in "abc")
