"""Settings of the sink's producers: the rules and defaults of the JVM's producer, in the words of librdkafka."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from connectors.kafka.offsets import illegal
from connectors.kafka.options.client import ClientSettings, check_names, common_settings, is_true
from connectors.kafka.options.jvm_compat import nearest_value, whole_number

if TYPE_CHECKING:
    from connectors.kafka.options.client import KafkaClientOptions

__all__ = ["LINGER_SETTINGS", "TIMEOUT_SETTINGS", "check_transactional", "producer_settings"]

_log = logging.getLogger(__name__)

_NOT_FOR_SINKS: Final = {
    "key.serializer": "is not supported as keys are serialized with ByteArraySerializer",
    "value.serializer": "is not supported as values are serialized with ByteArraySerializer",
    "interceptor.classes": "is not supported",
}
_OF_CONSUMERS: Final = dict.fromkeys(
    ("key.deserializer", "value.deserializer"), "it is one of consumers, and a sink has none"
)
_PARTITIONERS: Final = {
    "internals.DefaultPartitioner": "murmur2_random",
    "UniformStickyPartitioner": "random",
    "RoundRobinPartitioner": "random",
}
_OF_KAFKA: Final = re.compile(r"(?:kafkashaded\.)?org\.apache\.kafka\.clients\.producer\.([\w.]+)")
"""Its own classes; some platforms have them under a name before that."""
_DEFAULTS: Final = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "5",
    "message.max.bytes": "1048576",
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": "131072",
    # Rows without a key go to one partition for a while, then to another. librdkafka's default is two times linger.ms,
    # 10 ms, in which a task hands over some megabytes. Measured with 1 ms: rows are spread over all partitions, at no
    # cost; with 0, another partition for each row, twice the processor time.
    "sticky.partitioning.linger.ms": "1",
}
"""What the JVM's producer does by itself, and librdkafka does not: keys land where the JVM client puts them."""
_DELIVERY_MS: Final = 120_000
_REQUEST_MS: Final = 30_000
_TRANSACTION_DEFAULTS: Final = {"transaction.timeout.ms": "900000"}
"""The longest that brokers allow by default: a transaction lives as long as its task."""
_ALL: Final = frozenset({"all", "-1"})
_MOST_IN_FLIGHT: Final = 5
_HIGHEST_LEVEL: Final = 12
_COMPRESSION_LEVEL: Final = re.compile(r"compression\.(gzip|lz4|zstd)\.level")


_NEEDS: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (
        ("retries", "message.send.max.retries"),
        lambda text: whole_number(text) != 0,
        "Must set retries to non-zero when using the idempotent producer",
    ),
    (
        ("acks", "request.required.acks"),
        lambda text: text.strip().lower() in _ALL,
        "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence",
    ),
    (
        ("max.in.flight.requests.per.connection", "max.in.flight"),
        lambda text: (whole_number(text) or 0) <= _MOST_IN_FLIGHT,
        "Must set max.in.flight.requests.per.connection to at most 5 to use the idempotent producer",
    ),
)
"""What an idempotent producer needs: the names of a setting, whether a value is right, and the JVM client's words."""


def check_transactional(given: Mapping[str, str]) -> None:
    """Refuse settings that a producer with transactions cannot have.

    Args:
        given: settings of the user, without ``kafka.``.

    Raises:
        OptionError: there is one.
    """
    if not _wanted(given, "true"):
        raise illegal("deliveryGuarantee=exactly_once needs kafka.enable.idempotence", "Leave it out.")
    if (conflict := _conflict(given)) is not None:
        name, why = conflict
        raise illegal(f"deliveryGuarantee=exactly_once needs an idempotent producer. {why}", f"Leave kafka.{name} out.")


def producer_settings(
    options: KafkaClientOptions, given: Mapping[str, str], *, transactions: bool = False
) -> ClientSettings:
    """The settings of the sink's producers.

    Args:
        options: with what is needed to reach Kafka.
        given: settings of the user, without ``kafka.``.
        transactions: whether the producers write in transactions.

    Raises:
        OptionError: a setting is refused, or belongs to the sink alone.
    """
    check_names(options, given)
    refused = [
        (f"Kafka option '{name}' {why}", f"Leave kafka.{name} out.")
        for name, why in _NOT_FOR_SINKS.items()
        if name in given
    ]
    if "transactional.id" in given:
        advice = "Give deliveryGuarantee=exactly_once, and transactionalIdPrefix if you like."
        refused.append(("Kafka option 'transactional.id' is not supported", advice))
    changed = {name: value for name, value in given.items() if name not in {*_NOT_FOR_SINKS, "transactional.id"}}
    _choose_partitioner(changed)
    _choose_compression_level(changed)
    if "buffer.memory" in changed:
        changed.setdefault("queue.buffering.max.kbytes", str(_kilobytes(changed.pop("buffer.memory"))))
    if "max.request.size" in changed:
        changed.setdefault("message.max.bytes", changed.pop("max.request.size"))
    _fit_records_to_queue(changed)
    if not transactions and not any(name in changed for name in TIMEOUT_SETTINGS):
        changed[TIMEOUT_SETTINGS[0]] = str(_delivery_ms(changed))
    defaults = _DEFAULTS | (_TRANSACTION_DEFAULTS if transactions else {})
    if not _idempotent(given):
        defaults = defaults | {"enable.idempotence": "false"}
    return common_settings(options, {**defaults, **changed}, refused, _OF_CONSUMERS)


def _idempotent(given: Mapping[str, str]) -> bool:
    """Whether the producer is idempotent: by default, unless a setting is against it that was asked for.

    The rules of the JVM's ``ProducerConfig.postProcessAndValidateIdempotenceConfigs`` (KIP-679), as Kafka 3.9 has them,
    which is the client of Spark's own sink: Kafka 4 refuses more than five requests in flight.

    Raises:
        OptionError: idempotence was asked for, and a setting is against it.
    """
    if not _wanted(given, "true"):
        return False
    conflict = _conflict(given)
    if conflict is None:
        return True
    name, why = conflict
    if _wanted(given, "false"):
        raise illegal(why, f"Leave kafka.{name} out, or give kafka.enable.idempotence=false.")
    _warn(name, given[name])
    return False


def _wanted(given: Mapping[str, str], default: str) -> bool:
    return is_true(given.get("enable.idempotence", default))


def _conflict(given: Mapping[str, str]) -> tuple[str, str] | None:
    """The first setting that an idempotent producer cannot have, and why."""
    return next(
        ((name, why) for names, fits, why in _NEEDS for name in names if name in given and not fits(given[name])),
        None,
    )


@cache
def _warn(name: str, value: str) -> None:
    """Say once what the JVM client says as often as it starts: options are parsed for every batch."""
    _log.warning("[KAFKA_IDEMPOTENCE_OFF] Idempotence will be disabled because %s is set to %.20s.", name, value)


def _choose_partitioner(changed: dict[str, str]) -> None:
    """Take the JVM client's settings of partitioners out, for those of librdkafka."""
    keyless = changed.pop("partitioner.ignore.keys", "false").strip().lower() == "true"
    given = changed.pop("partitioner.class", None)
    if given is not None:
        match = _OF_KAFKA.fullmatch(given.strip())
        name = match[1] if match else ""
        if name not in _PARTITIONERS:
            raise illegal(
                f"The partitioner {given[:200]} is a class of the JVM",
                "Write a column partition, or give kafka.partitioner with one of librdkafka's.",
            )
        changed.setdefault("partitioner", _PARTITIONERS[name])
        if name == "RoundRobinPartitioner":
            changed.setdefault("sticky.partitioning.linger.ms", "0")
    elif keyless:
        changed.setdefault("partitioner", "random")


def _fit_records_to_queue(changed: dict[str, str]) -> None:
    """Have the client refuse a record for which its queue can never have room: it would wait for that without end."""
    queue = whole_number(changed.get("queue.buffering.max.kbytes", _DEFAULTS["queue.buffering.max.kbytes"]))
    largest = whole_number(changed.get("message.max.bytes", _DEFAULTS["message.max.bytes"]))
    if queue is not None and largest is not None and 0 < queue * 1024 < largest:
        changed["message.max.bytes"] = str(queue * 1024)


def _delivery_ms(changed: Mapping[str, str]) -> int:
    """How long a record may take, where the user does not say: as in the JVM's ``KafkaProducer``.

    See its ``configureDeliveryTimeout``: no less than a pause for more records and a request.
    """
    linger = max(_number_of(changed, name, 0) for name in LINGER_SETTINGS)
    return max(_DELIVERY_MS, math.ceil(linger + _number_of(changed, "request.timeout.ms", _REQUEST_MS)))


def _number_of(changed: Mapping[str, str], name: str, default: float) -> float:
    """A setting as a number, as librdkafka will take it; the default for one that is missing, or no number."""
    try:
        return float(nearest_value("linger.ms" if name in LINGER_SETTINGS else name, changed[name]))
    except (KeyError, ValueError):
        return default


def _choose_compression_level(changed: dict[str, str]) -> None:
    """The JVM client has a level for each codec, and uses that of its ``compression.type``."""
    levels = {match[1]: changed.pop(name) for name in list(changed) if (match := _COMPRESSION_LEVEL.fullmatch(name))}
    codec = changed.get("compression.type", changed.get("compression.codec", "none")).strip().lower()
    if codec not in levels:
        return
    level = whole_number(levels[codec])
    if level is None or not -1 <= level <= _HIGHEST_LEVEL:
        raise illegal(
            f"The option kafka.compression.{codec}.level cannot be {levels[codec][:200]!r}",
            f"Give a whole number from -1, the default of the codec, to {_HIGHEST_LEVEL}: librdkafka has no others.",
        )
    changed.setdefault("compression.level", str(level))


def _kilobytes(buffer_memory: str) -> int:
    """The producer's memory in the unit of librdkafka, which has no buffer of less than one."""
    if not buffer_memory.strip().isdecimal():
        raise illegal(
            f"The option kafka.buffer.memory cannot be {buffer_memory[:200]!r}",
            "Give a whole number of bytes without a unit, such as 67108864.",
        )
    return max(1, int(buffer_memory) // 1024)


LINGER_SETTINGS: Final = ("linger.ms", "queue.buffering.max.ms")
"""One setting by two names."""


TIMEOUT_SETTINGS: Final = ("delivery.timeout.ms", "message.timeout.ms")
"""One setting by two names."""
