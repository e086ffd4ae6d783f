"""The options of the ``kafka_py`` sink, each declared once, and the settings of its producers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import BOOLEAN, STRING, Kind, choice
from connectors.kafka.offsets import CONNECTOR, illegal
from connectors.kafka.options.client import ClientSettings, KafkaClientOptions, split_client_options
from connectors.kafka.options.producer import check_transactional, producer_settings

__all__ = ["Guarantee", "KafkaWriteOptions", "MissingMarker", "parse_write_options"]

_ENGINE_KEYS: Final = {
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
    "_asyncprogresstrackingoverridesinksupportcheck",
}
"""Options of Spark's engine that it also hands to sinks."""
_OF_TRANSACTIONS: Final = {name.lower(): name for name in ("markerTopic", "onMissingMarker", "transactionalIdPrefix")}
"""Options that do nothing without exactly_once."""


class Guarantee(StrEnum):
    """How often a row may be in a topic."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class MissingMarker(StrEnum):
    """What happens when a marker that must be there is not."""

    FAIL = "fail"
    WRITE = "write"


def _parse_guarantee(text: str) -> Guarantee:
    try:
        return Guarantee(text.lower().replace("-", "_"))
    except ValueError:
        raise ValueError("it is neither at_least_once nor exactly_once") from None


GUARANTEE: Final = Kind("choice", "at_least_once or exactly_once", Guarantee, _parse_guarantee)


def _parse_printable(text: str) -> str:
    parsed = STRING.parse(text)
    # Of a group in a transaction the client takes no others, and says so in every task only.
    if not (parsed.isascii() and parsed.isprintable()):
        raise ValueError("it holds a character that is not printable ASCII")
    return parsed


PRINTABLE: Final = Kind("string", "a text of printable characters of ASCII", str, _parse_printable)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaWriteOptions(KafkaClientOptions):
    """The options of the sink, for streams and batch writes. Made by `parse_write_options`."""

    topic: str | None = option(
        "topic", STRING, "The topic of all rows; wins over a column topic, which it makes unnecessary.", default=None
    )
    guarantee: Guarantee = option(
        "deliveryGuarantee",
        GUARANTEE,
        "exactly_once writes each task of a stream in a transaction with a marker of its batch; consumers must read "
        "with isolation.level=read_committed. See docs/explanation/kafka-exactly-once.md for what it needs.",
        default="at_least_once",
    )
    marker_topic: str | None = option(
        "markerTopic",
        STRING,
        "For exactly_once: the topic whose partition 0 the markers name; nothing is written to it. Default: topic; "
        "required when topics come from a column. Change it only after a clean stop: markers of an open batch would "
        "not be found.",
        default=None,
    )
    missing_marker: MissingMarker = option(
        "onMissingMarker",
        choice(MissingMarker),
        "For exactly_once: the marker of an earlier batch is gone, as after a week of rest or with its topic. fail "
        "stops the query; write goes on, and may write one batch twice.",
        default="fail",
    )
    transactional_id_prefix: str = option(
        "transactionalIdPrefix",
        PRINTABLE,
        "For exactly_once: what transactional ids and groups begin with, in printable characters of ASCII; the query's "
        "id and the partition follow. Change it only after a clean stop: markers of an open batch would not be found.",
        default="kafka_py",
    )
    write_timestamps: bool = option(
        "writeTimestamps",
        BOOLEAN,
        "Records get the time of the column timestamp; false, as in Spark's own sink, ignores that column.",
        default="false",
    )
    dedup_headers: bool = option(
        "dedupHeaders",
        BOOLEAN,
        "Each record of a stream gets the headers spark.query, spark.batch, spark.partition and spark.row, by which a "
        "consumer can drop what came twice, if rows come in the same order when a batch is repeated.",
        default="false",
    )
    include_headers: bool = option(
        "includeHeaders", BOOLEAN, "Changes nothing: a column headers is always written.", default="false"
    )
    client: ClientSettings = field(default=ClientSettings())
    """Derived: the settings of librdkafka."""

    @property
    def exactly_once(self) -> bool:
        """Whether each task writes in a transaction."""
        return self.guarantee is Guarantee.EXACTLY_ONCE


def parse_write_options(raw: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool) -> KafkaWriteOptions:
    """Parse and check the options of a sink; reads nothing but the arguments.

    Args:
        raw: what Spark hands over: names in any case to texts.
        environ: the environment of the driver, for secrets.
        streaming: whether it is a stream.

    Raises:
        OptionError: an option is unknown, missing, illegal, or in conflict with another.
    """
    engine = {key.lower(): value for key, value in raw.items() if key.lower() in _ENGINE_KEYS}
    own, client = split_client_options(
        KafkaWriteOptions, {key: value for key, value in raw.items() if key.lower() not in _ENGINE_KEYS}
    )
    options = parse_options(KafkaWriteOptions, own, environ, CONNECTOR)
    if not options.bootstrap_servers:
        raise OptionError(
            "OPTION_MISSING",
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer",
            CONNECTOR,
            "Give host:port of a broker.",
        )
    if options.exactly_once:
        _check_exactly_once(options, client, engine, streaming=streaming)
    elif ignored := _OF_TRANSACTIONS.keys() & {key.lower() for key in own}:
        name = _OF_TRANSACTIONS[min(ignored)]
        why = "it is for exactly_once, and the rows are written at least once"
        raise conflict(
            CONNECTOR, name, "deliveryGuarantee", why, f"Give deliveryGuarantee=exactly_once, or leave {name} out."
        )
    settings = producer_settings(options, client, transactions=options.exactly_once)
    return dataclasses.replace(options, client=settings)


def _check_exactly_once(
    options: KafkaWriteOptions, client: Mapping[str, str], engine: Mapping[str, str], *, streaming: bool
) -> None:
    if not streaming:
        raise illegal(
            "deliveryGuarantee=exactly_once is for streams: a batch write has no number that a repeated one could be "
            "told by",
            "Leave deliveryGuarantee out.",
        )
    if engine.get("asyncprogresstrackingenabled", "false").lower() == "true":
        raise illegal(
            "deliveryGuarantee=exactly_once cannot be with asyncProgressTrackingEnabled: batches are not logged, so a "
            "repeated one may hold other rows",
            "Leave asyncProgressTrackingEnabled out.",
        )
    if options.topic is None and options.marker_topic is None:
        raise OptionError(
            "OPTION_MISSING",
            "The option markerTopic is required by deliveryGuarantee=exactly_once when topics come from a column",
            CONNECTOR,
            "Name a topic that exists; nothing is written to it.",
        )
    check_transactional(client)
