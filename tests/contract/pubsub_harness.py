"""The harness of the Pub/Sub source."""

from __future__ import annotations

import contextlib
import functools
import itertools
from pathlib import Path

from connectors.testing.pubsub import PubSubServerProcess, start_server_process
from tests.contract.harness import SourceHarness

_numbers = itertools.count()


@functools.cache
def _server() -> PubSubServerProcess:
    """One server for all tests; it ends with this process. A process of its own, so that it can be made to stall."""
    return start_server_process()


class PubSubHarness(SourceHarness):
    """A subscription of our own server."""

    name = "pubsub"
    source = "connectors.pubsub.datasource:PubSubDataSource"
    key = "messageId"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        number = next(_numbers)
        self.topic = f"projects/shop/topics/orders-{number}"
        self.subscription = f"projects/shop/subscriptions/orders-{number}"
        self.server = _server()
        self.server.create_subscription(self.subscription, self.topic)

    def options(self) -> dict[str, str]:
        return {
            "subscriptionId": self.subscription,
            "endpoint": self.server.endpoint,
            "spoolLocation": str(self.folder / "spool"),
            "maxFetchPeriod": "20ms",
            "partitionBytes": "12",
            "availableNowQuiet": "4s",
            "streams": "1",
        }

    def latest_options(self) -> dict[str, str]:
        return self.options() | {"startingPosition": "latest"}

    def limited_options(self, rows: int) -> dict[str, str]:
        return self.options() | {"maxRecordsPerTrigger": str(rows)}

    def publish(self, count: int) -> list[str]:
        return self.server.publish(self.topic, [b"four"] * count)

    def stalled(self) -> contextlib.AbstractContextManager[None]:
        return self.server.process.stalled()
