"""What the source process of a query starts, and the plans of its fetchers, also of external ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from connectors.core.errors import OptionError, declared_action
from connectors.spool.fetching.external import ExternalFetching, wait_for_spool
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.options import EPHEMERAL, FetchMode, SegmentCompression, SpoolOptions
from connectors.spool.source.connector import Feed, SpoolConnector, SpoolStart
from connectors.spool.stream.admission import StartedFetching, StreamSettings
from connectors.spool.stream.compaction import CompactionSettings
from connectors.spool.stream.micro_batch import SpoolStream, carry_out_seek

if TYPE_CHECKING:
    from connectors.spool.ledger.identity import SpoolIdentity
    from connectors.spool.ledger.ledger import Ledger

_log = logging.getLogger(__name__)

S = TypeVar("S", bound=SpoolOptions)


def open_stream(connector: SpoolConnector[S], options: S) -> SpoolStream:
    settings = StreamSettings(
        options,
        connector.format,
        connector.sources(options),
        CompactionSettings(retention=options.spool_retention),
        by_message_id=not connector.has_own_ids(options),
    )
    if options.spool_location == EPHEMERAL:
        _log.warning(
            "[SPOOL_EPHEMERAL] The spool is %s. If this disk is lost, so are messages that were already acked. %s",
            options.spool_folder,
            declared_action("SPOOL_EPHEMERAL"),
        )
    return SpoolStream(settings, partial(_start_fetching, connector, options))


def _start_fetching(
    connector: SpoolConnector[S], options: S, ledger: Ledger, wake: Callable[[], None]
) -> StartedFetching:
    feeds = connector.feeds(options, SpoolStart(ledger.state.ordinal == 0, partial(carry_out_seek, ledger)))
    horizon = max(feed.horizon for feed in feeds)
    if options.dedup_horizon is not None:
        horizon = options.dedup_horizon
    if options.fetch is FetchMode.EXTERNAL:
        return ExternalFetching(ledger, options.max_reader_age), horizon
    group = FetcherGroup(
        on_published=lambda _fetcher, _number: wake(),
        may_start=lambda plan, others: not plan.ordered or ledger.earlier_fetchers_done(others),
        free_bytes=0,
    )
    for source, (name, feed) in enumerate(zip(connector.sources(options), feeds, strict=True)):
        plan = replace(fetch_plan(connector, options, feed, ledger.identity), source=source)
        group.add(plan, _fetcher_count(options, name, feed))
    group.start()
    return group, horizon


def _fetcher_count(options: SpoolOptions, name: str, feed: Feed) -> int:
    if not feed.ordered or options.fetchers == 1:
        return options.fetchers
    _log.warning(
        "[SPOOL_ONE_FETCHER] %s keeps messages in order, or may do so. One process fetches it, instead of %d.",
        name,
        options.fetchers,
    )
    return 1


def fetch_plan(connector: SpoolConnector[S], options: S, feed: Feed, spool: SpoolIdentity) -> FetchPlan:
    is_plain = options.segment_compression is SegmentCompression.NONE
    return FetchPlan(
        target=connector.target,
        root=str(options.spool_folder),
        spool=spool.spool,
        has_identity=True,
        hash_key=spool.hash_key,
        settings=feed.settings,
        access=options.store_access.to_json(),
        publish_period=options.max_fetch_period,
        max_held_bytes=options.max_outstanding_bytes,
        ordered=feed.ordered,
        seek=feed.seek,
        compression="" if is_plain else options.segment_compression.value,
        **({} if options.segment_records is None else {"segment_rows": options.segment_records}),
    )


def external_plans(connector: SpoolConnector[Any], raw: Mapping[str, str], fetchers: int | None) -> list[FetchPlan]:
    """Wait until a query has created its spool; return the plans of the fetchers, one for each source.

    `raw` are the options of the query; `fetchers`, instead of that option, counts those on all machines.
    """
    options: SpoolOptions = connector.read_options(raw, streaming=True)
    if options.fetch is not FetchMode.EXTERNAL:
        raise OptionError(
            "OPTION_ILLEGAL",
            f"The option fetch is {options.fetch}, but fetchers outside the query need external",
            connector.format,
            "Give fetch=external to the query and to its fetchers.",
        )
    if fetchers is not None:
        options = replace(options, fetchers=fetchers)
    root, sources, age = str(options.spool_folder), connector.sources(options), options.max_reader_age
    identity = wait_for_spool(root, options.store_access, connector.format, sources, age)
    return [
        replace(
            fetch_plan(connector, options, feed, identity),
            source=source,
            share_of=_fetcher_count(options, name, feed) * len(sources),
            max_spool_bytes=options.max_spool_bytes,
            max_reader_age=age,
        )
        for source, (name, feed) in enumerate(zip(sources, connector.feeds(options, None), strict=True))
    ]
