"""A Pub/Sub server, a subscription and a query on it by the protocol driver: what most tests of the source need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from google.pubsub_v1.types import pubsub as types

from connectors.pubsub.datasource import PubSubDataSource
from connectors.spool import SpoolStats, stats
from connectors.testing.pubsub.faults.knobs import PubSubKnobs
from tests.support.spark_protocol.driver import Batch, FolderSink, StreamingQuery, TaskWorkers, descendants
from tests.support.spool_writing import access_of
from tests.support.waiting import POLL_SECONDS, wait_for

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/orders"


class PubSubRig:
    """One subscription, one spool, one checkpoint, one sink.

    Args:
        server: any server with its knobs.
        endpoint: where it listens.
        folder: where spool, checkpoint and sink go.
        workers: task workers that tests share.
        spool: the options that say where the spool goes instead.
        subscription: settings of the subscription, as `PubSubKnobs.create_subscription` takes them.
    """

    def __init__(
        self,
        server: PubSubKnobs,
        endpoint: str,
        folder: Path,
        workers: TaskWorkers,
        spool: Mapping[str, str] | None = None,
        **subscription: Any,
    ) -> None:
        self.server = server
        self.endpoint = endpoint
        self.folder = folder
        self.spool = folder / "spool"
        self.spool_options = {"spoolLocation": str(self.spool), **(spool or {})}
        self.checkpoint = folder / "checkpoint"
        self.sink = FolderSink(folder / "sink")
        self.workers = workers
        self.published: list[str] = []
        server.create_subscription(SUBSCRIPTION, TOPIC, **subscription)

    def options(self, **changes: str) -> dict[str, str]:
        """The options of a query; `changes` replaces or adds."""
        return {
            "subscriptionId": SUBSCRIPTION,
            "endpoint": self.endpoint,
            "maxFetchPeriod": "20ms",
            "streams": "2",
            **self.spool_options,
            **changes,
        }

    def query(self, options: Mapping[str, str] | None = None, failpoints: str = "", **arguments: Any) -> StreamingQuery:
        """A query on the rig's checkpoint and sink; start it, or use it as a context manager."""
        return StreamingQuery(
            PubSubDataSource,
            self.options(**(options or {})),
            checkpoint=arguments.pop("checkpoint", self.checkpoint),
            sink=arguments.pop("sink", self.sink),
            workers=self.workers,
            reader_environment={"CONNECTORS_FAILPOINTS": failpoints},
            **({"poll_interval": POLL_SECONDS} | arguments),
        )

    def before_crash(self, failpoints: str, options: dict[str, str]) -> None:
        """Nothing: the fetchers have the failpoints of the query's reader, which starts them."""

    def portion_of(self, messages: int) -> int:
        """How many of these messages to publish at once: few, because the last phase reads what crashes leave."""
        return min(messages, 40)

    def publish(self, count: int, size: int = 20, attributes: Mapping[str, str] | None = None) -> list[str]:
        """Publish messages whose payloads number all that the rig has published; their ids."""
        first = len(self.published)
        payloads = [str(number).zfill(size).encode() for number in range(first, first + count)]
        ids = self.server.publish(TOPIC, payloads, attributes)
        self.published += ids
        return ids

    def run_until_all(self, query: StreamingQuery, timeout: float = 60.0) -> list[Batch]:
        """Run batches until everything that was published is in the sink."""
        if self.sink.rows() >= len(self.published):
            return []
        return query.run_until(lambda _: self.sink.rows() >= len(self.published), timeout)

    def assert_each_once(self) -> None:
        """Every message that was published is in the sink, once, at dense positions."""
        found = self.sink.lost_and_doubled(self.published, "messageId")
        assert not found.lost, f"{len(found.lost)} lost: {found.lost[:5]}"
        assert not found.doubled, f"{len(found.doubled)} doubled: {found.doubled[:5]}"
        assert self.sink.values("offset") == list(range(len(self.published)))

    def stats(self) -> SpoolStats:
        """The counters of the spool."""
        return stats(self.spool_options["spoolLocation"], access_of(self.spool_options))

    def wait_for(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until a condition holds; fails if it does not."""
        wait_for(condition, timeout)

    def delivered(self, count: int) -> Callable[[], bool]:
        """A condition: the spool has had so many deliveries, copies too."""
        return lambda: self.stats().delivered >= count

    def acked(self) -> set[str]:
        """The ids of the messages that are acked."""
        return set(self.server.acked_ids(SUBSCRIPTION))

    def delete_subscription(self) -> None:
        """Delete the subscription."""
        self._call("Subscriber/DeleteSubscription", types.DeleteSubscriptionRequest(subscription=SUBSCRIPTION))

    def delete_topic(self) -> None:
        """Delete the topic."""
        self._call("Publisher/DeleteTopic", types.DeleteTopicRequest(topic=TOPIC))

    def detach_subscription(self) -> None:
        """Detach the subscription from its topic."""
        self._call("Publisher/DetachSubscription", types.DetachSubscriptionRequest(subscription=SUBSCRIPTION))

    def _call(self, method: str, request: Any) -> None:
        with grpc.insecure_channel(self.endpoint) as channel:
            name = f"/google.pubsub.v1.{method}"
            channel.unary_unary(name, request_serializer=type(request).serialize, response_deserializer=bytes)(request)

    @staticmethod
    def fetchers(query: StreamingQuery) -> list[int]:
        """The pids of the fetchers of a running query."""
        return list(descendants(query.reader.pid))
