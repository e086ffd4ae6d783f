"""What the fetchers of subscriptions have to know, and what is done before a query fetches."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.core.errors import AccessDeniedError, SourceGoneError
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.client import ServiceAccount
from connectors.pubsub.source.fetcher import PubSubFetchSettings
from connectors.pubsub.source.subscription import ensure_subscription, require_one_fetcher, require_readable
from connectors.spool.source.connector import Feed, SpoolStart

if TYPE_CHECKING:
    from connectors.pubsub.client.client import SubscriptionInfo
    from connectors.pubsub.options.source import PubSubReadOptions

_log = logging.getLogger(__name__)
_CREATION_POLL_SECONDS = 0.5


def prepared_feeds(options: PubSubReadOptions, start: SpoolStart) -> list[Feed]:
    """Create what is absent and move the subscriptions, as the options ask; return what is fetched of each."""
    alone = [options.alone(subscription) for subscription in options.subscriptions]
    with PubSubClient(options.transport, options.credentials) as client:
        states = [ensure_subscription(client, one, spool_is_new=start.is_new) for one in alone]
        _seek(client, options, start)
    for warning in (warning for state in states for warning in state.warnings):
        _log.warning("%s", warning)
    return [feed_of(one, state.info, state.horizon) for one, state in zip(alone, states, strict=True)]


def external_feeds(options: PubSubReadOptions) -> list[Feed]:
    """Return what is fetched of each subscription outside of the query, which creates and moves them."""
    alone = [options.alone(subscription) for subscription in options.subscriptions]
    return [feed_of(one, _read_once_created(one)) for one in alone]


def _seek(client: PubSubClient, options: PubSubReadOptions, start: SpoolStart) -> None:
    def move(wanted: Mapping[str, Any]) -> None:
        for subscription in options.subscriptions:
            if "snapshot" in wanted:
                client.seek(subscription, snapshot=wanted["snapshot"])
            elif "timestamp" in wanted:
                client.seek(subscription, microseconds=wanted["timestamp"])

    if start.seek(options.seek, move):
        _log.warning(
            "[PUBSUB_SOUGHT] %s was moved as %s say; what it delivers again gives rows again.",
            ", ".join(options.subscriptions),
            ", ".join(f"{name}={value}" for name, value in sorted(options.seek.items())) or "earlier options",
        )


def read_subscription(options: PubSubReadOptions) -> SubscriptionInfo | None:
    """Read a subscription that can be pulled from, and log its warnings; None when the role for that is missing."""
    with PubSubClient(options.transport, options.credentials, outage_rule=options.outage_rule) as client:
        try:
            info = client.get_subscription(options.subscription)
        except AccessDeniedError:
            return None
    require_readable(info)
    for warning in info.warnings:
        _log.warning("%s", warning)
    return info


def feed_of(options: PubSubReadOptions, info: SubscriptionInfo | None, horizon: float = 0.0) -> Feed:
    """Return what is fetched of a subscription; `info` is None if the role to read the subscription is missing."""
    if info is not None:
        require_one_fetcher(options, info)
    # A short deadline redelivers the messages of a crashed fetcher soon; exactly-once delivery asks for 60 s.
    deadline = 60 if info is None or info.exactly_once_delivery else info.ack_deadline_seconds
    credentials = options.credentials
    settings = PubSubFetchSettings(
        subscription=options.subscription,
        transport=options.transport,
        credentials_file=str(credentials) if isinstance(credentials, Path) else None,
        service_account=credentials if isinstance(credentials, ServiceAccount) else None,
        streams=options.streams,
        ack_deadline_seconds=min(max(deadline, 10), 600),
        max_outstanding_bytes=options.max_outstanding_bytes,
        ordered=info is None or info.message_ordering,
        dedup_attribute=options.dedup_attribute or "",
    )
    return Feed(settings.to_json(), horizon, settings.ordered)


def _read_once_created(options: PubSubReadOptions) -> SubscriptionInfo | None:
    """Read a subscription; with ``topicId`` the query creates one that is absent, after its spool."""
    end = time.monotonic() + options.max_reader_age
    while True:
        try:
            return read_subscription(options)
        except SourceGoneError as error:
            may_come = options.topic is not None and error.code == "PUBSUB_SUBSCRIPTION_NOT_FOUND"
            if not may_come or time.monotonic() >= end:
                raise
        time.sleep(_CREATION_POLL_SECONDS)
