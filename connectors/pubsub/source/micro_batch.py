"""What the source process of a query starts, and the plans of its fetchers, also of external ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.core.errors import AccessDeniedError, OptionError, SourceGoneError
from connectors.core.retry import RetryPolicy, retry
from connectors.pubsub import FORMAT
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.options.client import ServiceAccount
from connectors.pubsub.options.kinds import FetchMode, SegmentCompression
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options
from connectors.pubsub.source.fetcher import TARGET, PubSubFetchSettings
from connectors.pubsub.source.subscription import ensure_subscription, require_one_fetcher, require_readable
from connectors.spool.fetching.external import ExternalFetching, wait_for_spool
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.fetchers import Fetching
from connectors.spool.stream.micro_batch import SpoolStream, carry_out_seek
from connectors.spool.stream.settings import StreamSettings

if TYPE_CHECKING:
    from connectors.pubsub.client.client import SubscriptionInfo
    from connectors.spool.ledger.identity import SpoolIdentity
    from connectors.spool.ledger.ledger import Ledger

__all__ = ["external_plans", "fetch_plan", "open_stream", "read_subscription"]

_log = logging.getLogger(__name__)


def open_stream(options: PubSubReadOptions) -> SpoolStream:
    """Open the spool of a query and start its fetchers, in the background."""
    settings = StreamSettings(
        root=str(options.spool_folder),
        connector=FORMAT,
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
    return SpoolStream(settings, partial(_start_fetching, options))


def _start_fetching(options: PubSubReadOptions, ledger: Ledger, wake: Callable[[], None]) -> tuple[Fetching, float]:
    is_new = ledger.state.ordinal == 0
    alone = [options.alone(subscription) for subscription in options.subscriptions]
    with PubSubClient(options.transport, options.credentials) as client:
        states = [ensure_subscription(client, one, spool_is_new=is_new) for one in alone]
        _seek(client, options, ledger)
    horizon = max(state.horizon for state in states)
    for warning in (warning for state in states for warning in state.warnings):
        _log.warning("%s", warning)
    if options.fetch is FetchMode.EXTERNAL:
        return ExternalFetching(ledger, options.max_reader_age), horizon
    group = FetcherGroup(
        on_published=lambda _fetcher, _number: wake(),
        may_start=lambda plan, beside: not plan.ordered or ledger.earlier_fetchers_done(beside),
        free_bytes=0,
    )
    for source, (one, state) in enumerate(zip(alone, states, strict=True)):
        plan = replace(fetch_plan(one, state.info, ledger.identity), source=source)
        group.add(plan, _fetcher_count(one, state.info))
    group.start()
    return group, horizon


def _seek(client: PubSubClient, options: PubSubReadOptions, ledger: Ledger) -> None:
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


def _fetcher_count(options: PubSubReadOptions, info: SubscriptionInfo | None) -> int:
    """Return how many processes fetch a subscription: one, where it has message ordering or that is unknown."""
    if info is not None:
        require_one_fetcher(options, info)
    elif options.fetchers > 1:
        _log.warning(
            "[PUBSUB_ONE_FETCHER] Whether %s has message ordering is unknown, so one process fetches it instead of %d.",
            options.subscription,
            options.fetchers,
        )
        return 1
    return options.fetchers


def read_subscription(options: PubSubReadOptions) -> SubscriptionInfo | None:
    """Read a subscription that can be pulled from, and log its warnings; None when the role for that is missing."""
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
    """Return the plan of each fetcher; `info` is None if the role to read the subscription is missing."""
    # A short deadline redelivers the messages of a crashed fetcher soon; exactly-once delivery asks for 60 s.
    deadline = 60 if info is None or info.exactly_once_delivery else info.ack_deadline_seconds
    count = options.max_outstanding_messages
    credentials = options.credentials
    settings = PubSubFetchSettings(
        subscription=options.subscription,
        transport=options.transport,
        credentials_file=str(credentials) if isinstance(credentials, Path) else None,
        service_account=credentials if isinstance(credentials, ServiceAccount) else None,
        streams=options.streams,
        ack_deadline_seconds=min(max(deadline, 10), 600),
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


def external_plans(raw: Mapping[str, str], environ: Mapping[str, str], fetchers: int | None) -> list[FetchPlan]:
    """Wait until a query has created its spool; return the plans of the fetchers, one for each subscription.

    `raw` are the options of the query; `fetchers`, instead of that option, counts those on all machines.
    """
    options = parse_read_options(raw, environ, streaming=True)
    if options.fetch is not FetchMode.EXTERNAL:
        raise OptionError(
            "OPTION_ILLEGAL",
            f"The option fetch is {options.fetch}, and fetchers outside of the query need it to be external",
            FORMAT,
            "Give fetch=external to the query and to its fetchers.",
        )
    if fetchers is not None:
        options = replace(options, fetchers=fetchers)
    identity = wait_for_spool(
        str(options.spool_folder), options.store_access, FORMAT, options.subscriptions, options.max_reader_age
    )
    plans = []
    for source, subscription in enumerate(options.subscriptions):
        one = options.alone(subscription)
        info = _read_once_created(one)
        one = replace(one, fetchers=_fetcher_count(one, info))
        plans.append(
            replace(
                fetch_plan(one, info, identity),
                source=source,
                share_of=one.fetchers * len(options.subscriptions),
                max_spool_bytes=options.max_spool_bytes,
                max_reader_age=options.max_reader_age,
            )
        )
    return plans


def _read_once_created(options: PubSubReadOptions) -> SubscriptionInfo | None:
    """Read a subscription; with ``topicId`` the query creates one that is absent, after its spool."""

    def may_come(error: BaseException) -> bool:
        is_absent = isinstance(error, SourceGoneError) and error.code == "PUBSUB_SUBSCRIPTION_NOT_FOUND"
        return options.topic is not None and is_absent

    policy = RetryPolicy(initial_seconds=1.0, cap_seconds=1.0, deadline_seconds=options.max_reader_age)
    return retry(lambda: read_subscription(options), policy, retryable=may_come)
