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
from connectors.cli.demo.plan import DemoPlan, Query, Service
from connectors.core.diagnostics import reach
from connectors.core.errors import ConnectorError, OptionError, SpoolError
from connectors.pubsub.client.client import PubSubClient, wire_message
from connectors.pubsub.options.kinds import full_path
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options
from connectors.spool.admin.repair import wipe
from connectors.spool.admin.survey import stats
from connectors.testing.pubsub import start_server_process

_OUR_PROJECT = "demo"
_REDELIVERED = 0.15
_CALL_SECONDS = 30.0
_LARGEST_PORT = 65535
_LOOK_SECONDS = 0.5


class PubSub(Service):
    """A server of our own that redelivers after acks; an emulator; or a project of Google's service."""

    def __init__(self, plan: DemoPlan) -> None:
        super().__init__(plan)
        project = self.target.account or _OUR_PROJECT
        existing = self.target.existing
        self._topic = full_path(project, "topics", self.name)
        self._subscription = full_path(project, "subscriptions", existing[0] if existing else self.name)
        spool = self.target.spool
        self._spool = f"{spool.rstrip('/')}/{self.name}" if spool else str(plan.folder / "spool")
        self.duplicates, self._look_at = 0, 0.0
        # After a stream ends, Google's emulator sends later messages of a key before those that were not acked:
        # docs/faults/accounts.md has the figures of a plain client.
        self.ordered = self.target.endpoint is None
        subscriptions = "pubsub.subscriptions.get, pubsub.subscriptions.consume"
        self.creates = [f"topic {self._topic}", f"subscription {self._subscription}"]
        topics = ", ".join(f"pubsub.topics.{right}" for right in ("create", "delete", "publish", "attachSubscription"))
        more = f"{subscriptions}, pubsub.subscriptions.create, pubsub.subscriptions.delete"
        self.rights = [f"{topics}, {more} in the project (roles/pubsub.editor has them)"]
        if existing:
            self.creates = []
            reading = f"{subscriptions} on it (roles/pubsub.subscriber with roles/pubsub.viewer)"
            self.rights = [reading, "pubsub.topics.publish on its topic (roles/pubsub.publisher)"]
        if spool:
            self.creates.append(f"spool {self._spool}")
            self.rights.append(f"read, write, list and delete objects below {self._spool}")
        if not self.target.is_ours:
            self._use(self.target.endpoint)

    def _use(self, endpoint: str | None) -> PubSubReadOptions:
        if endpoint is not None:
            host, _, port = endpoint.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) <= _LARGEST_PORT:
                raise OptionError("DEMO_ENDPOINT", "The endpoint is not HOST:PORT", endpoint)
        self._raw = {
            "maxRecordsPerTrigger": self.plan.batch_limit,
            **({"endpoint": endpoint} if endpoint else {}),
            **self.target.options,
            "subscriptionId": self._subscription,
            "spoolLocation": self._spool,
        }
        return parse_read_options(self._raw, os.environ, streaming=True)

    def open(self, stack: ExitStack) -> None:
        endpoint = self.target.endpoint
        if endpoint is not None:
            host, _, port = endpoint.rpartition(":")  # the client of gRPC would wait long, and then not say why
            reach(host.strip("[]"), int(port))
        if self.target.is_ours:
            server = stack.enter_context(start_server_process(seed=self.plan.seed))
            server.redeliver_acked(_REDELIVERED, delay=1.0, to_other_stream=True)
            endpoint = server.endpoint
        else:
            # Duplicates are made by the client: a fetcher dies between the durable write and the ack. It ends in good
            # order, and not by a signal: an emulator goes on to serve the streams of a client that is gone.
            failure = f"raise_once:{self.plan.folder / 'fetcher-died'}:{errno.EIO}:2"
            self.failpoints = f"fetcher/fetch.after_publish_before_ack={failure}"
        options = self._use(endpoint)
        client = self._client = stack.enter_context(PubSubClient(options.transport, options.credentials))
        self._access = options.store_access
        if self.target.spool:
            self.removing(stack, f"spool {self._spool}", lambda: wipe(self._spool, self._access))
        if self.target.existing:
            subscription = client.get_subscription(self._subscription)
            self._topic, self.ordered = subscription.topic, self.ordered and subscription.message_ordering
            self.notes.append("The subscription was given: messages of others in it were read and acknowledged, too.")
            return
        self.removing(stack, self.creates[0], lambda: client.delete_topic(self._topic))
        client.create_topic(self._topic)
        self.removing(stack, self.creates[1], lambda: client.delete_subscription(self._subscription))
        client.create_subscription(self._subscription, self._topic, ordering=True)

    def queries(self) -> list[Query]:
        columns = ("CAST(payload AS STRING)", "subscription", "CAST(offset AS STRING)")
        return [Query("spool", "pubsub", self._raw, columns)]

    def publish(self, messages: Sequence[Message]) -> None:
        self.repeat(self._publish, messages)

    def _publish(self, messages: Sequence[Message]) -> tuple[list[Message], ConnectorError | None]:
        """Publish one request per ordering key, all at the same time."""
        results: queue.SimpleQueue[tuple[str, ConnectorError | None]] = queue.SimpleQueue()
        keys = {message.key for message in messages}
        for key in keys:
            request = wire_message("PublishRequest")(topic=self._topic)
            for message in messages:
                if message.key == key:
                    request.messages.add(data=message.encode(self.plan.run), ordering_key=key)
            self._client.publish(
                self._topic,
                request.SerializeToString(),
                timeout_seconds=_CALL_SECONDS,
                done=lambda error, key=key: results.put((key, error)),  # type: ignore[misc]
            )
        errors = dict(results.get(timeout=2 * _CALL_SECONDS) for _ in keys)
        failed = [message for message in messages if errors[message.key] is not None]
        return failed, next(filter(None, errors.values()), None)

    def update(self) -> None:
        if time.monotonic() >= self._look_at:
            with contextlib.suppress(SpoolError):
                self.duplicates = stats(self._spool, self._access).duplicates
            self._look_at = time.monotonic() + _LOOK_SECONDS
