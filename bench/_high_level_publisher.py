"""The other side of bench/pubsub_write.py: Google's high-level publisher client.

Arguments: the endpoint, the topic, bytes of a payload, rows, ordering keys (0 for none). Prints the messages per
second, from the first call to the last answer.
"""

from __future__ import annotations

import os
import sys
import time

from google.cloud import pubsub_v1

if __name__ == "__main__":
    endpoint, topic = sys.argv[1:3]
    size, rows, keys = (int(text) for text in sys.argv[3:])
    os.environ["PUBSUB_EMULATOR_HOST"] = endpoint
    publisher = pubsub_v1.PublisherClient(
        # As many messages a request as ours sends; with the defaults (100 messages, 1 MB) it was slower.
        pubsub_v1.types.BatchSettings(max_messages=1000, max_bytes=9_000_000, max_latency=0.05),
        pubsub_v1.types.PublisherOptions(enable_message_ordering=keys > 0),
    )
    payload = os.urandom(size)
    names = [f"key-{number}" for number in range(keys)] or [""]
    publisher.publish(topic, payload).result()
    begin = time.perf_counter()
    futures = [
        publisher.publish(topic, payload, names[number % len(names)], spark_uid=f"query/0/0/{number}")
        for number in range(rows)
    ]
    for future in futures:
        future.result()
    print(rows / (time.perf_counter() - begin))
