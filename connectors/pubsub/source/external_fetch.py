"""The plans of external fetchers of Pub/Sub: the part of ``connectors fetch`` that knows Pub/Sub."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connectors.core.errors import OptionError, SourceGoneError
from connectors.pubsub import FORMAT
from connectors.pubsub.options.kinds import FetchMode
from connectors.pubsub.options.source import parse_read_options
from connectors.pubsub.source.micro_batch import fetch_plan, fetcher_count, read_subscription
from connectors.spool.fetching.external_runner import wait_for_spool
from connectors.spool.fetching.target import FetchPlan

if TYPE_CHECKING:
    from connectors.pubsub.client.client import SubscriptionInfo
    from connectors.pubsub.options.source import PubSubReadOptions

__all__ = ["external_plans"]

_RETRY_SECONDS: Final = 1.0


def external_plans(raw: Mapping[str, str], environ: Mapping[str, str], fetchers: int | None) -> list[FetchPlan]:
    """Return the plans of the fetchers, one for each subscription; wait until the query has created the spool.

    Args:
        raw: the options of the query.
        environ: the environment that secrets may come from.
        fetchers: how many there are of each subscription, on all machines; None for the option of that name.

    Raises:
        OptionError: an option is illegal, fetch is not external, or an ordered subscription is to have more than one.
        SourceGoneError: a subscription does not exist, or delivers nothing any more.
        SpoolError: there is no spool of these subscriptions.
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
        if fetcher_count(one, info) < options.fetchers:
            one = replace(one, fetchers=1)
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
    end = time.monotonic() + options.max_reader_age
    while True:
        try:
            return read_subscription(options)
        except SourceGoneError as error:
            is_absent = error.code == "PUBSUB_SUBSCRIPTION_NOT_FOUND"
            if options.topic is None or not is_absent or time.monotonic() > end:
                raise
        time.sleep(_RETRY_SECONDS)
