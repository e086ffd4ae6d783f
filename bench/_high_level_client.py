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
    # Its defaults (1,000 messages, 10 callback threads): with 5,000 and 20,000 messages it was slower.
    future = subscriber.subscribe(sys.argv[2], callback=lambda message: message.ack())
    sys.stdin.read()
    future.cancel()
