from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from google.pubsub_v1.types import AcknowledgeRequest, ModifyAckDeadlineRequest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connectors.pubsub.client.wire import (
    MAX_ACK_IDS,
    MAX_REQUEST_BYTES,
    acknowledge_requests,
    modify_ack_deadline_requests,
)

SUBSCRIPTION = "projects/shop/subscriptions/orders"
SERVICE_LIMIT = 512 * 1024

Acknowledge = AcknowledgeRequest.pb()
ModifyAckDeadline = ModifyAckDeadlineRequest.pb()


def acked(requests: Iterator[bytes]) -> list[list[str]]:
    return [list(Acknowledge.FromString(request).ack_ids) for request in requests]


def by_protobuf(ack_ids: list[str]) -> list[bytes]:
    return [Acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids).SerializeToString()] if ack_ids else []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=300), max_size=20), st.sampled_from([pa.string(), pa.binary()]))
@example(["", "a" * 127, "b" * 128, "c" * 16_383, "d" * 16_384, "\u00e9" * 64], pa.string())
@example([], pa.string())
def test_acknowledge_is_byte_for_byte_what_protobuf_writes(ack_ids: list[str], kind: pa.DataType) -> None:
    column = pa.array([each.encode() for each in ack_ids], pa.binary()).cast(kind)
    assert list(acknowledge_requests(SUBSCRIPTION, column)) == by_protobuf(ack_ids)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=300), min_size=1, max_size=20), st.integers(0, 600), st.text(max_size=200))
def test_modify_ack_deadline_is_byte_for_byte_what_protobuf_writes(
    ack_ids: list[str], seconds: int, subscription: str
) -> None:
    expected = ModifyAckDeadline(subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds)
    (request,) = modify_ack_deadline_requests(subscription, pa.array(ack_ids, pa.string()), seconds)
    if subscription:
        assert request == expected.SerializeToString()
    assert ModifyAckDeadline.FromString(request) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=200), max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_slice_of_a_column_gives_its_own_ids_only(ack_ids: list[str], start: int, length: int) -> None:
    column = pa.array(ack_ids, pa.string()).slice(min(start, len(ack_ids)), length)
    assert list(acknowledge_requests(SUBSCRIPTION, column)) == by_protobuf(ack_ids[start : start + length])


@pytest.mark.parametrize("length", [0, 1, 17, 170, 184, 220, 1000])
@pytest.mark.parametrize("count", [1, MAX_ACK_IDS - 1, MAX_ACK_IDS, MAX_ACK_IDS + 1, 3 * MAX_ACK_IDS + 7])
def test_requests_stay_within_the_limits_and_name_each_id_once_in_order(length: int, count: int) -> None:
    ack_ids = [str(number).rjust(length, "x")[:length] for number in range(count)]
    for make in (
        acknowledge_requests,
        lambda name, ids: modify_ack_deadline_requests(name, ids, 600),
    ):
        requests = list(make(SUBSCRIPTION, pa.array(ack_ids)))
        assert max(map(len, requests)) <= MAX_REQUEST_BYTES < SERVICE_LIMIT
        kind = Acknowledge if make is acknowledge_requests else ModifyAckDeadline
        parsed = [list(kind.FromString(request).ack_ids) for request in requests]
        assert [each for ids in parsed for each in ids] == ack_ids
        assert max(map(len, parsed)) <= MAX_ACK_IDS


def test_usual_ids_fill_a_request_to_the_limit_of_ids() -> None:
    ack_ids = pa.array(["x" * 190] * MAX_ACK_IDS)
    assert [len(ids) for ids in acked(acknowledge_requests(SUBSCRIPTION, ack_ids))] == [MAX_ACK_IDS]


def test_ids_of_mixed_lengths_are_cut_by_bytes() -> None:
    ack_ids = [chr(97 + number % 26) * (number * 37 % 900) for number in range(6000)]
    requests = list(acknowledge_requests(SUBSCRIPTION, pa.array(ack_ids)))
    parsed = acked(iter(requests))
    assert [each for ids in parsed for each in ids] == ack_ids
    assert max(map(len, requests)) <= MAX_REQUEST_BYTES
    # Each request but the last is full: the first id of the next would not have fitted.
    for request, following in zip(requests[:-1], parsed[1:], strict=True):
        assert len(request) + len(following[0]) + 3 > MAX_REQUEST_BYTES


def test_id_larger_than_a_request_stands_alone() -> None:
    large = "z" * (MAX_REQUEST_BYTES + 1)
    assert acked(acknowledge_requests(SUBSCRIPTION, pa.array(["a", large, "b"]))) == [["a"], [large], ["b"]]


def test_column_of_a_whole_segment_is_encoded_in_runs() -> None:
    count = 20 * MAX_ACK_IDS + 3
    column = pa.array([f"{number:0170d}" for number in range(count)])
    parsed = acked(acknowledge_requests(SUBSCRIPTION, column))
    assert [len(ids) for ids in parsed] == [MAX_ACK_IDS] * 20 + [3]
    assert [int(each) for ids in parsed for each in ids] == list(range(count))


@pytest.mark.parametrize(
    "make",
    [acknowledge_requests, lambda name, ids: modify_ack_deadline_requests(name, ids, 0)],
    ids=["acknowledge", "modify_ack_deadline"],
)
def test_missing_id_is_refused_before_the_first_request(make: Callable[[str, pa.Array], Iterator[bytes]]) -> None:
    with pytest.raises(ValueError, match="1 of 3 ack ids are NULL"):
        make(SUBSCRIPTION, pa.array(["a", None, "b"]))


@pytest.mark.parametrize("seconds", [-1, 601])
def test_deadline_that_the_service_does_not_take_is_refused(seconds: int) -> None:
    with pytest.raises(ValueError, match=f"deadline of {seconds} seconds"):
        modify_ack_deadline_requests(SUBSCRIPTION, pa.array(["a"]), seconds)
