"""Pub/Sub in a demonstration: a subscription with message ordering, and a spool in a folder or an object store."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import time
from collections.abc import Sequence
from contextlib import ExitStack

from connectors.cli.demo.count import Message
from connectors.cli.demo.plan import Bound, DemoPlan, Query, Service
from connectors.core.diagnostics import reach
from connectors.core.errors import ConnectorError, OptionError, SpoolError
from connectors.pubsub.client.client import PubSubClient, wire_message
from connectors.pubsub.options.kinds import full_path
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options
from connectors.spool.admin.repair import wipe
from connectors.spool.admin.survey import stats
from connectors.testing.pubsub import PubSubServerProcess, start_server_process

_OUR_PROJECT = "demo"
_REDELIVERED = 0.15
_CALL_SECONDS = 30.0
_LARGEST_PORT = 65535
_LOOK_SECONDS = 0.5

_USD_PER_TIB = 40.0
_BILLED_BYTES = 1000  # of a message, at least
_TRANSFERS = 4  # published, delivered, and delivered again after two kills
_USD_PER_STORE_CALL = 5e-6
_STORE_CALLS_PER_SECOND = 20


class PubSub(Service):
    """A server of our own that redelivers after acks; an emulator; or a project of Google's service."""

    def __init__(self, plan: DemoPlan) -> None:
        super().__init__(plan)
        self._server: PubSubServerProcess | None = None
        project = self.target.account or _OUR_PROJECT
        self._topic = full_path(project, "topics", self.name)
        self._subscription = full_path(project, "subscriptions", self.target.subscription or self.name)
        self._spool = str(plan.folder / "spool")
        if self.target.spool:
            self._spool = f"{self.target.spool.rstrip('/')}/{self.name}"
        self._raw: dict[str, str] = {}
        self._duplicates, self._look_at = 0, 0.0

    @property
    def server(self) -> str:
        if self._server is not None or self.target.is_ours:
            return "connectors.testing.pubsub"
        return "an emulator by its address" if self.target.endpoint else "Google Cloud Pub/Sub"

    def check(self) -> None:
        if self.target.endpoint is not None:
            host, _, port = self.target.endpoint.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) <= _LARGEST_PORT:
                raise OptionError("DEMO_ENDPOINT", "It is not HOST:PORT", self.target.endpoint)
        if not self.target.is_ours:
            self._use(self.target.endpoint)

    def _use(self, endpoint: str | None) -> PubSubReadOptions:
        self._raw = {
            "maxRecordsPerTrigger": self.plan.batch_limit,
            **({"endpoint": endpoint} if endpoint else {}),
            **self.target.options,
            "subscriptionId": self._subscription,
            "spoolLocation": self._spool,
        }
        return parse_read_options(self._raw, os.environ, streaming=True)

    def creates(self) -> list[str]:
        spool = [f"spool {self._spool}"] if self.target.spool else []
        if self.target.subscription:
            return spool
        return [f"topic {self._topic}", f"subscription {self._subscription}", *spool]

    def rights(self) -> list[str]:
        spool = [f"read, write, list and delete objects below {self._spool}"] if self.target.spool else []
        subscriptions = "pubsub.subscriptions.get, pubsub.subscriptions.consume"
        if self.target.subscription:
            reading = f"{subscriptions} on it (roles/pubsub.subscriber with roles/pubsub.viewer)"
            return [reading, "pubsub.topics.publish on its topic (roles/pubsub.publisher)", *spool]
        topics = ", ".join(f"pubsub.topics.{right}" for right in ("create", "delete", "publish", "attachSubscription"))
        more = "pubsub.subscriptions.create, pubsub.subscriptions.delete"
        return [f"{topics}, {subscriptions}, {more} in the project (roles/pubsub.editor has them)", *spool]

    def bound(self) -> Bound:
        is_billed = self.target.account is not None and self.target.endpoint is None
        store = 60 * self.plan.minutes * _STORE_CALLS_PER_SECOND * _USD_PER_STORE_CALL if self.target.spool else 0.0
        if not is_billed and not store:
            return super().bound()
        tib = self.plan.messages * _BILLED_BYTES * _TRANSFERS / 2**40
        assumes = (
            f"{_USD_PER_TIB:g} USD per TiB, {_BILLED_BYTES} bytes billed per message, {_TRANSFERS} transfers of each; "
            f"an object store: {_STORE_CALLS_PER_SECOND} calls a second, {_USD_PER_STORE_CALL * 1e6:g} USD per million"
        )
        return Bound(tib * _USD_PER_TIB * is_billed + store, assumes)

    def open(self, stack: ExitStack) -> None:
        endpoint = self.target.endpoint
        if self.target.is_ours:
            self._server = stack.enter_context(start_server_process(seed=self.plan.seed))
            self._server.redeliver_acked(_REDELIVERED, delay=1.0, to_other_stream=True)
            endpoint = self._server.endpoint
        elif endpoint is not None:
            # The client of gRPC would wait long, and then not say why.
            host, _, port = endpoint.rpartition(":")
            reach(host.strip("[]"), int(port))
        options = self._use(endpoint)
        if self._server is None:
            # Duplicates are made by the client: a fetcher dies between the durable write and the ack. It ends in good
            # order, and not by a signal: an emulator goes on to serve the streams of a client that is gone.
            failure = f"raise_once:{self.plan.folder / 'fetcher-died'}:{errno.EIO}:4"
            self.failpoints = f"fetcher/fetch.after_publish_before_ack={failure}"
        self._client = stack.enter_context(PubSubClient(options.transport, options.credentials))
        self._access = options.store_access
        # Google's emulator delivered later messages of a key before redelivered ones; whose fault it is, is open.
        self.ordered = self.target.endpoint is None
        if self.target.spool:
            self.removing(stack, f"spool {self._spool}", lambda: wipe(self._spool, self._access))
        if self.target.subscription:
            subscription = self._client.get_subscription(self._subscription)
            self._topic, self.ordered = subscription.topic, self.ordered and subscription.message_ordering
            self.notes.append("The subscription was given: messages of others in it were read and acknowledged, too.")
            return
        self.removing(stack, f"topic {self._topic}", lambda: self._client.delete_topic(self._topic))
        self._client.create_topic(self._topic)
        remove = f"subscription {self._subscription}"
        self.removing(stack, remove, lambda: self._client.delete_subscription(self._subscription))
        self._client.create_subscription(self._subscription, self._topic, ordering=True)

    def queries(self) -> list[Query]:
        columns = ("CAST(payload AS STRING)", "subscription", "CAST(offset AS STRING)")
        return [Query("spool", "pubsub", self._raw, columns)]

    def publish(self, messages: Sequence[Message]) -> None:
        self.repeat(self._publish, messages)

    def _publish(self, messages: Sequence[Message]) -> tuple[list[Message], ConnectorError | None]:
        """Publish one request per ordering key, all at the same time."""
        requests: dict[str, list[Message]] = {}
        for message in messages:
            requests.setdefault(message.key, []).append(message)
        ends: queue.SimpleQueue[tuple[str, ConnectorError | None]] = queue.SimpleQueue()
        for key, portion in requests.items():
            request = wire_message("PublishRequest")(topic=self._topic)
            for message in portion:
                request.messages.add(data=message.encode(self.plan.run), ordering_key=key)
            self._client.publish(
                self._topic,
                request.SerializeToString(),
                timeout_seconds=_CALL_SECONDS,
                done=lambda error, key=key: ends.put((key, error)),  # type: ignore[misc]
            )
        results = dict(ends.get(timeout=2 * _CALL_SECONDS) for _ in requests)
        failed = [message for message in messages if results[message.key] is not None]
        return failed, next(filter(None, results.values()), None)

    def delivered_again(self) -> int | None:
        if time.monotonic() >= self._look_at:
            with contextlib.suppress(SpoolError):
                self._duplicates = stats(self._spool, self._access).duplicates
            self._look_at = time.monotonic() + _LOOK_SECONDS
        return self._duplicates
