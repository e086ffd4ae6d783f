"""What fetchers of Pub/Sub outside of the query are told: the part of ``connectors fetch`` that knows Pub/Sub."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from connectors.core.errors import OptionError, SourceGoneError
from connectors.pubsub import FORMAT
from connectors.pubsub.options.kinds import FetchMode
from connectors.pubsub.options.source import parse_read_options
from connectors.pubsub.source.micro_batch import fetch_plan, fetcher_count, look_at
from connectors.spool.fetching.external_runner import wait_for_spool
from connectors.spool.fetching.target import FetchPlan

if TYPE_CHECKING:
    from connectors.pubsub.client.client import SubscriptionInfo
    from connectors.pubsub.options.source import PubSubReadOptions

__all__ = ["external_plans"]

_LOOK_SECONDS: Final = 1.0


def external_plans(raw: Mapping[str, str], environ: Mapping[str, str], fetchers: int | None) -> list[FetchPlan]:
    """The plans of the fetchers, one for each subscription; waits until the query has made the spool.

    Args:
        raw: the options of the query.
        environ: the environment that secrets may come from.
        fetchers: how many there are of each subscription, in all places together; None for what the options say.

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
        info = _look_when_made(one)
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


def _look_when_made(options: PubSubReadOptions) -> SubscriptionInfo | None:
    """As `look_at`; with ``topicId`` the query makes a subscription that is absent, and that after its spool."""
    end = time.monotonic() + options.max_reader_age
    while True:
        try:
            return look_at(options)
        except SourceGoneError as error:
            is_absent = error.code == "PUBSUB_SUBSCRIPTION_NOT_FOUND"
            if options.topic is None or not is_absent or time.monotonic() > end:
                raise
        time.sleep(_LOOK_SECONDS)
