"""Google's clients beside the ``pubsub`` format: that for Go publishes what we read, and others read what we write."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pytest
from google.cloud import pubsub_v1
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from connectors.core.arrow import arrow_schema
from connectors.pubsub.datasource import PubSubDataSource
from connectors.pubsub.sink.writer import close_clients
from tests.support.clients import as_bytes, as_field, run_go_client
from tests.support.clients.outcome import out_of_order, outcome
from tests.support.pubsub_calls import PubSubCalls
from tests.support.spark_protocol.driver import FolderSink, StreamingQuery

PROJECT: Final = "shop"
_NAMES: Final = ("trace", "ключ", "a-b.c", "x" * 256, "n")
_VALUES: Final = ("", "v", "значение", "y" * 1024)
_ROW_NAME: Final = "spark_uid"
_PATIENCE: Final = 120.0
_QUIET_SECONDS: Final = 2.0
_LARGE_ONE_IN: Final = 300
_SINK: Final = StructType(
    [
        StructField("payload", BinaryType()),
        StructField("orderingKey", StringType()),
        StructField("attributes", MapType(StringType(), StringType())),
    ]
)

Message = tuple[str, bytes, tuple[tuple[str, str], ...]]
"""Ordering key, payload, and attributes by their names."""


def random_message(choose: random.Random, number: int) -> Message:
    """Return one of the shapes that messages have; the payload begins with the number."""
    size = choose.choice((0, 20, 300, 5000)) if choose.randrange(_LARGE_ONE_IN) else 1_000_000
    body = choose.choice((b"compressible ", choose.randbytes(13))) * (size // 13)
    names = choose.sample(_NAMES, choose.randrange(len(_NAMES)))
    key = choose.choice(("", f"key-{number % 7}", "schlüssel"))
    return key, b"%d " % number + body, tuple(sorted((name, choose.choice(_VALUES)) for name in names))


@dataclass(frozen=True)
class Topic:
    """A topic with a subscription that has message ordering, of names that nobody else uses."""

    endpoint: str
    name: str

    @classmethod
    def create(cls, endpoint: str) -> Topic:
        """Create both."""
        topic = cls(endpoint, f"orders-{uuid4().hex[:12]}")
        with PubSubCalls(endpoint) as calls:
            path = f"projects/{PROJECT}/topics/{topic.name}"
            calls.create(path, topic.subscription, enable_message_ordering=True, ack_deadline_seconds=60)
        return topic

    @property
    def subscription(self) -> str:
        """The path of the subscription."""
        return f"projects/{PROJECT}/subscriptions/{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """What tells Google's clients where the server is."""
        return {"PUBSUB_EMULATOR_HOST": self.endpoint}


def producer_is_read(folder: Path, endpoint: str, seed: int, count: int, *, compression: bool) -> dict[str, Any]:
    """Let Google's client for Go publish with ordering keys, with and without compression, and read it."""
    choose = random.Random(seed)
    topic = Topic.create(endpoint)
    messages = [random_message(choose, number) for number in range(count)]
    lines = [
        [as_field(key.encode()), as_field(data), *(as_field(text.encode()) for pair in attributes for text in pair)]
        for key, data, attributes in messages
    ]
    *ids, sizes = run_go_client(
        "pubsub", ["publish", PROJECT, topic.name, str(compression).lower()], lines, topic.environment
    )
    payload, sent_bytes = map(int, sizes[1:])
    assert (sent_bytes < payload) == compression, (sent_bytes, payload)
    sent = [(*message, number) for message, (number,) in zip(messages, ids, strict=True)]
    found = _read(topic, folder, count)
    late = out_of_order(sent, found, _group)
    return outcome(sent, found, late, request_bytes=payload, request_bytes_on_the_wire=sent_bytes)


def _group(message: Any) -> Any:
    """What keeps its order: a key; a message without one has none."""
    return message[0] or message


def _read(topic: Topic, folder: Path, count: int) -> list[tuple[Any, ...]]:
    options = {
        "subscriptionId": topic.subscription,
        "endpoint": topic.endpoint,
        "spoolLocation": str(folder / "spool"),
        "maxRecordsPerTrigger": str(count // 3),
    }
    sink = FolderSink(folder / "sink")
    with StreamingQuery(PubSubDataSource, options, checkpoint=folder / "checkpoint", sink=sink) as query:
        query.run_until(lambda _: sink.rows() >= count, _PATIENCE)
        query.idle()
    table = sink.table()
    assert table is not None
    return [
        (row["orderingKey"], row["payload"], tuple(sorted(dict(row["attributes"]).items())), row["messageId"])
        for row in table.to_pylist()
    ]


def write(topic: Topic, messages: list[Message]) -> None:
    """Write messages by our sink."""
    rows = [{"payload": data, "orderingKey": key or None, "attributes": pairs} for key, data, pairs in messages]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(_SINK))
    options = {"endpoint": topic.endpoint, "topicId": topic.name, "projectId": PROJECT}
    PubSubDataSource(options).batch_writer(_SINK).write(iter(table.to_batches(max_chunksize=500)))
    close_clients()


def by_go(topic: Topic, count: int) -> list[Message]:
    """Receive by Google's client for Go."""
    lines = run_go_client("pubsub", ["receive", PROJECT, topic.name, str(count)], [], topic.environment)
    received = []
    for _, *fields in lines:
        key, data, *named = [as_bytes(field) or b"" for field in fields]
        texts = [text.decode() for text in named]
        received.append((key.decode(), data, tuple(sorted(zip(texts[::2], texts[1::2], strict=True)))))
    return received


def by_python(topic: Topic, count: int) -> list[Message]:
    """Receive by Google's client for Python, the one with callbacks."""
    received: list[Message] = []
    lock = threading.Lock()

    def take(message: Any) -> None:
        with lock:
            pairs = tuple(sorted(dict(message.attributes).items()))
            received.append((message.ordering_key, message.data, pairs))
        message.ack()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", topic.endpoint)
        client = pubsub_v1.SubscriberClient()
    with client:
        receiving = client.subscribe(topic.subscription, take)
        end = time.monotonic() + _PATIENCE
        before = -1
        while (len(received) < count or len(received) > before) and time.monotonic() < end:
            before = len(received)
            time.sleep(_QUIET_SECONDS)
        receiving.cancel()
        receiving.result()
    return received


CONSUMERS: Final[dict[str, Callable[[Topic, int], list[Message]]]] = {"go": by_go, "python": by_python}


def sink_is_received(endpoint: str, consumer: str, seed: int, count: int) -> dict[str, Any]:
    """Write rows with ordering keys and attributes by our sink, and receive them by a client of others."""
    choose = random.Random(seed)
    messages = [random_message(choose, number) for number in range(count)]
    topic = Topic.create(endpoint)
    write(topic, messages)
    received = CONSUMERS[consumer](topic, count)
    names = [value for _, _, pairs in received for name, value in pairs if name == _ROW_NAME]
    assert len(set(names)) == count, "each row has a name of its own"
    found = [(key, data, tuple(pair for pair in pairs if pair[0] != _ROW_NAME)) for key, data, pairs in received]
    return outcome(messages, found, out_of_order(messages, found, _group))
