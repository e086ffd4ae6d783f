"""What is beside the query of bench/pubsub_stream.py when latency is measured; each a process of its own.

    _pubsub_latency.py publish ENDPOINT TOPIC RATE SIZE       sends evenly, each message with the time it was sent
    _pubsub_latency.py subscribe ENDPOINT SUBSCRIPTION        Google's high-level client, which acks as messages come

The first eight bytes of a payload are `time.monotonic_ns` of the publisher, little-endian: on Linux that is one clock
for all processes of a machine. The subscriber prints one line of JSON a tenth of a second: the time (ns, the same
clock), and the time since each message was sent (us). Both run until their standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

SENT_BYTES = 8
TICK_SECONDS = 0.01
_REPORT_SECONDS = 0.1
_MOST_WAITING = 1000
_output = threading.Lock()


def show(report: Mapping[str, Any]) -> None:
    """Print a report as one line of JSON."""
    with _output:
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


def publish(endpoint: str, topic: str, rate: int, size: int) -> None:
    """Send `rate` messages of `size` bytes a second, in one request each hundredth of a second, until input ends.

    As many as Google's publisher, which gathers for that long, sends at this rate. A request does not wait for the
    one before: a slow server would otherwise be asked less, and look fast.
    """
    import grpc  # noqa: PLC0415 - the query imports this module for its constants
    from google.pubsub_v1.types import pubsub as types  # noqa: PLC0415

    filling = os.urandom(size - SENT_BYTES)
    each = round(rate * TICK_SECONDS)
    waiting = threading.Semaphore(_MOST_WAITING)
    ended = _input_end()
    with grpc.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(
            "/google.pubsub.v1.Publisher/Publish",
            request_serializer=types.PublishRequest.serialize,
            response_deserializer=types.PublishResponse.pb().FromString,
        )
        due = time.monotonic()
        while not ended.wait(max(due - time.monotonic(), 0)):
            waiting.acquire()
            payload = time.monotonic_ns().to_bytes(SENT_BYTES, "little") + filling
            request = types.PublishRequest(topic=topic, messages=[types.PubsubMessage(data=payload)] * each)
            call.future(request).add_done_callback(lambda _: waiting.release())
            due += TICK_SECONDS


def subscribe(endpoint: str, subscription: str) -> None:
    """Receive by the high-level client, ack, and print the latencies, until input ends."""
    os.environ["PUBSUB_EMULATOR_HOST"] = endpoint
    from google.cloud import pubsub_v1  # noqa: PLC0415 - the query imports this module for its constants

    found: list[int] = []

    def take(message: Any) -> None:
        found.append((time.monotonic_ns() - int.from_bytes(message.data[:SENT_BYTES], "little")) // 1000)
        message.ack()

    ended = _input_end()
    future = pubsub_v1.SubscriberClient().subscribe(subscription, callback=take)
    while not ended.wait(_REPORT_SECONDS):
        count = len(found)
        show({"ended": time.monotonic_ns(), "latencies": found[:count]})
        del found[:count]
    future.cancel()


def _input_end() -> threading.Event:
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended


if __name__ == "__main__":
    programs: dict[str, Callable[[], None]] = {
        "publish": lambda: publish(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])),
        "subscribe": lambda: subscribe(sys.argv[2], sys.argv[3]),
    }
    programs[sys.argv[1]]()
