"""Behaviour 26 of the Pub/Sub source: seeks by option, once for each value, through crashes; and seeks from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import timestamp_pb2

from connectors.spool.ledger.identity import read_identity
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.state import LedgerState
from connectors.spool.store.local import LocalStore
from connectors.spool.stream.waiting import DuplicateWatch
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_calls import PubSubCalls
from tests.support.pubsub_rig import SUBSCRIPTION, PubSubRig
from tests.support.spark_protocol.driver import ReaderDiedError, ReaderFailedError, TaskWorkers

SNAPSHOT = "projects/shop/snapshots/before"


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    with PubSubServer(seed=26) as running:
        yield running


@pytest.fixture
def rig(server: PubSubServer, tmp_path: Path, workers: TaskWorkers) -> PubSubRig:
    return PubSubRig(server, server.endpoint, tmp_path, workers, retain_acked=True)


def seeks(server: PubSubServer) -> int:
    return len({event.monotonic_ns for event in server.events(kinds=["seek"])})


def ledger(rig: PubSubRig) -> LedgerState:
    store = LocalStore(str(rig.spool), "test")
    identity = read_identity(store)
    assert identity is not None
    return read_state(store, identity.spool)


def times(rig: PubSubRig) -> Counter[str]:
    return Counter(rig.sink.values("messageId"))


def run(rig: PubSubRig, rows: int, **options: str) -> str:
    """Start the query, and run it until the sink has so many rows in all; see that no more come; what it has logged."""
    with rig.query(options) as query:
        query.run_until(lambda _: rig.sink.rows() >= rows)
        rig.wait_for(lambda: rig.server.backlog(SUBSCRIPTION) == 0)
        query.idle(3)
        said = "\n".join(query.reader.log)
    assert rig.sink.rows() == rows
    assert rig.sink.values("offset") == list(range(rows))
    return said


def moment(seconds: float) -> str:
    """A time as `startingTimestamp` takes it."""
    return str(int(seconds * 1000))


def read_twenty(rig: PubSubRig) -> str:
    """Publish and read 20 messages; a time between the first ten and the others."""
    rig.publish(10)
    rig.server.jump(5)
    between = moment(rig.server.now())
    rig.server.jump(5)
    rig.publish(10)
    run(rig, 20)
    return between


def test_26_a_seek_to_a_time_reads_again_what_was_published_since_and_once_only(rig: PubSubRig) -> None:
    between = read_twenty(rig)
    run(rig, 30, startingTimestamp=between)
    assert times(rig) == Counter(rig.published) + Counter(rig.published[10:])
    run(rig, 30, startingTimestamp=between)
    assert seeks(rig.server) == 1
    rig.publish(5)
    run(rig, 35)
    run(rig, 35, startingTimestamp=between)
    assert seeks(rig.server) == 1


def test_26_another_value_is_another_seek(rig: PubSubRig) -> None:
    between = read_twenty(rig)
    run(rig, 30, startingTimestamp=between)
    run(rig, 50, startingTimestamp="1970-01-01T01:00:00+01:00")
    run(rig, 60, startingTimestamp=between, dedupEpoch="1")
    assert seeks(rig.server) == 3


def test_26_a_seek_to_a_snapshot_reads_again_what_came_since(rig: PubSubRig) -> None:
    rig.publish(10)
    run(rig, 10)
    with PubSubCalls(rig.server.endpoint) as calls:
        calls.call("Subscriber/CreateSnapshot", name=SNAPSHOT, subscription=SUBSCRIPTION)
        rig.publish(5)
        run(rig, 15)
        run(rig, 20, startingSnapshot="before")
        # Done once: that it is gone does not matter any more.
        calls.call("Subscriber/DeleteSnapshot", snapshot=SNAPSHOT)
    run(rig, 20, startingSnapshot=SNAPSHOT)
    assert times(rig) == Counter(rig.published) + Counter(rig.published[10:])


def test_26_a_snapshot_that_is_not_there_is_named(rig: PubSubRig) -> None:
    with (
        rig.query({"startingSnapshot": "absent"}) as query,
        pytest.raises(ReaderFailedError, match=r"PUBSUB_SNAPSHOT_NOT_FOUND.*projects/shop/snapshots/absent"),
    ):
        query.run_batch()


def test_26_a_seek_from_outside_gives_no_rows_until_the_epoch_is_raised(rig: PubSubRig) -> None:
    read_twenty(rig)
    with PubSubCalls(rig.server.endpoint) as calls:
        calls.call("Subscriber/Seek", subscription=SUBSCRIPTION, time=timestamp_pb2.Timestamp(seconds=1))
    run(rig, 20)
    assert rig.stats().duplicates == 20
    with PubSubCalls(rig.server.endpoint) as calls:
        calls.call("Subscriber/Seek", subscription=SUBSCRIPTION, time=timestamp_pb2.Timestamp(seconds=1))
    run(rig, 40, dedupEpoch="7")
    assert times(rig) == Counter(rig.published * 2)
    # The number is the same, so nothing is forgotten again.
    with PubSubCalls(rig.server.endpoint) as calls:
        calls.call("Subscriber/Seek", subscription=SUBSCRIPTION, time=timestamp_pb2.Timestamp(seconds=1))
    run(rig, 40, dedupEpoch="7")


def test_26_a_seek_from_outside_is_explained_in_the_log(rig: PubSubRig) -> None:
    rig.publish(1500)
    assert "SPOOL_ONLY_COPIES" not in run(rig, 1500)
    with PubSubCalls(rig.server.endpoint) as calls:
        calls.call("Subscriber/Seek", subscription=SUBSCRIPTION, time=timestamp_pb2.Timestamp(seconds=1))
    with rig.query() as query:
        query.run_trigger()
        rig.wait_for(lambda: any("SPOOL_ONLY_COPIES" in line for line in query.reader.log))
        query.idle(3)
        said = "\n".join(query.reader.log)
    assert said.count("SPOOL_ONLY_COPIES") == 1
    assert "dedupEpoch" in said
    assert rig.sink.rows() == 1500


def test_26_copies_among_new_messages_are_nothing_to_explain(caplog: pytest.LogCaptureFixture) -> None:
    watch = DuplicateWatch("spool")
    for _ in range(30):
        watch.admitted(rows=100, new=20)
    assert not caplog.records
    for _ in range(60):
        watch.admitted(rows=100, new=5)
    assert len(caplog.records) == 1


@pytest.mark.guarantee
@pytest.mark.parametrize("point", ["after_intent", "after_move", "after_record"])
def test_26_a_crash_at_any_step_of_a_seek_comes_to_the_same(rig: PubSubRig, point: str) -> None:
    between = read_twenty(rig)
    with rig.query({"startingTimestamp": between}, failpoints=f"reader/seek.{point}=kill") as query:
        with pytest.raises(ReaderDiedError):
            query.run_until(lambda _: False)
        # What is published meanwhile comes once.
        rig.publish(3)
        query.restart(reader_environment={"CONNECTORS_FAILPOINTS": ""})
        query.run_until(lambda _: rig.sink.rows() >= 33)
        query.idle(3)
    run(rig, 33, startingTimestamp=between)
    assert times(rig) == Counter(rig.published) + Counter(rig.published[10:20])
    assert seeks(rig.server) == (2 if point == "after_move" else 1)
    state = ledger(rig)
    assert state.dedup_epoch == 1
    assert state.seek == {"value": {"timestamp": int(between) * 1000}, "done": True}


def test_26_a_seek_that_was_begun_is_ended_though_its_option_is_gone(rig: PubSubRig) -> None:
    between = read_twenty(rig)
    with (
        rig.query({"startingTimestamp": between}, failpoints="reader/seek.after_move=kill") as query,
        pytest.raises(ReaderDiedError),
    ):
        query.run_until(lambda _: False)
    run(rig, 30)
    assert times(rig) == Counter(rig.published) + Counter(rig.published[10:])


def test_26_what_was_received_before_a_seek_is_admitted_before_it(rig: PubSubRig) -> None:
    rig.publish(20)
    points = "fetcher/fetch.after_publish_before_ack=kill,reader/ledger.before_admit=kill"
    with rig.query(failpoints=points) as query, pytest.raises(ReaderDiedError):
        query.run_until(lambda _: False)
    assert rig.stats().rows == 0
    run(rig, 40, startingTimestamp="0")
    assert times(rig) == Counter(rig.published * 2)


def test_26_two_places_at_once_are_refused(rig: PubSubRig) -> None:
    with pytest.raises(Exception, match=r"startingTimestamp.*startingSnapshot"):
        rig.query({"startingTimestamp": "0", "startingSnapshot": "x"}).start()


@pytest.mark.parametrize("text", ["yesterday", "2026-11-21T20:00:00", "-1", "1969-12-31T00:00:00Z"])
def test_26_a_time_without_its_zone_and_other_texts_are_refused(rig: PubSubRig, text: str) -> None:
    with pytest.raises(Exception, match="startingTimestamp cannot be"):
        rig.query({"startingTimestamp": text}).start()
