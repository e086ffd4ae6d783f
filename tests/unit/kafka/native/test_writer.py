"""How much the fast Kafka sink has under way, and what it says of it."""

from __future__ import annotations

import pytest

from connectors.kafka.native import UnsentLog
from connectors.kafka.native.writer import batching_of

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("settings", "linger"),
    [
        ({}, 200),
        ({"linger.ms": "5"}, 200),
        ({"linger.ms": "0.5"}, 200),
        ({"linger.ms": "300"}, 300),
        ({"linger.ms": "5", "queue.buffering.max.ms": "270"}, 270),
        ({"linger.ms": "5", "delivery.timeout.ms": "40"}, 20),
        ({"linger.ms": "5", "message.timeout.ms": "120000"}, 200),
        ({"linger.ms": "5", "message.timeout.ms": "0"}, 200),
        ({"linger.ms": "60", "message.timeout.ms": "40"}, 60),
        ({"linger.ms": "soon"}, 200),
    ],
)
def test_batches_wait_to_be_full_but_no_longer_than_a_record_may_take(settings: dict[str, str], linger: float) -> None:
    assert batching_of(settings).linger_ms == linger


def test_what_may_be_under_way_grows_with_the_partitions_and_keeps_out_of_a_full_queue() -> None:
    batching = batching_of({"queue.buffering.max.kbytes": "131072", "queue.buffering.max.messages": "500000"})
    assert batching.room(0, 1024) == batching.room(1, 1024) == 4 * MEGABYTE // 1024
    assert batching.room(10, 1000) == 30_000
    assert batching.room(1000, 1024) == 64 * MEGABYTE // 1024
    assert batching.room(1000, 10) == 250_000
    assert batching_of({"batch.size": "2000000"}).room(10, 1000) == 50_000, "half of the client's own 100,000 records"
    assert batching_of({"batch.size": "2000000", "queue.buffering.max.messages": "0"}).room(10, 1000) == 1


def test_a_record_larger_than_the_room_still_goes() -> None:
    assert batching_of({"queue.buffering.max.kbytes": "1"}).room(1, 100_000) == 1


def test_only_records_that_were_taken_or_done_with_are_progress(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = UnsentLog(lambda: now[0])
    # At 10 s one record was done with; at 14 s connections break, which the client reports through its queue.
    for now[0], given, queued in ((0.0, 20, 20), (10.0, 20, 19), (14.0, 20, 21), (14.1, 20, 19), (24.9, 20, 19)):
        log.note(given, queued)
    assert caplog.messages == []
    now[0] = 25.0
    log.note(20, 20)
    assert caplog.messages == ["[WAITING] A call has waited 15 s for brokers to acknowledge 19 records."]


def test_a_call_gets_no_more_than_the_room_leaves_in_the_queue() -> None:
    small = batching_of({"queue.buffering.max.messages": "10"})
    assert small.room(0, 1) + small.portion(1) == 10
    assert batching_of({}).portion(1000) == 1000
    assert batching_of({"queue.buffering.max.messages": "0"}).portion(1) == 1
