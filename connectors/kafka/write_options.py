"""The options of the ``kafka_py`` sink, each declared once, and the settings of its producers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.option_kinds import BOOLEAN, STRING, Kind, choice
from connectors.core.options import option, parse_options
from connectors.kafka.options import KafkaClientOptions, split_client_options
from connectors.kafka.positions import CONNECTOR, illegal
from connectors.kafka.settings import ClientSettings, common_settings

__all__ = ["Guarantee", "KafkaWriteOptions", "MissingMarker", "parse_write_options"]

_ENGINE_KEYS: Final = {"asyncprogresstrackingenabled"}
_NOT_FOR_SINKS: Final = {
    "key.serializer": "is not supported as keys are serialized with ByteArraySerializer",
    "value.serializer": "is not supported as values are serialized with ByteArraySerializer",
    "interceptor.classes": "is not supported",
}
_PARTITIONERS: Final = {
    "defaultpartitioner": "murmur2_random",
    "uniformstickypartitioner": "random",
    "roundrobinpartitioner": "random",
}
_DEFAULTS: Final = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "5",
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": "131072",
}
"""What the JVM's producer does by itself, and librdkafka does not: keys land where the JVM client puts them."""
_ALL: Final = frozenset({"all", "-1"})
_TRANSACTION_DEFAULTS: Final = {"transaction.timeout.ms": "900000"}
"""The longest that brokers allow by default: a transaction lives as long as its task."""


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
        "required when topics come from a column.",
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
        STRING,
        "For exactly_once: what transactional ids and groups begin with; the query's id and the partition follow.",
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
    native_writes: bool = option(
        "nativeWrites",
        BOOLEAN,
        "Rows go to the client in whole batches where that is possible: not with headers, timestamps, OAUTHBEARER or "
        "exactly_once. false always takes the plain way, one row at a time.",
        default="true",
    )
    client: ClientSettings = field(default=ClientSettings())
    """Derived: the settings of librdkafka."""

    @property
    def exactly_once(self) -> bool:
        """Whether each task writes in a transaction."""
        return self.guarantee is Guarantee.EXACTLY_ONCE


def _source_options() -> dict[str, type]:
    """Where an option may belong that is unknown here."""
    from connectors.kafka.options import KafkaReadOptions  # noqa: PLC0415 - for an error only, and they import each other

    return {"the source": KafkaReadOptions}


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
    options = parse_options(KafkaWriteOptions, own, environ, CONNECTOR, _source_options)
    if not options.bootstrap_servers:
        raise OptionError(
            "OPTION_MISSING",
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer",
            CONNECTOR,
            "Give host:port of a broker.",
        )
    if options.exactly_once:
        _check_exactly_once(options, client, engine, streaming=streaming)
    return dataclasses.replace(options, client=_producer_settings(options, client))


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
    if client.get("enable.idempotence", "true").lower() != "true":
        raise illegal("deliveryGuarantee=exactly_once needs kafka.enable.idempotence", "Leave it out.")
    if client.get("acks", "all") not in _ALL:
        raise illegal("deliveryGuarantee=exactly_once needs kafka.acks=all", "Leave it out.")


def _producer_settings(options: KafkaWriteOptions, given: Mapping[str, str]) -> ClientSettings:
    for name, why in _NOT_FOR_SINKS.items():
        if name in given:
            raise illegal(f"Kafka option '{name}' {why}", f"Leave kafka.{name} out.")
    if "transactional.id" in given:
        raise illegal(
            "Kafka option 'transactional.id' is not supported",
            "Give deliveryGuarantee=exactly_once, and transactionalIdPrefix if you like.",
        )
    changed = dict(given)
    if (partitioner := changed.pop("partitioner.class", None)) is not None:
        name = partitioner.rpartition(".")[2].lower()
        if name not in _PARTITIONERS:
            raise illegal(
                f"The partitioner {partitioner[:200]} is a class of the JVM",
                "Write a column partition, or give kafka.partitioner with one of librdkafka's.",
            )
        changed.setdefault("partitioner", _PARTITIONERS[name])
    if "buffer.memory" in changed:
        changed.setdefault("queue.buffering.max.kbytes", str(_kilobytes(changed.pop("buffer.memory"))))
    if "max.request.size" in changed:
        changed.setdefault("message.max.bytes", changed.pop("max.request.size"))
    defaults = _DEFAULTS | (_TRANSACTION_DEFAULTS if options.exactly_once else {})
    if changed.get("enable.idempotence", "true").lower() != "true" or changed.get("acks", "all") not in _ALL:
        # As the JVM's producer: other acks without a word on idempotence switch it off.
        defaults = defaults | {"enable.idempotence": "false"}
    return common_settings(options, {**defaults, **changed})


def _kilobytes(buffer_memory: str) -> int:
    """The producer's memory in the unit of librdkafka, which has no buffer of less than one."""
    if not buffer_memory.strip().isdecimal():
        raise illegal(
            f"The option kafka.buffer.memory cannot be {buffer_memory[:200]!r}",
            "Give a whole number of bytes without a unit, such as 67108864.",
        )
    return max(1, int(buffer_memory) // 1024)
