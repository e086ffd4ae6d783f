"""What the source process of a query starts: the spool's stream, and the fetchers of its subscription."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.core.errors import AccessDeniedError, OptionError
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.credentials import ServiceAccount
from connectors.pubsub.options.source import FetchMode, SegmentCompression
from connectors.pubsub.source.fetcher import TARGET, PubSubFetchSettings
from connectors.pubsub.source.subscription import ensure_subscription, require_readable
from connectors.spool.fetching.external import ExternalFetching
from connectors.spool.fetching.group import FetcherGroup, FetcherGroups
from connectors.spool.fetching.target import FetchPlan
from connectors.spool.stream.background import Started
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream, StreamSettings
from connectors.spool.stream.seek import carry_out_seek

if TYPE_CHECKING:
    from connectors.pubsub.client.client import SubscriptionInfo
    from connectors.pubsub.options.source import PubSubReadOptions
    from connectors.pubsub.source.subscription import SubscriptionState
    from connectors.spool.ledger.identity import SpoolIdentity
    from connectors.spool.ledger.ledger import Ledger

__all__ = ["fetch_plan", "fetcher_count", "look_at", "open_stream"]

_log = logging.getLogger(__name__)
_SHORTEST_DEADLINE = 10
_LONG_DEADLINE = 60
_LONGEST_DEADLINE = 600


def open_stream(options: PubSubReadOptions) -> SpoolStream:
    """Open the spool of a query and start its fetchers, in the background.

    Raises:
        SpoolError: the spool cannot be used; see `connectors.spool.stream.micro_batch.SpoolStream`.
    """
    settings = StreamSettings(
        root=str(options.spool_folder),
        connector="pubsub",
        sources=options.subscriptions,
        fail_on_data_loss=options.fail_on_data_loss,
        starting_position=str(options.starting_position),
        partition_bytes=options.partition_bytes,
        max_partitions=options.max_partitions,
        max_bytes_per_trigger=options.max_bytes_per_trigger,
        max_spool_bytes=options.max_spool_bytes,
        publish_period=options.max_fetch_period,
        start_timeout=options.start_timeout,
        available_now_quiet=options.available_now_quiet,
        available_now_max_wait=options.available_now_max_wait,
        by_message_id=options.dedup_attribute is None,
        access=options.store_access,
        take_over=options.take_over,
        compaction=CompactionSettings(retention=options.spool_retention, max_id_bytes=options.max_id_index_bytes),
    )
    if options.spool_location is None:
        _log.warning(
            "[SPOOL_EPHEMERAL] The spool is %s: messages that were acked die with this disk. Give spoolLocation for "
            "data that matters.",
            options.spool_folder,
        )

    def start_fetching(ledger: Ledger, wake: Callable[[], None]) -> Started:
        return _start_fetching(options, ledger, wake)

    return SpoolStream(settings, start_fetching)


def _start_fetching(options: PubSubReadOptions, ledger: Ledger, wake: Callable[[], None]) -> Started:
    """Look at the subscriptions, make them if that is asked for, and start the fetchers."""
    is_new = ledger.state.ordinal == 0
    alone = [options.alone(subscription) for subscription in options.subscriptions]
    with PubSubClient(options.transport, options.credentials) as client:
        found = [ensure_subscription(client, one, spool_is_new=is_new) for one in alone]
        _seek(client, options, ledger)
    horizon = max(state.horizon.seconds for state in found)
    for warning in (warning for state in found for warning in state.warnings):
        _log.warning("%s", warning)
    if options.fetch is FetchMode.EXTERNAL:
        return Started(ExternalFetching(ledger, options.max_reader_age), horizon)
    groups = FetcherGroups()
    for source, (one, state) in enumerate(zip(alone, found, strict=True)):
        groups.add(_group(one, state, source, ledger, wake, groups))
    groups.start()
    return Started(groups, horizon)


def _group(
    options: PubSubReadOptions,
    found: SubscriptionState,
    source: int,
    ledger: Ledger,
    wake: Callable[[], None],
    groups: FetcherGroups,
) -> FetcherGroup:
    """The fetchers of one subscription."""
    ordered = found.info is None or found.info.message_ordering

    def may_start() -> bool:
        return not ordered or ledger.earlier_fetchers_done(groups.running_beside(group))

    group = FetcherGroup(
        replace(fetch_plan(options, found.info, ledger.identity), source=source),
        fetcher_count(options, found.info),
        on_published=lambda _fetcher, _number: wake(),
        may_start=may_start,
        free_bytes=0,
    )
    return group


def _seek(client: PubSubClient, options: PubSubReadOptions, ledger: Ledger) -> None:
    """Move the subscription if the options ask for it and that is not done."""

    def move(wanted: Mapping[str, Any]) -> None:
        for subscription in options.subscriptions:
            if "snapshot" in wanted:
                client.seek(subscription, snapshot=wanted["snapshot"])
            elif "timestamp" in wanted:
                client.seek(subscription, microseconds=wanted["timestamp"])

    if carry_out_seek(ledger, options.seek, move):
        _log.warning(
            "[PUBSUB_SOUGHT] %s was moved as %s say; what it delivers again gives rows again.",
            ", ".join(options.subscriptions),
            ", ".join(f"{name}={value}" for name, value in sorted(options.seek.items())) or "earlier options",
        )


def fetcher_count(options: PubSubReadOptions, info: SubscriptionInfo | None) -> int:
    """How many processes fetch a subscription.

    One process keeps the order of a subscription (rule R3); more are refused, or cut down when nothing is known.

    Raises:
        OptionError: more than one fetcher was asked for on a subscription with message ordering.
    """
    if options.fetchers == 1 or (info is not None and not info.message_ordering):
        return options.fetchers
    if info is None:
        _log.warning(
            "[PUBSUB_ONE_FETCHER] Whether %s keeps an order is not known, so one process fetches it instead of %d.",
            options.subscription,
            options.fetchers,
        )
        return 1
    raise OptionError(
        "PUBSUB_ORDERED_ONE_FETCHER",
        f"The option fetchers is {options.fetchers}, and a subscription with message ordering is fetched by one "
        "process, which keeps the order of each key",
        options.subscription,
        "Leave fetchers out, or raise streams.",
    )


def look_at(options: PubSubReadOptions) -> SubscriptionInfo | None:
    """What the service tells about the subscription; None when the role for that is missing.

    Raises:
        SourceGoneError: it does not exist, or was detached from its topic.
        OptionError: it delivers by itself to somewhere else.
    """
    with PubSubClient(options.transport, options.credentials) as client:
        try:
            info = client.get_subscription(options.subscription)
        except AccessDeniedError:
            return None
    require_readable(info)
    for warning in info.warnings:
        _log.warning("%s", warning)
    return info


def fetch_plan(options: PubSubReadOptions, info: SubscriptionInfo | None, spool: SpoolIdentity) -> FetchPlan:
    """What each fetcher is told.

    Args:
        options: the options of the reader.
        info: what the service tells about the subscription; None if the role for that is missing.
        spool: the spool to fetch into, in the folder that the options name.
    """
    # A short deadline brings the messages of a crashed fetcher back soon; exactly-once delivery asks for 60 s.
    deadline = _LONG_DEADLINE if info is None or info.exactly_once_delivery else info.ack_deadline_seconds
    count = options.max_outstanding_messages
    credentials = options.credentials
    settings = PubSubFetchSettings(
        subscription=options.subscription,
        transport=options.transport,
        credentials_file=str(credentials) if isinstance(credentials, Path) else None,
        service_account=credentials if isinstance(credentials, ServiceAccount) else None,
        streams=options.streams,
        ack_deadline_seconds=min(max(deadline, _SHORTEST_DEADLINE), _LONGEST_DEADLINE),
        max_outstanding_bytes=options.max_outstanding_bytes,
        max_outstanding_messages=count or 0,
        ordered=info is None or info.message_ordering,
        dedup_attribute=options.dedup_attribute or "",
    )
    return FetchPlan(
        target=TARGET,
        root=str(options.spool_folder),
        spool=spool.spool,
        has_identity=True,
        hash_key=spool.hash_key,
        settings=settings.to_json(),
        access=options.store_access.to_json(),
        publish_period=options.max_fetch_period,
        segment_bytes=options.segment_bytes,
        max_held_bytes=options.max_outstanding_bytes,
        ordered=settings.ordered,
        compression="" if options.segment_compression is SegmentCompression.NONE else options.segment_compression.value,
        **({} if options.segment_records is None else {"segment_rows": options.segment_records}),
        **({} if count is None else {"max_held_rows": count}),
    )
