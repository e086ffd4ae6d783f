"""``dedupAttribute`` and the limit of the id index, by the protocol driver on our own server.

The numbers are those of docs/explanation/behaviours.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.spark_protocol.driver import StreamingQuery

BY_UID = {"dedupAttribute": "uid"}
WORKERS = 1


def publish(rig: PubSubRig, payload: str, attributes: Mapping[str, str] | None = None) -> str:
    (message,) = rig.server.publish(TOPIC, [payload.encode()], attributes)
    return message


def payloads(rig: PubSubRig) -> list[str]:
    return sorted(payload.decode() for payload in rig.sink.values("payload"))


def run_until_delivered(rig: PubSubRig, query: StreamingQuery, count: int) -> None:
    """Run batches until the spool has had so many deliveries, and nothing is left to read."""
    query.run_until(lambda _: rig.stats().delivered >= count and rig.sink.rows() >= rig.stats().rows, 30.0)
    query.idle(3)


def test_16_messages_with_one_value_of_the_attribute_are_one_row_over_a_restart(rig: PubSubRig) -> None:
    for payload, uid in (("a", "1"), ("a again", "1"), ("b", "2")):
        publish(rig, payload, {"uid": uid, "other": "same"})
    with rig.query(BY_UID) as query:
        run_until_delivered(rig, query, 3)
        query.stop()
        publish(rig, "b again", {"uid": "2"})
        publish(rig, "c", {"uid": "3"})
        query.restart()
        run_until_delivered(rig, query, 5)
    assert payloads(rig) == ["a", "b", "c"]
    assert rig.stats().duplicates == 2


def test_16_messages_with_one_value_further_apart_than_the_horizon_are_two_rows(rig: PubSubRig) -> None:
    with rig.query({**BY_UID, "dedupHorizon": "10m"}) as query:
        publish(rig, "first", {"uid": "1"})
        run_until_delivered(rig, query, 1)
        rig.server.jump(9 * 60)
        publish(rig, "within", {"uid": "1"})
        run_until_delivered(rig, query, 2)
        rig.server.jump(20 * 60)
        publish(rig, "outside", {"uid": "1"})
        run_until_delivered(rig, query, 3)
    assert payloads(rig) == ["first", "outside"]


def test_17_a_message_without_the_attribute_counts_by_its_id_and_is_counted(rig: PubSubRig) -> None:
    publish(rig, "a", {"uid": "1"})
    publish(rig, "b", {"uid": ""})
    publish(rig, "b", {"other": "1"})
    publish(rig, "b")
    with rig.query(BY_UID) as query:
        run_until_delivered(rig, query, 4)
        rig.wait_for(lambda: len(rig.acked()) == 4)
        rig.server.redeliver(SUBSCRIPTION)
        run_until_delivered(rig, query, 8)
    assert payloads(rig) == ["a", "b", "b", "b"]
    assert rig.stats().counters["dedup_attribute_missing"] == 6
    assert rig.stats().duplicates == 4


@pytest.mark.parametrize(("before", "after"), [({}, BY_UID), (BY_UID, {}), (BY_UID, {"dedupAttribute": "other"})])
def test_a_redelivered_message_gives_no_row_when_the_attribute_changed_in_between(
    rig: PubSubRig, before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    publish(rig, "a", {"uid": "1", "other": "2"})
    with rig.query(before) as query:
        run_until_delivered(rig, query, 1)
        rig.wait_for(lambda: len(rig.acked()) == 1)
    rig.server.redeliver(SUBSCRIPTION)
    with rig.query(after) as query:
        run_until_delivered(rig, query, 2)
    assert payloads(rig) == ["a"]
