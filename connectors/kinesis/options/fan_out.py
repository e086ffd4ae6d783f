"""The options of enhanced fan-out, under the names of the other Kinesis connectors."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, declared_options, option
from connectors.core.options.kinds import BOOLEAN, BYTES, DURATION, INTEGER, PATH, STRING, choice
from connectors.kinesis import FORMAT
from connectors.kinesis.options.client import NAME

__all__ = ["ConsumerIdType", "FanOutOptions", "check_consumer_of", "check_fan_out", "check_no_fan_out"]

_log = logging.getLogger(__name__)
_ARN: Final = re.compile(r"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:[0-9]{12}:stream/[^/]+/consumer/[^/:]+:[0-9]+")


class ConsumerIdType(StrEnum):
    """What ``consumerARN`` holds."""

    NAME = "name"
    ARN = "arn"


@dataclass(frozen=True, kw_only=True)
class FanOutOptions:
    """The options of subscriptions; without slots, so that it can be a second base."""

    consumer_name: str | None = option(
        "consumerName",
        STRING,
        "For efo: the name of the consumer, one of its own for each query. It is registered with each stream where it "
        "is missing, and stays. This or consumerARN is required.",
        default=None,
        aliases=("efo.consumer.name", "kinesis.consumerName"),
    )
    consumer_name_prefix: str | None = option(
        "consumerNamePrefix", STRING, "For efo: put before consumerName.", default=None
    )
    consumer_arn: str | None = option(
        "consumerARN",
        STRING,
        "For efo: consumers that are registered already, in the order of the streams, separated by commas: ARNs, or "
        "names with registeredConsumerIdType=name. They are never registered or deregistered.",
        default=None,
        aliases=("registeredConsumerId", "fanoutConsumerARN"),
    )
    consumer_id_type: ConsumerIdType = option(
        "registeredConsumerIdType", choice(ConsumerIdType), "For efo: what consumerARN holds.", default="arn"
    )
    require_deregistration: bool = option(
        "requireConsumerDeregistration",
        BOOLEAN,
        "For efo: true deregisters the consumer when the query ends, however it ends, also when it is about to be "
        "started again. A consumer costs by the hour and shard.",
        default="false",
    )
    register_timeout: float = option(
        "registerConsumerTimeoutInterval",
        DURATION,
        "For efo: how long to wait for the consumer to become ACTIVE, in the background; the query fails then. "
        "Meanwhile it reads by polling.",
        default="60s",
        minimum="1s",
    )
    spool_location: Path | None = option(
        "spoolLocation",
        PATH,
        "For efo: a folder for what the subscriptions bring, which driver and executors see; for each query one of its "
        "own. It is a cache: it may be deleted at any time, and what an executor does not find there it reads by "
        "polling. When absent: a folder for temporary files of the driver's machine.",
        default=None,
    )
    max_spool_bytes: int = option(
        "maxSpoolBytes",
        BYTES,
        "For efo: subscriptions wait while the spool holds this much that no batch has read.",
        default="4g",
        minimum="1",
        aliases=("fetchBufferSize",),
    )
    fetchers: int = option(
        "fetchers",
        INTEGER,
        "For efo: how many processes hold the subscriptions.",
        default="1",
        minimum="1",
        maximum="64",
    )
    max_fetch_period: float = option(
        "maxFetchPeriod",
        DURATION,
        "For efo: records are ready for a batch at the latest this long after they came.",
        default="100ms",
        minimum="1ms",
        maximum="10m",
    )
    subscription_stall: float = option(
        "subscriptionStallInterval",
        DURATION,
        "For efo: a subscription that has sent nothing for so long is opened again, with a warning. The service sends "
        "something every few seconds, also when nothing was put.",
        default="30s",
        minimum="10ms",
    )
    consumers: tuple[str, ...] = ()
    """Derived: the name or ARN of the consumer of each stream; none for polling."""
    spool_folder: Path = Path()
    """Derived: spoolLocation, or the folder that is picked without it."""


def check_fan_out(options: FanOutOptions, streams: Sequence[str]) -> tuple[str, ...]:
    """Return the name or ARN of the consumer of each stream, which is a name or an ARN too.

    Raises:
        OptionError: none is given, both kinds are, they are not legal, or one is of another stream.
    """
    if options.consumer_name is not None and options.consumer_arn is not None:
        raise conflict(FORMAT, "consumerName", "consumerARN", "both name the consumer", "Give one of them.")
    if options.consumer_arn is not None:
        return _registered(options, options.consumer_arn, streams)
    if options.consumer_name is None:
        raise OptionError(
            "OPTION_MISSING",
            "consumerMode=efo needs consumerName",
            FORMAT,
            "Give a name that no other query on the stream uses, or consumerARN for a consumer that is registered.",
        )
    name = (options.consumer_name_prefix or "") + options.consumer_name
    if not NAME.fullmatch(name):
        what = f"The option consumerName gives {name!r}"
        action = "Give up to 128 letters, digits, dots, dashes and underscores."
        raise OptionError("OPTION_ILLEGAL", what, FORMAT, action)
    return (name,) * len(streams)


def _registered(options: FanOutOptions, text: str, streams: Sequence[str]) -> tuple[str, ...]:
    if options.require_deregistration:
        what = "a consumer that was registered by somebody else is not deregistered here"
        raise conflict(FORMAT, "requireConsumerDeregistration", "consumerARN", what, "Leave it out.")
    consumers = tuple(consumer.strip() for consumer in text.split(","))
    pattern = _ARN if options.consumer_id_type is ConsumerIdType.ARN else NAME
    for consumer in consumers:
        if not pattern.fullmatch(consumer):
            raise OptionError(
                "OPTION_ILLEGAL",
                f"The option consumerARN cannot hold {consumer!r}",
                FORMAT,
                "Give ARNs of consumers: arn:aws:kinesis:REGION:ACCOUNT:stream/NAME/consumer/NAME:NUMBER; or set "
                "registeredConsumerIdType=name.",
            )
    if len(consumers) != len(streams):
        what = f"The option consumerARN names {len(consumers)} consumers for {len(streams)} streams"
        raise OptionError("OPTION_ILLEGAL", what, FORMAT, "Give one for each stream, in their order.")
    if options.consumer_id_type is ConsumerIdType.ARN:
        for stream, consumer in zip(streams, consumers, strict=True):
            check_consumer_of(stream, consumer)
    return consumers


def check_consumer_of(stream: str, consumer: str) -> None:
    """Refuse a consumer, by its ARN, of another stream: a subscription by it would bring the records of that one.

    Raises:
        OptionError: it is one.
    """
    owner = consumer.partition("/consumer/")[0]
    if stream != (owner if stream.startswith("arn:") else owner.rpartition("/")[2]):
        raise OptionError(
            "OPTION_CONFLICT",
            f"The option consumerARN names a consumer of {owner} for the stream {stream}",
            FORMAT,
            "Give the consumers of the streams, in the order of the streams.",
        )


def check_no_fan_out(raw: Mapping[str, str | None], *, asked: bool) -> None:
    """Refuse options of efo beside polling, which does not use them.

    When consumerMode was ``asked`` for, it was not forgotten: that is only a warning.

    Raises:
        OptionError: there is one, and polling is the default.
    """
    present = {key.lower() for key, value in raw.items() if value is not None}
    options = declared_options(FanOutOptions).values()
    ignored = [name for declared in options for name in (declared.name, *declared.aliases) if name.lower() in present]
    if ignored and asked:
        _warn_ignored(", ".join(ignored))
    elif ignored:
        why = "it is for efo, and records are read by polling, the default"
        action = f"Give consumerMode=efo, or leave {ignored[0]} out."
        raise conflict(FORMAT, ignored[0], "consumerMode", why, action)


@cache
def _warn_ignored(names: str) -> None:
    """Warn once of what each start of a query and each of its processes finds."""
    _log.warning("[KINESIS_OPTION_IGNORED] consumerMode=polling does not use %s.", names)
