"""What a worker keeps in memory while it reads: bounded by queued.max.messages.kbytes, whatever passes through it."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.kafka_memory import Reading, run_process
from tests.support.kafka_rig import KafkaRig

BASE = 300 << 20
QUEUE_KB = 16_384
LIMIT = BASE + 2 * QUEUE_KB * 1024


@pytest.mark.usefixtures("both_paths")
def test_large_records_do_not_fill_a_worker(kafka: KafkaRig) -> None:
    topic = kafka.topic(1, max_message_bytes="3000000")
    kafka.send(topic, [os.urandom(1 << 20)] * 150)
    options = kafka.options(topic, kafka__queued__max__messages__kbytes=str(QUEUE_KB))
    seconds = float(os.environ.get("KAFKA_MEMORY_SECONDS", "5"))
    peak, records = run_process(Reading(options, [(topic, 0, 0, 150)], seconds))
    sys.stdout.write(f"peak {peak >> 20} MB, {records} records of 1 MB in {seconds:g} s\n")
    assert records >= 150
    assert peak < LIMIT, f"{peak >> 20} MB"


@pytest.mark.usefixtures("both_paths")
def test_many_ranges_do_not_fill_a_worker(kafka: KafkaRig) -> None:
    topic = kafka.topic(20, max_message_bytes="3000000")
    for partition in range(20):
        kafka.send(topic, [os.urandom(100_000)] * 30, partition)
    options = kafka.options(topic, kafka__queued__max__messages__kbytes=str(QUEUE_KB))
    ranges = [(topic, number % 20, number // 20 * 3, number // 20 * 3 + 3) for number in range(200)]
    peak, records = run_process(Reading(options, ranges, 0))
    sys.stdout.write(f"peak {peak >> 20} MB, 200 ranges\n")
    assert records == 600
    assert peak < LIMIT, f"{peak >> 20} MB"
