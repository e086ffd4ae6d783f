"""Fetcher processes of Pub/Sub against a real server that does what emulators do not."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.datasource import PubSubConnector
from connectors.pubsub.options.client import Transport
from connectors.pubsub.source import fetcher as streams
from connectors.pubsub.source.acks import AckSender, Deadlines
from connectors.pubsub.source.fetcher import PubSubFetchSettings, message_count
from connectors.pubsub.source.records import make_decoder
from connectors.pubsub.source.stored_rows import ROWS_SCHEMA
from connectors.spool.fetching.group import FetcherGroup, FetcherStatus
from connectors.spool.fetching.messages import FetchPlan, to_json
from connectors.spool.segments.segment import SegmentReader
from connectors.spool.store.local import LocalStore
from connectors.testing.pubsub import PubSubServer
from tests.support.fetch_targets import PATIENT
from tests.support.fetch_waiting import only
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).parents[3]
SUBSCRIPTION = "projects/project/subscriptions/subscription"
TOPIC = "projects/project/topics/topic"


class Fetching:
    """A server with a subscription, a spool, and the fetchers that a test starts on them."""

    def __init__(self, server: PubSubServer, folder: Path) -> None:
        self.server = server
        self.root = folder / "spool"
        self.root.mkdir(mode=0o700)
        self.groups: list[FetcherGroup] = []

    def settings(self, **changes: Any) -> PubSubFetchSettings:
        transport = Transport(self.server.endpoint, secure=False, local=True)
        return replace(PubSubFetchSettings(SUBSCRIPTION, transport, streams=2, ack_deadline_seconds=10), **changes)

    def plan(self, settings: PubSubFetchSettings | None = None, **changes: Any) -> FetchPlan:
        text = to_json(settings or self.settings())
        return replace(FetchPlan(PubSubConnector.target, str(self.root), "spool", b"k" * 16, settings=text), **changes)

    def limited_plan(self, limits: dict[str, float], **changes: Any) -> FetchPlan:
        """A plan with other limits in the process of the fetcher; see `tests.support.fetch_targets.set_limits`."""
        plan = self.plan(**changes)
        settings = {**plan.settings, "limits": limits}
        return replace(plan, target="tests.support.fetch_targets:limited_pubsub", settings=settings)

    def start(self, plan: FetchPlan | None = None, count: int = 1, **arguments: Any) -> FetcherGroup:
        group = FetcherGroup(**arguments)
        group.add(plan or self.plan(), count)
        self.groups.append(group)
        group.start()
        return group

    def spooled(self) -> list[str]:
        """The ids in all segments."""
        return [str(message_id) for message_id in self.table().column("messageId").to_pylist()]

    def table(self) -> pa.Table:
        store = LocalStore(str(self.root), "test")
        batches = []
        for fetcher in store.list("inbox"):
            for number in sorted(int(name.partition(".")[0]) for name in store.list(f"inbox/{fetcher}")):
                reader = SegmentReader(store, f"inbox/{fetcher}/{number}.arrow")
                batches += [batch for _, batch in reader.batches(0, 1 << 30)]
        return pa.Table.from_batches(batches) if batches else pa.table({"messageId": pa.array([], pa.string())})

    def first(self) -> list[str]:
        """Publish a message and wait until it is acked: what comes within the period after it is held."""
        sent = self.server.publish(TOPIC, [b"first"])
        self.drained()
        return sent

    def drained(self, timeout: float = 30.0) -> None:
        self.server.wait_for_backlog(SUBSCRIPTION, timeout=timeout)


@pytest.fixture
def fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fetching]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with PubSubServer(seed=1) as server:
        server.create_subscription(SUBSCRIPTION, TOPIC)
        made = Fetching(server, tmp_path)
        yield made
        for group in made.groups:
            group.stop(timeout=0.0)


@pytest.fixture
def paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes fetchers that are started from now on wait at a failpoint; gives the file to delete."""

    def pause(point: str) -> Path:
        flag = tmp_path / "paused"
        monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"{point}=pause:{flag}")
        return flag

    return pause


def release(fetching: Fetching, flag: Path) -> None:
    """Let the fetchers go on, as often as they come to the failpoint, until all is acked."""

    def drained() -> bool:
        flag.unlink(missing_ok=True)
        return fetching.server.backlog(SUBSCRIPTION) == 0

    wait_for(drained)


# Durable, then acked.


@pytest.mark.parametrize("plain", [False, True])
def test_every_message_is_spooled_once_and_then_acked(fetching: Fetching, *, plain: bool) -> None:
    sent = fetching.server.publish(TOPIC, [b"%d" % number for number in range(3000)], {"kind": "test"})
    fetching.start(fetching.plan(fetching.settings(plain=plain)))
    fetching.drained()
    assert sorted(fetching.spooled()) == sorted(sent)
    assert fetching.table().schema.equals(ROWS_SCHEMA, check_metadata=True), "the version of the rows is stored"
    rows = dict(zip(*(fetching.table().column(name).to_pylist() for name in ("messageId", "payload")), strict=True))
    assert [rows[message_id] for message_id in sent] == [b"%d" % number for number in range(3000)]
    assert set(map(str, fetching.table().column("attributes").to_pylist())) == {"[('kind', 'test')]"}


@pytest.mark.parametrize("point", ["fetch.before_publish", "store.before_sync", "store.before_folder_sync"])
def test_behaviour_9_nothing_is_acked_before_its_segment_is_durable(
    fetching: Fetching, paused: Callable[[str], Path], point: str
) -> None:
    flag = paused(point)
    fetching.server.publish(TOPIC, [b"x"] * 500)
    fetching.start()
    wait_for(lambda: flag.exists() and fetching.server.counters()["deliver"] >= 500)
    fetching.server.publish(TOPIC, [b"later"])
    wait_for(lambda: fetching.server.counters()["deliver"] >= 501)
    assert fetching.server.counters()["ack"] == 0, "though more has come since"
    release(fetching, flag)
    assert fetching.server.counters()["nack"] == 0


def test_behaviour_10_acks_that_fail_are_sent_again(fetching: Fetching) -> None:
    sent = fetching.server.publish(TOPIC, [b"x"] * 1000)
    fetching.server.fail("Acknowledge", "UNAVAILABLE", times=5)
    group = fetching.start()
    fetching.drained()
    assert fetching.server.counters()["rpc-error"] == 5
    assert fetching.server.counters()["deliver"] == 1000
    assert sorted(fetching.spooled()) == sorted(sent)
    wait_for(lambda: only(group).healthy)


def test_an_ack_that_fails_for_good_is_counted_and_holds_up_nothing(fetching: Fetching) -> None:
    fetching.server.fail("Acknowledge", "INVALID_ARGUMENT", times=1)
    fetching.server.publish(TOPIC, [b"x"])
    group = fetching.start()
    wait_for(lambda: only(group).counters.get("ack_requests_failed") == 1)
    fetching.server.publish(TOPIC, [b"y"])
    fetching.server.wait_for_backlog(SUBSCRIPTION, 1)
    fetching.server.expire_leases(SUBSCRIPTION)
    fetching.drained()
    assert Counter(Counter(fetching.spooled()).values()) == {2: 1, 1: 1}


def test_a_message_redelivered_after_its_ack_is_spooled_again_and_acked_again(fetching: Fetching) -> None:
    sent = fetching.server.publish(TOPIC, [b"x"] * 100)
    fetching.start()
    fetching.drained()
    fetching.server.redeliver(SUBSCRIPTION, to_other_stream=True)
    wait_for(lambda: fetching.server.counters()["ack"] == 200)
    assert Counter(fetching.spooled()) == dict.fromkeys(sent, 2)


def test_a_message_larger_than_every_limit_passes(fetching: Fetching) -> None:
    large = os.urandom(5_000_000)
    fetching.server.publish(TOPIC, [b"small", large, b"small"])
    settings = fetching.settings(max_outstanding_bytes=1000)
    plan = fetching.plan(settings, max_held_bytes=1000, max_held_rows=1, segment_bytes=1000)
    fetching.start(plan, free_bytes=1 << 30)
    fetching.drained()
    assert sorted(map(len, fetching.table().column("payload").to_pylist())) == [5, 5, 5_000_000]


def test_two_fetchers_share_a_subscription(fetching: Fetching) -> None:
    group = fetching.start(count=2)
    wait_for(lambda: group.healthy)
    sent = [fetching.server.publish(TOPIC, [b"x"] * 50) for _ in range(40)]
    fetching.drained()
    assert sorted(fetching.spooled()) == sorted(message_id for part in sent for message_id in part)
    assert len({status.fetcher for status in group.status()}) == 2


# What is held.


def test_behaviour_11_nothing_held_expires_while_the_spool_stalls(
    fetching: Fetching, paused: Callable[[str], Path]
) -> None:
    flag = paused("fetch.before_publish")
    fetching.server.publish(TOPIC, [b"x"] * 5000)
    # Small segments: one is being published, one waits, and the rest is held as it came.
    group = fetching.start(fetching.plan(segment_bytes=1000))
    wait_for(lambda: flag.exists() and fetching.server.counters()["deliver"] == 5000)
    fetching.server.wait_for_events("modack", 5000)
    # The fetcher does not know of the jump that follows, and its next extensions would come too late.
    fetching.server.set_speed(0.001)
    # Now the first deadline of 10 s passes, and no more: what was extended has the time left that this took.
    delivered = max(event.server_ns for event in fetching.server.events(kinds=["deliver"])) / 1e9
    fetching.server.jump(max(delivered + 10.1 - fetching.server.now(), 0.0))
    counters = fetching.server.counters()
    assert (counters["expire"], counters["modack-stale"]) == (0, 0)
    wait_for(lambda: only(group).counters["lease_extensions"] >= 5000)
    release(fetching, flag)
    assert fetching.server.counters()["deliver"] == 5000


SPEED = 5.0


class LivedTime:
    """Moves a server, and the clock of its client in this process: time in which this process stalls does not count."""

    _TICK = 0.005
    _MOST_A_TICK = 0.02

    def __init__(self, server: PubSubServer) -> None:
        self.seconds = 0.0
        server.set_speed(0.001)
        self._server = server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _tick(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(self._TICK):
            now = time.monotonic()
            passed = min(now - last, self._MOST_A_TICK) * SPEED
            self._server.jump(passed)
            self.seconds += passed
            last = now


@pytest.fixture
def fast_deadlines(fetching: Fetching) -> Iterator[Deadlines]:
    """Deadlines on a server whose time runs faster; the first half is held decoded, the rest as it came."""
    server = fetching.server
    lived = LivedTime(server)
    sent = server.publish(TOPIC, [b"x" * 1000] * 4000)
    transport = Transport(server.endpoint, secure=False, local=True)
    faults: list[BaseException] = []
    with PubSubClient(transport) as client:
        stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="test")

        def send(request: bytes, timeout: float) -> Any:
            return client.modify_ack_deadline(SUBSCRIPTION, request, timeout_seconds=timeout)

        deadlines = Deadlines(
            SUBSCRIPTION,
            10,
            send,
            make_decoder(),
            ordered=False,
            fault=faults.append,
            clock=lambda: lived.seconds,
        )
        held, ack_ids = [], []
        while sum(map(len, ack_ids)) < len(sent):
            response = next(stream)
            held.append(deadlines.receive(response))
            ack_ids.append(make_decoder().decode([response]).ack_ids)
        half = len(held) // 2
        deadlines.merge(held[:half], pa.concat_arrays(ack_ids[:half]))
        yield deadlines
        deadlines.close(time.monotonic() + 60)
    lived.close()
    assert not faults


@pytest.mark.usefixtures("fast_deadlines")
def test_behaviour_11_nothing_held_expires_in_three_times_its_deadline(fetching: Fetching) -> None:
    began = fetching.server.now()
    wait_for(lambda: fetching.server.now() - began > 30)
    counters = fetching.server.counters()
    assert (counters["expire"], counters["modack-stale"], counters["deliver"]) == (0, 0, 4000)
    assert counters["modack"] >= 4000 * 3


@pytest.mark.usefixtures("fast_deadlines")
def test_extensions_that_fail_are_tried_again_in_time(fetching: Fetching) -> None:
    fetching.server.fail("ModifyAckDeadline", "UNAVAILABLE", times=2)
    began = fetching.server.now()
    wait_for(lambda: fetching.server.now() - began > 15)
    counters = fetching.server.counters()
    assert (counters["rpc-error"], counters["expire"]) == (2, 0)


def test_behaviour_12_what_is_not_spooled_at_the_end_goes_to_another_subscriber_at_once(
    fetching: Fetching, paused: Callable[[str], Path]
) -> None:
    flag = paused("fetch.before_publish")
    sent = fetching.server.publish(TOPIC, [b"x"] * 5000)
    group = fetching.start(fetching.plan(segment_bytes=1000))
    wait_for(lambda: flag.exists() and fetching.server.counters()["deliver"] == 5000)
    transport = Transport(fetching.server.endpoint, secure=False, local=True)
    stopping = threading.Thread(target=group.stop, args=(60.0,))
    stopping.start()
    found: set[str] = set()
    with PubSubClient(transport) as other:
        stream = other.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="other")
        for response in stream:
            found |= set(make_decoder().decode([response]).rows.column("messageId").to_pylist())
            if len(found) == len(sent):
                break
    stopping.join()
    assert found == set(sent)
    counters = fetching.server.counters()
    assert (counters["ack"], counters["expire"]) == (0, 0), "they are given back, and do not come at their deadlines"
    assert fetching.spooled() == []


def test_a_stop_spools_and_acks_what_was_received(fetching: Fetching) -> None:
    group = fetching.start(fetching.limited_plan(PATIENT, publish_period=60.0))
    sent = [*fetching.first(), *fetching.server.publish(TOPIC, [b"x"] * 100)]
    wait_for(lambda: only(group).held_rows == 100)
    group.stop(timeout=60.0)
    assert sorted(fetching.spooled()) == sorted(sent)
    assert fetching.server.backlog(SUBSCRIPTION) == 0
    assert fetching.server.counters()["nack"] == 0


def test_the_end_comes_in_time_when_the_service_answers_nothing(fetching: Fetching) -> None:
    # The limit of publishing is not what this is about: the disk is well.
    group = fetching.start(fetching.limited_plan({"__main__._PUBLISH_LIMIT": 60.0}, publish_period=60.0))
    fetching.first()
    fetching.server.publish(TOPIC, [b"x"] * 100)
    wait_for(lambda: only(group).held_rows == 100)
    fetching.server.delay_calls("*", 120.0)
    began = time.monotonic()
    group.stop(timeout=60.0)
    assert time.monotonic() - began < 30, "it ends by itself, and not when it is answered"
    assert len(fetching.spooled()) == 101
    fetching.server.clear_faults()


def test_behaviour_29_the_caps_hold_even_if_the_server_ignores_flow_control(
    fetching: Fetching, paused: Callable[[str], Path]
) -> None:
    flag = paused("fetch.before_publish")
    fetching.server.ignore_flow_control()
    fetching.server.fill(TOPIC, 20_000, 1000)
    cap = 3_000_000
    settings = fetching.settings(max_outstanding_bytes=cap)
    group = fetching.start(fetching.plan(settings, max_held_bytes=cap))
    wait_for(lambda: flag.exists() and only(group).paused)
    wait_for(lambda: fetching.server.streams() == [])
    # At most one response more from each stream; this server's are of 1 MB and the overhead of each message.
    assert cap <= only(group).held_bytes <= cap + 2 * 1_300_000

    # What was on its way when the streams were closed comes again when its deadline has passed.
    fetching.server.expire_leases(SUBSCRIPTION)
    release(fetching, flag)
    assert len(set(fetching.spooled())) == 20_000


def test_behaviour_29_the_cap_on_messages_holds_too(fetching: Fetching, paused: Callable[[str], Path]) -> None:
    flag = paused("fetch.before_publish")
    fetching.server.ignore_flow_control()
    fetching.server.fill(TOPIC, 10_000, 10)
    group = fetching.start(fetching.plan(max_held_rows=2500))
    wait_for(lambda: flag.exists() and only(group).paused)
    wait_for(lambda: fetching.server.streams() == [])
    assert 2500 <= only(group).held_rows <= 2500 + 2 * 1000


def test_a_long_pause_closes_the_streams_and_room_opens_them_again(fetching: Fetching) -> None:
    group = fetching.start(free_bytes=1000)
    wait_for(lambda: group.healthy)
    fetching.server.publish(TOPIC, [b"x" * 1000] * 10)
    wait_for(lambda: only(group).published_bytes >= 1000)
    group.allow(0)
    fetching.server.wait_for_streams(0)
    wait_for(lambda: only(group).paused and not group.healthy)
    sent = fetching.server.publish(TOPIC, [b"y" * 1000] * 10)
    time.sleep(0.5)  # no event shows that nothing is fetched: there is no stream that could show it
    assert not set(sent) & set(fetching.spooled())
    group.allow(1 << 20)
    fetching.server.wait_for_streams(2)
    wait_for(lambda: group.healthy)
    fetching.drained()


# Streams that end, services that go, subscriptions that are gone.


@pytest.mark.guarantee
def test_behaviour_28_streams_closed_all_the_time_lose_and_double_nothing(fetching: Fetching) -> None:
    fetching.server.close_streams_every(0.2)
    group = fetching.start()
    sent = []
    while fetching.server.counters()["stream-close"] < 12:
        sent += fetching.server.publish(TOPIC, [b"x" * 100] * 50)
        time.sleep(0.03)
    fetching.drained()
    assert sorted(fetching.spooled()) == sorted(sent)
    assert fetching.server.counters()["nack"] == 0
    assert only(group).starts == 1


def test_behaviour_28_memory_stays_flat(fetching: Fetching) -> None:
    cap = 8 << 20
    group = fetching.start(fetching.plan(fetching.settings(max_outstanding_bytes=cap), max_held_bytes=cap))
    wait_for(lambda: group.healthy)
    base = resident(only(group))
    fetching.server.close_streams_every(1.0)
    for _ in range(10):
        fetching.server.fill(TOPIC, 5000, 1000)
        fetching.drained()
    assert resident(only(group)) <= base + 2 * cap + (64 << 20)


def resident(status: FetcherStatus) -> int:
    text = Path(f"/proc/{status.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def test_a_fetcher_is_healthy_on_an_empty_subscription_and_not_while_the_service_is_away(fetching: Fetching) -> None:
    group = fetching.start()
    wait_for(lambda: group.healthy)
    fetching.server.stop()
    wait_for(lambda: not group.healthy and only(group).error is not None)
    assert only(group).error.code == "PUBSUB_UNAVAILABLE"  # type: ignore[union-attr]
    fetching.server.start()
    sent = fetching.server.publish(TOPIC, [b"x"] * 10)
    wait_for(lambda: group.healthy)
    fetching.drained()
    assert sorted(fetching.spooled()) == sorted(sent)
    assert group.terminal_error() is None
    assert only(group).starts == 1


def test_a_subscription_that_vanishes_stops_the_query(fetching: Fetching) -> None:
    group = fetching.start()
    wait_for(lambda: group.healthy)
    delete(fetching, "Subscriber/DeleteSubscription", SUBSCRIPTION)
    error = wait_for(group.terminal_error)
    assert error.code == "PUBSUB_SUBSCRIPTION_NOT_FOUND"
    assert SUBSCRIPTION in str(error)
    wait_for(lambda: only(group).pid is None)
    assert only(group).starts == 1


def test_a_subscription_that_loses_its_topic_stops_the_query(fetching: Fetching) -> None:
    group = fetching.start(fetching.plan(fetching.settings(check_every_seconds=0.2)))
    wait_for(lambda: group.healthy)
    delete(fetching, "Publisher/DeleteTopic", TOPIC)
    assert wait_for(group.terminal_error).code == "PUBSUB_TOPIC_DELETED"


def test_a_denied_pull_stops_the_query_and_names_the_role(fetching: Fetching) -> None:
    fetching.server.fail("StreamingPull", "PERMISSION_DENIED", times=None)
    error = wait_for(fetching.start().terminal_error)
    assert error.code == "PUBSUB_PERMISSION_DENIED"
    assert "roles/pubsub.subscriber" in str(error)
    assert SUBSCRIPTION in str(error)


def test_a_denied_look_at_the_subscription_stops_nothing(fetching: Fetching) -> None:
    fetching.server.fail("GetSubscription", "PERMISSION_DENIED", times=None)
    group = fetching.start()
    wait_for(lambda: group.healthy)
    fetching.server.publish(TOPIC, [b"x"])
    fetching.drained()
    assert group.terminal_error() is None


def test_a_stream_that_the_service_closes_stays_healthy(fetching: Fetching) -> None:
    assert streams._REOPENING_SECONDS >= 1
    # The time that it takes to open another is not what this is about.
    group = fetching.start(fetching.limited_plan({"connectors.pubsub.source.fetcher._REOPENING_SECONDS": 60.0}))
    wait_for(lambda: group.healthy)
    seen = []
    for _ in range(5):
        fetching.server.close_streams()
        fetching.server.wait_for_streams(2)
        seen += [group.healthy for _ in range(20) if time.sleep(0.01) is None]
    assert all(seen)


def test_credentials_that_cannot_be_read_stop_the_query(fetching: Fetching, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text("{}")
    transport = Transport(fetching.server.endpoint, secure=True, local=True)
    settings = fetching.settings(transport=transport, credentials_file=str(tmp_path / "key.json"))
    assert wait_for(fetching.start(fetching.plan(settings)).terminal_error).code == "CREDENTIALS_UNREADABLE"


def delete(fetching: Fetching, method: str, name: str) -> None:
    import grpc  # noqa: PLC0415 - for this alone

    field = b"\x0a" + bytes([len(name)]) + name.encode()
    with grpc.insecure_channel(fetching.server.endpoint) as channel:
        channel.unary_unary(f"/google.pubsub.v1.{method}", None, None)(field)


# Crashes and full disks.


@pytest.mark.guarantee
@pytest.mark.parametrize(
    "point",
    [
        "fetch.before_folder",
        "store.before_link",
        "store.after_publish",
        "fetch.after_publish_before_ack",
        "fetch.after_ack",
    ],
)
def test_a_fetcher_killed_at_a_durable_step_loses_nothing(
    fetching: Fetching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    passes = 1 if point.endswith("_folder") else 2
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"{point}=kill_once:{tmp_path / 'killed'}:{passes}")
    group = fetching.start()
    sent = []

    def publish_until_killed() -> bool:
        sent.extend(fetching.server.publish(TOPIC, [b"x"] * 20))
        assert set(fetching.server.acked_ids(SUBSCRIPTION)) <= set(fetching.spooled())
        return only(group).starts == 2

    wait_for(publish_until_killed)
    fetching.server.expire_leases(SUBSCRIPTION)
    fetching.drained()
    assert set(fetching.spooled()) == set(sent)
    # A copy of what is acked may still be on its way to the disk.
    wait_for(lambda: list((fetching.root / "tmp").iterdir()) == [])


@pytest.mark.guarantee
@pytest.mark.parametrize("point", ["fetch.before_nack", "fetch.after_nack"])
def test_a_fetcher_killed_while_it_gives_back_loses_nothing(
    fetching: Fetching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    points = [f"fetch.before_publish=raise:{errno.ENOSPC}:2", f"{point}=kill_once:{tmp_path / 'killed'}"]
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", ",".join(points))
    group = fetching.start()
    sent = []

    def publish_until_killed() -> bool:
        sent.extend(fetching.server.publish(TOPIC, [b"x"] * 20))
        return only(group).starts == 2

    wait_for(publish_until_killed)
    fetching.server.expire_leases(SUBSCRIPTION)
    fetching.drained()
    assert set(fetching.spooled()) == set(sent)


def test_after_a_full_disk_what_was_given_back_comes_again(fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"fetch.before_publish=raise:{errno.ENOSPC}:3")
    group = fetching.start()
    sent = []
    while fetching.server.counters()["nack"] == 0:
        sent += fetching.server.publish(TOPIC, [b"x"] * 20)
        time.sleep(0.01)
    fetching.drained()
    assert sorted(fetching.spooled()) == sorted(sent)
    assert fetching.server.counters()["expire"] == 0
    assert only(group).starts == 1


@pytest.mark.guarantee
def test_a_killed_fetcher_is_replaced_and_its_messages_come_again(fetching: Fetching) -> None:
    settings = fetching.settings(ack_deadline_seconds=60)
    group = fetching.start(fetching.limited_plan(PATIENT, settings=settings, publish_period=60.0))
    sent = [*fetching.first(), *fetching.server.publish(TOPIC, [b"x"] * 100)]
    wait_for(lambda: only(group).held_rows == 100)
    os.kill(only(group).pid or 0, signal.SIGKILL)
    wait_for(lambda: only(group).starts == 2 and group.healthy)
    # As above: what comes after the first message is held.
    sent += fetching.server.publish(TOPIC, [b"first of the second"])
    wait_for(lambda: fetching.server.backlog(SUBSCRIPTION) == 100)
    fetching.server.expire_leases(SUBSCRIPTION)
    wait_for(lambda: only(group).held_rows == 100)
    group.stop(timeout=60.0)
    assert sorted(fetching.spooled()) == sorted(sent)
    assert fetching.server.backlog(SUBSCRIPTION) == 0


# Parts.


def test_acks_that_wait_are_bounded_and_sent_at_the_end() -> None:
    gate = threading.Event()
    sent: list[bytes] = []
    faults: list[BaseException] = []

    def send(request: bytes, _timeout: float) -> Any:
        from connectors.pubsub.client.errors import AckFailures  # noqa: PLC0415 - for this alone

        gate.wait(60)
        sent.append(request)
        return AckFailures()

    sender = AckSender(SUBSCRIPTION, send, faults.append)
    ids = pa.array([f"{number:0200d}" for number in range(200_000)])
    producer = threading.Thread(target=sender.acknowledge, args=(ids,), daemon=True)
    producer.start()
    wait_for(lambda: sender.counters["ack_requests_waiting"] >= 40)
    time.sleep(0.1)  # no event shows that the producer waits for room
    assert sender.counters["ack_requests_waiting"] == 40
    assert producer.is_alive()
    gate.set()
    producer.join(60)
    sender.close(time.monotonic() + 60)
    assert sum(request.count(b"\x12\xc8\x01") for request in sent) == 200_000
    assert not faults


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 500])
def test_messages_of_a_response_are_counted(fetching: Fetching, count: int) -> None:
    if count:
        fetching.server.publish(TOPIC, [b"x" * 300] * count)
    transport = Transport(fetching.server.endpoint, secure=False, local=True)
    with PubSubClient(transport) as client:
        stream = client.streaming_pull(SUBSCRIPTION, ack_deadline_seconds=10, client_id="test")
        response = next(stream) if count else b'"\x00'
    assert abs(message_count(response) - count) <= count * 0.05
