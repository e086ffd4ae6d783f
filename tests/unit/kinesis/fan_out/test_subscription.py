"""What a fetcher of Kinesis and the source process say to each other is the same at the other end, or a named error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.kinesis.fan_out.subscription import (
    Deregister,
    Ended,
    Gone,
    Live,
    NotDeregistered,
    Note,
    NotSubscribed,
    Order,
    Refused,
    UpToDate,
    message_to_json,
    note_from_json,
    order_from_json,
    order_name,
)
from connectors.kinesis.offsets import TRIM, after

KEY = ("arn:aws:kinesis:eu-west-1:1:stream/s", "shardId-000000000001")
CONSUMER = f"{KEY[0]}/consumer/c:1"
ORDERS = [Order(KEY, CONSUMER, 17, TRIM), Order(KEY, CONSUMER, 17, after(10**55)), Deregister(CONSUMER)]
NOTES = [
    Live(KEY, live=True),
    Live(KEY, live=False),
    UpToDate(KEY, after(10**55), 1_700_000_000_000),
    Refused(KEY),
    Gone(KEY),
    Ended(KEY),
    NotDeregistered("access denied"),
]


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_an_order_is_the_same_after_its_way_as_json(order: Order | Deregister) -> None:
    assert order_from_json(json.loads(json.dumps(message_to_json(order)))) == order


@pytest.mark.parametrize("note", NOTES, ids=repr)
def test_a_note_is_the_same_after_its_way_as_json(note: Note) -> None:
    assert note_from_json(json.loads(json.dumps(message_to_json(note)))) == note


def test_a_note_of_an_error_brings_its_kind_and_its_text() -> None:
    error = ServiceUnavailableError("KINESIS_UNAVAILABLE", "No answer", "stream s", "Wait.")
    note = note_from_json(json.loads(json.dumps(message_to_json(NotSubscribed(error)))))
    assert isinstance(note, NotSubscribed)
    assert (type(note.error), str(note.error)) == (ServiceUnavailableError, str(error))


def test_an_order_replaces_the_one_for_the_same_shard_and_no_other() -> None:
    names = [order_name(order) for order in ORDERS]
    assert names[0] == names[1] == order_name(KEY)
    assert len({*names, order_name((KEY[0], "shardId-000000000002"))}) == 3


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "Live",
        {"Live": {"key": list(KEY)}},
        {"Live": {"key": list(KEY), "live": 1}},
        {"Live": {"key": list(KEY), "live": True, "more": 1}},
        {"Live": {"key": [KEY[0]], "live": True}},
        {"UpToDate": {"key": list(KEY), "position": {"kind": "x", "number": 1}, "until_ms": 1}},
        {"UpToDate": {"key": list(KEY), "position": {"kind": "AFTER", "number": 1}, "until_ms": 1.5}},
        {"Gone": {"key": list(KEY)}, "Ended": {"key": list(KEY)}},
        {"NotSubscribed": {"error": {"kind": "x"}}},
        {"Unknown": {"key": list(KEY)}},
        message_to_json(ORDERS[0]),
    ],
    ids=str,
)
def test_what_is_no_note_is_a_named_error(value: Any) -> None:
    with pytest.raises(ConnectorError, match=r"^\[FETCHER_MESSAGE_MALFORMED\]"):
        note_from_json(value)


@pytest.mark.parametrize(
    "value", [True, {"Order": {}}, {"Deregister": {"consumer": 1}}, message_to_json(NOTES[0])], ids=str
)
def test_what_is_no_order_is_a_named_error(value: Any) -> None:
    with pytest.raises(ConnectorError, match=r"^\[FETCHER_MESSAGE_MALFORMED\]"):
        order_from_json(value)
