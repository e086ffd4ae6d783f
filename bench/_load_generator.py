"""Sends events at a steady rate; a process of its own, for bench/latency_under_load.py.

    _load_generator.py kafka ENDPOINT
    _load_generator.py kinesis ENDPOINT

Each line of input is a command, one JSON object: ``topic``, ``rate`` (events a second), ``seconds``. An event has 100
bytes: the time at which it was sent (ns since 1970), a number of its own, and filling. What is due is sent each few
milliseconds whether or not what was sent before has arrived, so a slow system is asked for no less. The report, one
line of JSON: how many were sent, from when to when, and how late this process was itself (p99 and most, ms).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZE = 100
_TICK_SECONDS = {"kafka": 0.002, "kinesis": 0.02}
Send = Callable[[str, list[bytes]], None]


def kafka(endpoint: str) -> tuple[Send, Callable[[], None]]:
    """A producer; what is due goes to one partition after the other."""
    from confluent_kafka import Producer  # noqa: PLC0415 - of this side only

    settings = {"bootstrap.servers": endpoint, "linger.ms": 1, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(settings)
    ticks = 0

    def send(topic: str, values: list[bytes]) -> None:
        nonlocal ticks
        ticks += 1
        entries = [{"value": value} for value in values]
        taken = producer.produce_batch(topic, entries, partition=ticks % 2)
        assert taken == len(entries), "the producer's queue is full"
        producer.poll(0)

    def flush() -> None:
        assert producer.flush(60) == 0, "the broker has not taken everything"

    return send, flush


def kinesis(endpoint: str) -> tuple[Send, Callable[[], None]]:
    """Puts into the server of `connectors.testing`, over all shards."""
    from connectors.testing.kinesis import KinesisControl  # noqa: PLC0415 - of this side only

    server = KinesisControl(endpoint)
    number = 0

    def send(stream: str, values: list[bytes]) -> None:
        nonlocal number
        server.put(stream, [(f"key-{number + each}", value) for each, value in enumerate(values)])
        number += len(values)

    return send, lambda: None


def run(send: Send, topic: str, rate: int, seconds: float, tick: float) -> dict[str, Any]:
    """Send evenly for a while."""
    filling = os.urandom(SIZE - 16)
    first = time.time_ns()  # numbers go on from run to run
    begin, sent, total, late = time.monotonic(), 0, round(rate * seconds), []
    began = time.time_ns()
    while sent < total:
        due_at = begin + (len(late) + 1) * tick
        time.sleep(max(due_at - time.monotonic(), 0))
        late.append(time.monotonic() - due_at)
        due = min(total, int((time.monotonic() - begin) * rate))
        head = time.time_ns().to_bytes(8, "little")
        send(topic, [head + (first + each).to_bytes(8, "little") + filling for each in range(sent, due)])
        sent = due
    p99, most = np.percentile(late, (99, 100)) * 1e3
    return {"messages": sent, "begin": began, "late_p99_ms": float(p99), "late_max_ms": float(most)}


def main(system: str, endpoint: str) -> None:
    """Serve commands until the input ends."""
    send, flush = {"kafka": kafka, "kinesis": kinesis}[system](endpoint)
    for line in sys.stdin:
        command = json.loads(line)
        report = run(send, command["topic"], command["rate"], command["seconds"], _TICK_SECONDS[system])
        flush()
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
