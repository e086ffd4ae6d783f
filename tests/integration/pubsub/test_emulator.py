"""The source on the official emulator: rows, redelivery at the deadline, restart, AvailableNow."""

from __future__ import annotations

import errno
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pyarrow as pa
import pytest
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import pubsub as types

from connectors.pubsub.datasource import PubSubDataSource
from connectors.pubsub.options.sink import parse_write_options
from connectors.pubsub.sink.rows import RowStamp, SinkColumns
from connectors.pubsub.sink.writer import close_clients, publish_batches
from connectors.spool import stats
from connectors.testing.pubsub import PubSubServer
from connectors.testing.pubsub.client import PubSubTestClient
from tests.servers.pubsub_emulator import find_emulator
from tests.support.spark_protocol.driver import FolderSink, StreamingQuery, TaskWorkers

KEYS = 20


class EmulatorRig:
    """A subscription on the emulator, and a query on it by the protocol driver."""

    def __init__(self, endpoint: str, folder: Path, workers: TaskWorkers) -> None:
        self.client = PubSubTestClient(endpoint, "shop")
        self.name = f"orders-{uuid4().hex[:8]}"
        self.client.create(self.name, self.name)
        self.folder = folder
        self.endpoint = endpoint
        self.workers = workers
        self.sink = FolderSink(folder / "sink")
        self.published: list[str] = []

    def publish(self, count: int) -> None:
        self.published += self.client.publish(self.name, [(b"payload", {"n": str(n)}) for n in range(count)])

    def query(self, failpoints: str = "", trigger: str = "default") -> StreamingQuery:
        return StreamingQuery(
            PubSubDataSource,
            {
                "projectId": "shop",
                "subscriptionId": self.name,
                "endpoint": self.endpoint,
                "spoolLocation": str(self.folder / "spool"),
                "availableNowQuiet": "2s",
            },
            checkpoint=self.folder / "checkpoint",
            sink=self.sink,
            trigger=trigger,
            workers=self.workers,
            reader_environment={"CONNECTORS_FAILPOINTS": failpoints},
        )

    def run_until_all(self, query: StreamingQuery) -> None:
        query.run_until(lambda _: self.sink.rows() >= len(self.published))

    def assert_each_once(self) -> None:
        found = self.sink.lost_and_doubled(self.published, "messageId")
        assert (found.lost, found.doubled) == ([], [])


@pytest.fixture
def rig(pubsub_emulator: str, tmp_path: Path) -> Iterator[EmulatorRig]:
    workers = TaskWorkers(1)
    made = EmulatorRig(pubsub_emulator, tmp_path, workers)
    yield made
    made.client.close()
    workers.close()


@pytest.mark.guarantee
def test_rows_come_once_over_a_restart_on_the_official_emulator(rig: EmulatorRig) -> None:
    rig.publish(300)
    with rig.query() as query:
        rig.run_until_all(query)
        query.kill()
        rig.publish(300)
        query.restart()
        rig.run_until_all(query)
        query.idle(3)
    rig.assert_each_once()


@pytest.mark.guarantee
def test_what_the_official_emulator_redelivers_at_the_deadline_is_dropped(rig: EmulatorRig) -> None:
    rig.publish(100)
    flag = rig.folder / "died"
    # It ends in good order, and not by a signal: an emulator goes on to serve the streams of a client that is gone.
    with rig.query(f"fetcher/fetch.after_publish_before_ack=raise_once:{flag}:{errno.EIO}:1") as query:
        rig.run_until_all(query)
        end = time.monotonic() + 90
        while stats(str(rig.folder / "spool")).duplicates == 0:
            assert time.monotonic() < end, "the emulator redelivered nothing"
            query.run_trigger()
            time.sleep(0.1)
        query.idle(3)
    assert flag.exists()
    rig.assert_each_once()


def test_available_now_ends_on_the_official_emulator(rig: EmulatorRig) -> None:
    rig.publish(200)
    with rig.query(trigger="available_now") as query:
        query.process_available()
        assert not query.is_running
    rig.assert_each_once()


def test_what_the_sink_publishes_arrives_on_the_official_emulator(rig: EmulatorRig) -> None:
    schema = pa.schema(
        [("payload", pa.string()), ("attributes", pa.map_(pa.string(), pa.string())), ("orderingKey", pa.string())]
    )
    rows = [
        (f"grüße {number}", [("n", str(number))], f"key-{number % 3}" if number % 2 else None) for number in range(2500)
    ]
    columns = dict(zip(schema.names, (list(column) for column in zip(*rows, strict=True)), strict=True))
    topic = f"projects/shop/topics/{rig.name}"
    options = parse_write_options({"endpoint": rig.endpoint, "topicId": topic}, {})
    batch = pa.RecordBatch.from_pydict(columns, schema)
    sink = SinkColumns("payload", "attributes", "orderingKey", None, topic, None)
    assert publish_batches([batch], sink, options, RowStamp("spark_uid", "query/0/0/", 0)) == 2500
    close_clients()
    with rig.query() as query:
        query.run_until(lambda _: rig.sink.rows() >= 2500)
    found = rig.sink.table()
    assert found is not None
    got = {
        row["attributes"]["spark_uid"].rpartition("/")[0]: (
            row["payload"].decode(),
            row["attributes"]["n"],
            row["orderingKey"] or None,
        )
        for row in found.to_pylist(maps_as_pydicts="strict")
    }
    assert got == {f"query/0/0/{n}": (text, str(n), key) for n, (text, _, key) in enumerate(rows)}


class PlainClient:
    """Google's client of an ordered subscription with keys, whose messages count up within their key."""

    def __init__(self, client: PubSubTestClient, channel: grpc.Channel) -> None:
        name = f"ordered-{uuid4().hex[:8]}"
        self._client, self._topic, self._subscription = client, client.topic(name), client.subscription(name)
        client.call("Publisher/CreateTopic", types.Topic(name=self._topic), types.Topic)
        wanted = types.Subscription(
            name=self._subscription, topic=self._topic, enable_message_ordering=True, ack_deadline_seconds=10
        )
        client.call("Subscriber/CreateSubscription", wanted, types.Subscription)
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))

    def publish(self, turns: range) -> None:
        for key in map(str, range(KEYS)):
            messages = [types.PubsubMessage(data=b"%d" % turn, ordering_key=key) for turn in turns]
            request = types.PublishRequest(topic=self._topic, messages=messages)
            self._client.call("Publisher/Publish", request, types.PublishResponse)

    def read(self, count: int, *, ack: bool) -> list[tuple[str, int]]:
        """Read by one stream until so many different messages came, end it, and return them in order of arrival."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(types.StreamingPullRequest(subscription=self._subscription, stream_ack_deadline_seconds=10))
        arrived: dict[tuple[str, int], None] = {}
        for response in self._subscriber.streaming_pull(requests=iter(requests.get, None), timeout=90):
            if ack:
                ids = [received.ack_id for received in response.received_messages]
                self._subscriber.acknowledge(subscription=self._subscription, ack_ids=ids)
            for received in response.received_messages:
                arrived[received.message.ordering_key, int(received.message.data)] = None
            if len(arrived) >= count:
                requests.put(None)  # in good order: what is on its way still comes
        return list(arrived)


def overtaken(endpoint: str) -> tuple[int, int]:
    """End a stream before it acks, and read on in another one.

    Returns:
        How many messages were delivered without an ack, and how many of these came after later ones of their key.
    """
    with PubSubTestClient(endpoint, "shop") as client, grpc.insecure_channel(endpoint) as channel:
        plain = PlainClient(client, channel)
        plain.publish(range(20))
        unacked = set(plain.read(KEYS, ack=False))
        plain.publish(range(20, 40))
        newest: dict[str, int] = {}
        late = 0
        for key, turn in plain.read(40 * KEYS, ack=True):
            late += (key, turn) in unacked and turn < newest.get(key, -1)
            newest[key] = max(turn, newest.get(key, -1))
    return len(unacked), late


def test_the_official_emulator_sends_later_messages_of_a_key_before_those_that_were_not_acked(
    pubsub_emulator: str,
) -> None:
    """Why `connectors demo` takes no disorder on the emulator for a fault: a plain client has it too."""
    unacked, late = overtaken(pubsub_emulator)
    assert unacked > 0
    assert late > 0


def test_our_server_redelivers_a_key_from_the_first_message_that_was_not_acked() -> None:
    with PubSubServer() as server:
        unacked, late = overtaken(server.endpoint)
    assert unacked > 0
    assert late == 0


def test_the_program_says_what_to_export() -> None:
    if reason := find_emulator().reason:
        pytest.skip(reason)
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.servers", "pubsub-emulator", "--exit-with-parent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    with program:
        endpoint = program.stdout.readline().removeprefix("listening on ").strip()
        assert program.stdout.readline() == f"# endpoint: {endpoint}\n"
        assert program.stdout.readline() == f"export PUBSUB_EMULATOR_HOST={endpoint}\n"
        PubSubTestClient(endpoint, "shop").create("exported", "exported")
        program.stdin.close()
    assert program.returncode == 0
