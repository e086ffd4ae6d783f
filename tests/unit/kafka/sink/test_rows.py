"""Rows that the client would write as something else are refused, before one of them is sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from connectors.core.errors import ConnectorError, CredentialsError, OptionError, ServiceUnavailableError
from connectors.kafka.client.errors import named_error
from connectors.kafka.native import NativeSink, NativeSource
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.schema import HEADERS, Columns
from connectors.kafka.sink.rows import records
from connectors.kafka.sink.writer import close_sinks, produce_batches

NOWHERE = ClientSettings((("bootstrap.servers", "127.0.0.1:1"), ("log_level", "0"), ("message.timeout.ms", "1000")))


def refused(name: str, column: Any) -> str:
    """The error of a row with this column."""
    columns = Columns("t", False, name == "partition", name == "headers", name == "timestamp")
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"] * len(column)), name: column})
    with pytest.raises(ConnectorError) as caught:
        produce_batches([batch], columns, NOWHERE)
    return str(caught.value)


@pytest.mark.parametrize("partition", [-1, -(2**31)])
@pytest.mark.usefixtures("native")
def test_a_partition_below_0_is_refused_in_the_words_of_the_jvm_client(partition: int) -> None:
    said = refused("partition", pa.array([partition], pa.int32()))
    assert f"Invalid partition: {partition}. Partition number should always be non-negative or null" in said


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (None, "A header of a row is null"),
        ({"key": None, "value": b"x"}, "A header of a row has no key"),
        ({"key": "a\0b", "value": b"x"}, r"A header of a row has the key 'a\x00b', which contains a NUL"),
    ],
    ids=["null", "no key", "NUL"],
)
def test_a_header_that_would_be_left_out_or_cut_is_refused(header: dict[str, Any] | None, text: str) -> None:
    good = {"key": "k", "value": None}
    said = refused("headers", pa.array([[good, header]], HEADERS))
    assert f"[KAFKA_HEADER_KEY] {text}" in said


@pytest.mark.parametrize("microseconds", [-(10**15), -1_000_000, -1000, -1, 0, 999])
def test_a_time_that_kafka_has_not_or_that_means_now_to_the_client_is_refused(microseconds: int) -> None:
    said = refused("timestamp", pa.array([10**15, microseconds, None], pa.timestamp("us", "UTC")))
    assert f"[KAFKA_TIMESTAMP] A row has the timestamp {microseconds // 1000} ms since 1970" in said


def test_times_from_the_first_millisecond_of_1970_on_are_taken_and_null_is_now() -> None:
    times = pa.array([1000, 1999, None], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"] * 3), "timestamp": times})
    taken = [time for *_, time, _ in records(batch, Columns("t", False, False, False, True))]
    assert taken == [1, 1, 0]


@pytest.mark.usefixtures("native")
def test_a_batch_without_rows_may_be_without_offsets_too() -> None:
    nothing = pa.py_buffer(b"")
    empty = pa.Array.from_buffers(pa.binary(), 0, [None, nothing, nothing])
    batch = pa.RecordBatch.from_arrays([empty, empty], ["key", "value"])
    try:
        assert produce_batches([batch], Columns("t", True, False, False, False), NOWHERE) == 0
    finally:
        close_sinks()


NO_UTF8 = pa.array([b"a\xff"], pa.binary()).view(pa.string())
"""What Spark makes of ``CAST(X'61FF' AS STRING)``."""


@pytest.mark.usefixtures("native")
def test_a_topic_that_is_not_utf8_is_named() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"]), NO_UTF8], ["value", "topic"])
    with pytest.raises(ConnectorError, match=r"\[KAFKA_TOPIC_NAME\] A row's topic 'a\ufffd' is not a valid"):
        produce_batches([batch], Columns(None, False, False, False, False), NOWHERE)


def test_what_is_not_utf8_in_the_key_of_a_header_is_replaced() -> None:
    pairs = pa.StructArray.from_arrays([NO_UTF8, pa.array([b"1"])], ["key", "value"])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"v"]), pa.ListArray.from_arrays([0, 1], pairs)], ["value", "headers"]
    )
    ((*_, headers),) = records(batch, Columns("t", False, False, True, False))
    assert headers == [("a\ufffd", b"1")]


@pytest.mark.usefixtures("native")
def test_a_broker_that_is_away_is_named_with_what_the_client_says_of_it() -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"])})
    nowhere = ClientSettings((*NOWHERE.plain[:2], ("message.timeout.ms", "5000")))  # long enough to try to connect
    with pytest.raises(ServiceUnavailableError) as caught:
        produce_batches([batch], Columns("t", False, False, False, False), nowhere)
    assert str(caught.value).startswith("[KAFKA_UNAVAILABLE] Kafka does not respond: Local: Message timed out; the cl")
    assert "Connection refused" in caught.value.what
    assert caught.value.where == "t"


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("_AUTHENTICATION", "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's", False),
        ("_AUTHENTICATION", "SASL handshake failed: Local: Timed out", False),
        ("_AUTHENTICATION", "SASL authentication error: Authentication failed: Invalid username or password", True),
        ("SASL_AUTHENTICATION_FAILED", "Broker: SASL Authentication failed", True),
        ("_SSL", "SSL handshake failed: certificate verify failed", True),
    ],
)
def test_a_log_in_counts_as_refused_only_if_a_broker_has_refused_it(name: str, text: str, kind: bool) -> None:
    problem = named_error(name, text, "kafka.bootstrap.servers", retriable=False)
    assert isinstance(problem, CredentialsError) == kind
    assert problem.transient == (not kind)


def test_a_topic_with_a_nul_never_comes_to_the_client() -> None:
    sink, source = NativeSink(NOWHERE), NativeSource(NOWHERE, {"group.id": "g"})
    batch = pa.RecordBatch.from_pydict({"topic": ["orders\0x"], "value": [b"v"]})
    columns = Columns(None, False, False, False, False)
    with pytest.raises(OptionError, match="KAFKA_NUL"):
        Columns("orders\0x", False, False, False, False)
    with pytest.raises(ConnectorError, match="KAFKA_TOPIC_NAME"):
        sink.send(batch, columns)
    with pytest.raises(OptionError, match="KAFKA_NUL"):
        source.assign(TopicPartition("orders\0x", 0), 0)
    sink.discard()
    source.close()
