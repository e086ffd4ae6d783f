"""Requests of a stream to the object store that its spool is on, and the order of their price.

A query runs through the protocol driver against our own servers for Pub/Sub and S3, and the object store counts what it
is asked, by kind, in a window after a warm-up. Messages come all the time but for the case `idle`. What is printed are
the requests of the window and of a day, and what a day costs at the prices below, to one digit, because nothing more is
true everywhere.

Cases: `idle`, `1s` (a segment each second, the default), `10s` (maxFetchPeriod=10s). Sizes do not matter to the count.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from connectors.pubsub.datasource import PubSubDataSource
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from tests.support.spark_protocol.driver import InProcessWorkers, StreamingQuery

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/orders"
PERIODS = {"idle": "1s", "1s": "1s", "10s": "10s"}
DAY = 86_400
PRICES = {"PUT": 5.0, "LIST": 5.0, "GET": 0.4, "HEAD": 0.4, "DELETE": 0.0}
"""US dollars a million, Amazon S3 Standard in us-east-1 as published in 2025; GCS and Azure are of the same order."""


def count(case: str, seconds: float, folder: Path) -> tuple[Counter[str], int]:
    """The requests of a window, and the batches in it."""
    with PubSubServer(event_limit=0) as server, ObjectStoreServer() as objects:
        server.create_subscription(SUBSCRIPTION, TOPIC)
        options = {
            "subscriptionId": SUBSCRIPTION,
            "endpoint": server.endpoint,
            "spoolLocation": "s3://bench/spool",
            "spoolEndpoint": objects.endpoint,
            "spoolKeyId": "key",
            "spoolSecret": "secret",
            "maxFetchPeriod": PERIODS[case],
        }
        stopping = threading.Event()

        def publish() -> None:
            while not stopping.wait(0.2):
                server.publish(TOPIC, [b"x" * 1000] * 20)

        publisher = threading.Thread(target=publish)
        with StreamingQuery(PubSubDataSource, options, checkpoint=folder / case, workers=InProcessWorkers()) as query:
            server.publish(TOPIC, [b"first"])
            query.run_batch()
            if case != "idle":
                publisher.start()
            # The first snapshots, frees and looks are over then.
            run(query, 12)
            before = objects.counts.copy()
            batches = run(query, seconds)
            found = objects.counts - before
            stopping.set()
            if case != "idle":
                publisher.join()
        return found, batches


def run(query: StreamingQuery, seconds: float) -> int:
    """Trigger for a while; how many batches came of it."""
    end, batches = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        batches += query.run_trigger() is not None
        time.sleep(0.05)
    return batches


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="of each window (default: 40)")
    parser.add_argument("--cases", nargs="*", default=list(PERIODS), choices=list(PERIODS))
    command_line = parser.parse_args()
    print(f"# pubsub_requests\nwindow: {command_line.seconds:g} s\nprices, $ a million: {PRICES}\n")
    for case in command_line.cases:
        with tempfile.TemporaryDirectory() as folder:
            found, batches = count(case, command_line.seconds, Path(folder))
        a_day = {kind: found[kind] * DAY / command_line.seconds for kind in PRICES}
        price = sum(a_day[kind] * PRICES[kind] / 1e6 for kind in PRICES)
        shown = ", ".join(f"{kind} {found[kind]} ({a_day[kind]:,.0f} a day)" for kind in PRICES)
        print(
            f"{case:5} {batches * 60 / command_line.seconds:4.0f} batches a minute: {shown}; about ${price:.1g} a day"
        )


if __name__ == "__main__":
    main()
