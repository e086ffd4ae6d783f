"""Each source is fed records made to break it: the codes that come are those of the page, and no others."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from connectors.core.errors import ConnectorError
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range
from connectors.kinesis.client.client import Record
from connectors.kinesis.source.records import aggregates, batches
from connectors.pubsub.client.client import wire_message
from connectors.pubsub.source.records import make_decoder
from connectors.testing.kafka.mock import MockKafka
from tests.support.kafka_headers import send_header
from tests.support.kafka_paths import path_taken
from tests.support.kinesis_rig import kpl_aggregate
from tests.support.protobuf_rig import RIGS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "one-bad-record.md"
DAMAGED = 500
HOSTILE_TEXTS = ("", "\0", "\u20ac" * 300, "goog", "\x1b[2J", "a\nb", "\ufeff")


def kafka() -> None:
    """Values, keys, headers and times of any kind; the last records are read by themselves, as one may raise."""
    with MockKafka() as mock:
        mock.create_topic("t", 1)
        producer = Producer({"bootstrap.servers": mock.endpoint})
        for time in (0, 1, 2**62, 1_700_000_000_123_456_789):
            producer.produce("t", None, key=None, partition=0, timestamp=time)
        for text in HOSTILE_TEXTS:
            producer.produce("t", text.encode(), key=b"\xff\0", partition=0, headers=[(text, None), (text, b"\xff")])
        assert producer.flush(10) == 0
        send_header(mock, b"caf\xe9")
        client = ClientSettings((("bootstrap.servers", mock.endpoint), ("isolation.level", "read_uncommitted")))
        settings = KafkaReadOptions(client=client, group="check", include_headers=True, poll_timeout_ms=10_000)
        count = 4 + len(HOSTILE_TEXTS)
        for native in (True, False):
            with path_taken(native=native):
                assert sum(map(len, read_range(OffsetRange("t", 0, 0, count), settings))) == count
                tolerated(lambda: [*read_range(OffsetRange("t", 0, count, count + 1), settings)])


def kinesis() -> None:
    """Aggregates of the KPL that are damaged, as producers with bugs write them, and data that looks like one."""
    whole = kpl_aggregate([b"a", b"b" * 100])
    for _ in range(DAMAGED):
        data = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        records = [Record("1", bytes(data[: random.randint(0, len(data))]), "key", 1.0), Record("2", b"", "\0", None)]
        assert sum(map(len, batches(records, aggregates(records), "orders", "shard"))) >= len(records)


def pubsub() -> None:
    """Attributes and keys that the service lets a publisher send."""
    response = wire_message("StreamingPullResponse")()
    for number, text in enumerate(HOSTILE_TEXTS):
        message = response.received_messages.add(ack_id="a").message
        message.message_id, message.data, message.ordering_key = str(number + 1), b"\xff\0", text
        entry = message.attributes.add()
        entry.key = entry.value = text
    for plain in (True, False):
        assert len(make_decoder(plain=plain).decode([response.SerializeToString()]).rows) == len(HOSTILE_TEXTS)


def protobuf() -> None:
    """Bytes that are no message, under FAILFAST and with each codec."""
    for make in RIGS.values():
        call = make().call("Basic", {})
        tolerated(lambda call=call: call(pa.array([b"\xff\xff"], pa.binary())))  # type: ignore[misc]


RUNS: dict[str, Callable[[], None]] = {
    "kafka_py": kafka,
    "kinesis": kinesis,
    "pubsub": pubsub,
    "from_protobuf": protobuf,
}
_raised: list[str] = []


def tolerated(work: Callable[[], object]) -> None:
    """Do what may raise a named error, and note its code."""
    try:
        work()
    except ConnectorError as error:
        _raised.append(error.code)


@pytest.mark.parametrize("source", RUNS)
def test_the_page_names_each_code_that_a_record_of_a_source_can_cause(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    _raised.clear()
    with caplog.at_level(logging.WARNING):
        RUNS[source]()
    warned = re.findall(r"\[([A-Z_]+)\]", " ".join(record.getMessage() for record in caplog.records))
    rows = re.findall(rf"^\| `{source}` \| `([A-Z_]+)`", PAGE.read_text(), re.MULTILINE)
    assert {*_raised, *warned} == set(rows)
    assert rows or f"| `{source}` | none" in PAGE.read_text()
