"""Responses and event streams with values that make no sense, and frames that are damaged: named errors."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from connectors.core.errors import ConnectorError
from connectors.kinesis.client.client import MessageBuffer, body_error, event_error, parse_event, parse_page
from tests.support.event_streams import damaged, event_message

RECORD = {"SequenceNumber": "7", "Data": "eA==", "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.5}
EVENT = {"Records": [RECORD], "MillisBehindLatest": 0, "ContinuationSequenceNumber": "8"}
HEADERS = {":message-type": "event", ":event-type": "SubscribeToShardEvent"}
NO_NUMBERS = ("", "abc", "-1", "+1", "1_0", " 7", "²", "٣", "1.5", "1" * 129, "1" * 5000)
ODD: list[tuple[str, Any]] = [
    *(("SequenceNumber", text) for text in NO_NUMBERS),
    *(("ApproximateArrivalTimestamp", time) for time in (-1, 1e300, 1e308, "1", 10**30)),
    *(("MillisBehindLatest", number) for number in (-1, 10**30, "0")),
    ("ContinuationSequenceNumber", 8),
    ("PartitionKey", "\ud800"),  # a lone surrogate has no place in a column
    ("PartitionKey", "a\udfff"),
]


def altered(name: str, value: Any, place: int = 0) -> bytes:
    records = [dict(RECORD) for _ in range(3)]
    body: dict[str, Any] = {**EVENT, "Records": records}
    (records[place] if name in RECORD else body)[name] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize(("name", "value"), ODD)
def test_a_value_that_makes_no_sense_is_a_malformed_answer(name: str, value: Any) -> None:
    for place in (0, -1):
        with pytest.raises(ConnectorError, match="KINESIS_ANSWER_MALFORMED"):
            parse_event(altered(name, value, place), "shard")
        if name != "ContinuationSequenceNumber":
            with pytest.raises(ConnectorError, match="KINESIS_ANSWER_MALFORMED"):
                parse_page(altered(name, value, place), 0, "shard")


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_a_place_to_go_on_from_that_is_no_number_is_a_malformed_answer(text: str) -> None:
    with pytest.raises(ConnectorError, match="KINESIS_ANSWER_MALFORMED"):
        parse_event(altered("ContinuationSequenceNumber", text), "shard")
    # One in the middle is a text in a column until its number is needed.
    [_, middle, _] = parse_event(altered("SequenceNumber", text, 1), "shard").records
    with pytest.raises(ConnectorError, match="KINESIS_ANSWER_MALFORMED"):
        _ = middle.number


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, altered("PartitionKey", "CUT").replace(b"CUT", b"\xc3"), b"[]"])
def test_a_body_that_cannot_be_read_is_a_malformed_answer(body: bytes) -> None:
    for parse in (lambda: parse_event(body, "shard"), lambda: parse_page(body, 0, "shard")):
        with pytest.raises(ConnectorError, match="KINESIS_ANSWER_MALFORMED"):
            parse()


def test_numbers_as_the_service_writes_them_are_read() -> None:
    number = "49590338271490256608559692538361571095921575989136588898"
    event = parse_event(altered("SequenceNumber", number), "shard")
    assert (event.records[0].number, event.records[0].arrival_ms, event.continuation) == (int(number), 1500, 8)
    assert parse_page(altered("ApproximateArrivalTimestamp", None), 0, "shard").records[0].arrival_ms == 0
    assert parse_page(altered("ApproximateArrivalTimestamp", 1_764_000_000), 0, "shard").records[0].number == 7


def test_damaged_frames_are_named_errors_or_the_messages_that_they_hold() -> None:
    message, refused = event_message(json.dumps(EVENT).encode(), HEADERS), 0
    [whole] = MessageBuffer().feed(message)
    assert whole.headers == HEADERS
    for _ in range(3000):
        data, buffer = message + damaged(message), MessageBuffer()
        cut = random.randrange(len(data))
        try:
            found = [*buffer.feed(data[:cut]), *buffer.feed(data[cut:])]
        except ConnectorError as error:
            refused += error.code == "KINESIS_EVENT_DAMAGED"
        else:
            assert found[0].payload == whole.payload
    assert refused > 500


@pytest.mark.parametrize("lengths", [(0, 0), (15, 0), (16, 2**32 - 1), (2**32 - 1, 0), (2**31, 2**31), (2**25, 16)])
def test_a_length_without_sense_is_refused_before_its_bytes_come(lengths: tuple[int, int]) -> None:
    with pytest.raises(ConnectorError, match="KINESIS_EVENT_DAMAGED"):
        list(MessageBuffer().feed(event_message(b"x", HEADERS, lengths=lengths)))


ODD_HEADERS = (b"\x0f:exception-type\x04\0\0\0\x07", b"\x0f:exception-type\x06\0\x02\xff\xfe")


@pytest.mark.parametrize("payload", [b"", b"x", b"[" * 100_000, b"[]", b'{"message":7}', b'{"message":["\xc3"]}'])
@pytest.mark.parametrize("kind", ["exception", "error"])
@pytest.mark.parametrize("header", [b"", *ODD_HEADERS])
def test_an_exception_of_any_shape_is_a_named_error(kind: str, payload: bytes, header: bytes) -> None:
    names = header.replace(b"exception-type", b"error-message!") if kind == "error" else header
    data = event_message(payload, {":message-type": kind}, raw_headers=names)
    [message] = MessageBuffer().feed(data)
    error = event_error(message.headers, message.payload, "shard")
    assert error is not None
    assert error.code.startswith("KINESIS_")
    assert body_error(payload, 400, "shard").code == "KINESIS_CALL_FAILED"


def test_a_message_that_is_an_event_is_no_error() -> None:
    assert event_error(HEADERS, b"", "shard") is None
    error = event_error({":message-type": "exception", ":exception-type": "ResourceInUseException"}, b"", "shard")
    assert error is not None
    assert error.code == "KINESIS_IN_USE"
