"""How much the fast Kafka sink has under way."""

from __future__ import annotations

import pytest

from connectors.kafka.sink.native_writer import batching_of

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
