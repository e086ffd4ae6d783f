"""The threads of a fetcher that ack and keep leases: what nobody expected is told, and nobody waits for them then."""

from __future__ import annotations

import threading
import time

import pyarrow as pa

from connectors.pubsub.client.errors import AckFailures
from connectors.pubsub.source.acks import AckSender, Deadlines, Received
from connectors.pubsub.source.records import make_decoder
from tests.support.waiting import wait_for

SUBSCRIPTION = "projects/project/subscriptions/subscription"


class Service:
    """Takes requests; fails for the first ones as nothing of ours does."""

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.requests: list[bytes] = []
        self.faults: list[BaseException] = []

    def send(self, request: bytes, _timeout: float) -> AckFailures:
        self.requests.append(request)
        if len(self.requests) <= self.failing:
            raise KeyError("unexpected")
        return AckFailures()


def block(*ack_ids: str) -> Received:
    return Received(b"", pa.array(ack_ids, pa.string()), time.monotonic(), 10.0)


def test_an_unexpected_error_of_every_ack_is_reported_and_no_caller_waits_for_ever() -> None:
    service = Service(failing=100)
    sender = AckSender(SUBSCRIPTION, service.send, service.faults.append)

    def acknowledge() -> None:
        for number in range(100):
            sender.acknowledge(pa.array([str(number)]))

    caller = threading.Thread(target=acknowledge, daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive()
    sender.close(time.monotonic() + 20)
    assert [type(each) for each in service.faults] == [KeyError] * 100
    assert sender.counters["ack_requests_failed"] == 100


def test_acks_after_an_unexpected_error_are_sent() -> None:
    service = Service(failing=8)
    sender = AckSender(SUBSCRIPTION, service.send, service.faults.append)
    for number in range(20):
        sender.acknowledge(pa.array([str(number)]))
    sender.close(time.monotonic() + 20)
    assert (sender.counters["ack_requests"], sender.counters["ack_requests_failed"]) == (12, 8)


def test_an_unexpected_error_of_a_nack_is_reported_and_the_next_nack_is_sent() -> None:
    service = Service(failing=1)
    deadlines = Deadlines(
        SUBSCRIPTION, 10, service.send, make_decoder(plain=True), ordered=False, fault=service.faults.append
    )
    for ack_id in ("first", "second"):
        deadlines.nack([block(ack_id)])
        assert deadlines.wait_until_nacked(20)
    deadlines.close(time.monotonic() + 20)
    assert [type(each) for each in service.faults] == [KeyError]
    assert [b"second" in request for request in service.requests] == [False, True]
    assert deadlines.counters["nacks"] == 1


def test_an_unexpected_error_of_an_extension_is_reported_and_it_is_tried_again() -> None:
    service = Service(failing=1)
    now = [0.0]
    deadlines = Deadlines(
        SUBSCRIPTION,
        10,
        service.send,
        make_decoder(plain=True),
        ordered=False,
        fault=service.faults.append,
        clock=lambda: now[0],
    )
    held = deadlines.merge([deadlines.receive(b"")], pa.array(["held"]))
    now[0] = 6.0
    wait_for(lambda: deadlines.counters["lease_extensions"] == 1)
    deadlines.release(held)
    deadlines.close(time.monotonic() + 20)
    assert [type(each) for each in service.faults] == [KeyError]


def test_a_close_ends_an_extension_that_is_under_way_and_is_no_fault() -> None:
    released = threading.Event()
    sent, faults = [], []
    now = [0.0]

    def send(request: bytes, _timeout: float) -> AckFailures:
        sent.append(request)
        assert released.wait(20)
        return AckFailures()

    before = set(threading.enumerate())
    deadlines = Deadlines(
        SUBSCRIPTION, 10, send, make_decoder(plain=True), ordered=False, fault=faults.append, clock=lambda: now[0]
    )
    # More requests than are sent at a time.
    deadlines.merge([deadlines.receive(b"")], pa.array([f"{number:0200}" for number in range(50_000)]))
    now[0] = 6.0
    wait_for(lambda: len(sent) == 8)
    deadlines.close(time.monotonic() + 20)
    released.set()
    wait_for(lambda: set(threading.enumerate()) <= before)
    assert (len(sent), faults) == (8, [])
    assert deadlines.counters["lease_extensions"] == 0
