"""The other side of bench/pubsub_fetch.py: Google's high-level subscriber, which acks each message as it comes.

Arguments: the endpoint, the subscription. Runs until its standard input ends.
"""

from __future__ import annotations

import os
import sys

from google.cloud import pubsub_v1

if __name__ == "__main__":
    os.environ["PUBSUB_EMULATOR_HOST"] = sys.argv[1]
    subscriber = pubsub_v1.SubscriberClient()
    # More than its default of 1,000 messages: it must not wait for acks to come back.
    flow = pubsub_v1.types.FlowControl(max_messages=20_000, max_bytes=200 << 20)
    future = subscriber.subscribe(sys.argv[2], callback=lambda message: message.ack(), flow_control=flow)
    sys.stdin.read()
    future.cancel()
