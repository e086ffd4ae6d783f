"""The options of the ``kafka_py`` sink, each declared once, and the settings of its producers.

Producers have the rules and defaults of the JVM's producer.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import BOOLEAN, INTEGER, STRING, Kind, choice
from connectors.kafka import FORMAT
from connectors.kafka.offsets import illegal
from connectors.kafka.options import jvm_compat as jvm
from connectors.kafka.options.client import (
    ClientSettings,
    KafkaClientOptions,
    Refusal,
    client_settings,
    is_true,
    number_of,
    split_client_options,
    warn_once,
    whole_number,
)

_ENGINE_KEYS: Final = {
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
    "_asyncprogresstrackingoverridesinksupportcheck",
}
"""Options of Spark's engine that it also hands to sinks."""
_OF_TRANSACTIONS: Final = {
    name.lower(): name for name in ("markerTopic", "onMissingMarker", "transactionalIdPrefix", "txnAppId", "txnVersion")
}
"""Options that do nothing without exactly_once."""
_SHORT: Final = 200
_PARTITIONER: Final = re.compile(r"(?:kafkashaded\.)?org\.apache\.kafka\.clients\.producer\.([\w.]+)")
"""A class of Kafka's own; some platforms have them under a name before that."""
_COMPRESSION_LEVEL: Final = re.compile(r"compression\.(gzip|lz4|zstd)\.level")
_HIGHEST_LEVEL: Final = 12
_REQUEST_MS: Final = 30_000
_TRANSACTION_MS: Final = "900000"
"""The longest that brokers allow by default: a transaction is open as long as its task runs."""
_MOST_IN_FLIGHT: Final = 5
_IDEMPOTENCE_NEEDS: Final[tuple[tuple[tuple[str, ...], Callable[[str], bool], str], ...]] = (
    (
        ("retries", "message.send.max.retries"),
        lambda text: whole_number(text) != 0,
        "Must set retries to non-zero when using the idempotent producer",
    ),
    (
        ("acks", "request.required.acks"),
        lambda text: text.strip().lower() in {"all", "-1"},
        "Must set acks to all in order to use the idempotent producer. Otherwise we cannot guarantee idempotence",
    ),
    (
        ("max.in.flight.requests.per.connection", "max.in.flight"),
        lambda text: (whole_number(text) or 0) <= _MOST_IN_FLIGHT,
        "Must set max.in.flight.requests.per.connection to at most 5 to use the idempotent producer",
    ),
)
"""The names of a setting, whether a value is allowed, and the text of the JVM client if it is not."""


class Guarantee(StrEnum):
    """How often a row may be in a topic."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class MissingMarker(StrEnum):
    """What happens when a marker that must be there is not."""

    FAIL = "fail"
    WRITE = "write"


_CHOICE: Final = choice(Guarantee)
_GUARANTEE: Final = dataclasses.replace(_CHOICE, parse=lambda text: _CHOICE.parse(text.replace("-", "_")))


def _parse_printable(text: str) -> str:
    parsed = STRING.parse(text)
    # The client refuses others for a group in a transaction, and only in the tasks.
    if not (parsed.isascii() and parsed.isprintable()):
        raise ValueError("it holds a character that is not printable ASCII")
    return parsed


_PRINTABLE: Final = Kind("string", "a text of printable characters of ASCII", _parse_printable)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaWriteOptions(KafkaClientOptions):
    """The options of the sink, for streams and batch writes. Made by `parse_write_options`."""

    topic: str | None = option(
        "topic",
        STRING,
        "The topic of all rows; wins over a column topic. Required, unless there is a column topic.",
        default=None,
    )
    guarantee: Guarantee = option(
        "deliveryGuarantee",
        _GUARANTEE,
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
        "For exactly_once: the marker of an earlier batch is gone, as after a week without a batch or with its topic. "
        "fail stops the query; write continues, and may write one batch twice.",
        default="fail",
    )
    transactional_id_prefix: str = option(
        "transactionalIdPrefix",
        _PRINTABLE,
        "For exactly_once: what transactional ids and groups begin with, in printable characters of ASCII; the query's "
        "id and the partition follow. Change it only after a clean stop: markers of an open batch would not be found.",
        default="kafka_py",
    )
    txn_app_id: str | None = option(
        "txnAppId",
        _PRINTABLE,
        "For exactly_once in a batch write, as within foreachBatch: the name of what writes, in place of a stream's "
        "query id. As in Delta Lake.",
        default=None,
    )
    txn_version: int | None = option(
        "txnVersion",
        INTEGER,
        "For exactly_once in a batch write: the number of the batch, which grows from one write to the next. What was "
        "written under a number is not written again. As in Delta Lake.",
        default=None,
        minimum="0",
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
        "Each record of a stream gets the headers spark.query, spark.batch, spark.partition and spark.row. A "
        "consumer can drop duplicates by them if rows come in the same order when a batch is repeated.",
        default="false",
    )
    include_headers: bool = option(
        "includeHeaders", BOOLEAN, "Changes nothing: a column headers is always written.", default="false"
    )
    client: ClientSettings = field(default=ClientSettings())
    """Derived: the settings of librdkafka."""

    @property
    def exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE

    def datasets(self) -> list[tuple[str, str]]:
        """Return the topic as OpenLineage names datasets; none if a column names topics."""
        return [] if self.topic is None else self.topic_datasets([self.topic])


def parse_write_options(
    raw: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool = True
) -> KafkaWriteOptions:
    """Parse and check what Spark hands over, without any call; raises an `OptionError`.

    ``raw`` has names in any case; ``environ`` is the environment of the driver, for secrets.
    """
    engine = {key.lower(): value for key, value in raw.items() if key.lower() in _ENGINE_KEYS}
    others = {key: value for key, value in raw.items() if key.lower() not in _ENGINE_KEYS}
    own, client = split_client_options(KafkaWriteOptions, others, environ)
    options = parse_options(KafkaWriteOptions, own, environ, FORMAT)
    if options.exactly_once:
        _check_exactly_once(options, dict(client.plain), engine, streaming=streaming)
    elif ignored := _OF_TRANSACTIONS.keys() & {key.lower() for key in own}:
        name = _OF_TRANSACTIONS[min(ignored)]
        why = "it is for exactly_once, but the sink writes at least once"
        raise conflict(
            FORMAT, name, "deliveryGuarantee", why, f"Give deliveryGuarantee=exactly_once, or leave {name} out."
        )
    return dataclasses.replace(options, client=_producer_settings(options, client))


def _check_exactly_once(
    options: KafkaWriteOptions, client: Mapping[str, str], engine: Mapping[str, str], *, streaming: bool
) -> None:
    named = [options.txn_app_id is not None, options.txn_version is not None]
    if not streaming and not all(named):
        raise illegal(
            "deliveryGuarantee=exactly_once is for streams, and for batch writes with a name and a number, which "
            "recognize a repeated one",
            "Give txnAppId and txnVersion, or leave deliveryGuarantee out.",
        )
    if streaming and any(named):
        raise illegal("txnAppId and txnVersion are for batch writes, and this is a stream", "Leave them out.")
    if engine.get("asyncprogresstrackingenabled", "false").lower() == "true":
        raise illegal(
            "deliveryGuarantee=exactly_once does not work with asyncProgressTrackingEnabled: batches are not logged, "
            "so a repeated one may hold other rows",
            "Leave asyncProgressTrackingEnabled out.",
        )
    if options.topic is None and options.marker_topic is None:
        raise OptionError(
            "OPTION_MISSING",
            "deliveryGuarantee=exactly_once needs the option markerTopic when topics come from a column",
            FORMAT,
            "Name an existing topic. Nothing is written to it.",
        )
    if not is_true(client.get("enable.idempotence", "true")):
        raise illegal(
            "deliveryGuarantee=exactly_once needs kafka.enable.idempotence, which is set to false", "Leave it out."
        )
    if (against := _against_idempotence(client)) is not None:
        name, why = against
        raise illegal(f"deliveryGuarantee=exactly_once needs an idempotent producer. {why}", f"Leave kafka.{name} out.")


def _producer_settings(options: KafkaWriteOptions, user: ClientSettings) -> ClientSettings:
    refused: list[Refusal] = []
    changed = dict(user.plain)
    if changed.pop("transactional.id", None) is not None:
        advice = "Give deliveryGuarantee=exactly_once, with a transactionalIdPrefix if you like."
        refused.append(("Kafka option 'transactional.id' is not supported", advice))
    _choose_partitioner(changed)
    _choose_compression_level(changed)
    _fit_records_to_queue(changed)
    defaults = {**jvm.PRODUCER_DEFAULTS, "enable.idempotence": "true" if _idempotent(dict(user.plain)) else "false"}
    if options.exactly_once:
        defaults["transaction.timeout.ms"] = _TRANSACTION_MS
    if not any(name in changed for name in jvm.TIMEOUT_SETTINGS):
        defaults[jvm.TIMEOUT_SETTINGS[0]] = str(_delivery_ms(changed, options))
    return client_settings(options, user, {**defaults, **changed}, refused, "producer")


def _idempotent(user: Mapping[str, str]) -> bool:
    """Return whether the producer is idempotent: by default, unless another setting rules it out.

    The rules of the JVM's ``ProducerConfig.postProcessAndValidateIdempotenceConfigs`` (KIP-679), as Kafka 3.9 has them,
    which is the client of Spark's own sink: Kafka 4 refuses more than five requests in flight.
    """
    if not is_true(user.get("enable.idempotence", "true")):
        return False
    against = _against_idempotence(user)
    if against is None:
        return True
    name, why = against
    if "enable.idempotence" in user:
        raise illegal(why, f"Leave kafka.{name} out, or give kafka.enable.idempotence=false.")
    warn_once("[KAFKA_IDEMPOTENCE_OFF] Idempotence will be disabled because %s is set to %.20s.", name, user[name])
    return False


def _against_idempotence(user: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the first setting that an idempotent producer cannot have, and why."""
    for names, allowed, why in _IDEMPOTENCE_NEEDS:
        for name in names:
            if name in user and not allowed(user[name]):
                return name, why
    return None


def _choose_partitioner(changed: dict[str, str]) -> None:
    """Replace the JVM client's settings of partitioners by those of librdkafka."""
    keyless = changed.pop("partitioner.ignore.keys", "false").strip().lower() == "true"
    chosen = changed.pop("partitioner.class", None)
    if chosen is None:
        if keyless:
            changed.setdefault("partitioner", "random")
        return
    match = _PARTITIONER.fullmatch(chosen.strip())
    name = match[1] if match else ""
    if name not in jvm.PARTITIONERS:
        raise illegal(
            f"The partitioner {chosen[:_SHORT]} is a class of the JVM",
            "Write a column partition, or give kafka.partitioner with one of librdkafka's.",
        )
    changed.setdefault("partitioner", jvm.PARTITIONERS[name])
    if name == "RoundRobinPartitioner":
        changed.setdefault("sticky.partitioning.linger.ms", "0")


def _fit_records_to_queue(changed: dict[str, str]) -> None:
    """Have the client refuse a record that its queue can never hold: it would wait for room without end."""
    if "buffer.memory" in changed:
        memory = changed.pop("buffer.memory")
        if not memory.strip().isdecimal():
            raise illegal(
                f"The option kafka.buffer.memory cannot be {memory[:_SHORT]!r}",
                "Give a whole number of bytes without a unit, such as 67108864.",
            )
        changed.setdefault("queue.buffering.max.kbytes", str(max(1, int(memory) // 1024)))
    if "max.request.size" in changed:
        changed.setdefault("message.max.bytes", changed.pop("max.request.size"))
    queue, largest = (
        whole_number(changed.get(name, jvm.PRODUCER_DEFAULTS[name]))
        for name in ("queue.buffering.max.kbytes", "message.max.bytes")
    )
    if queue is not None and largest is not None and 0 < queue * 1024 < largest:
        changed["message.max.bytes"] = str(queue * 1024)


def _delivery_ms(changed: Mapping[str, str], options: KafkaWriteOptions) -> int:
    """Return how long a record may take: ``retryTimeout``, but no less than a request, and no more than a transaction.

    The first is what ``configureDeliveryTimeout`` of the JVM's ``KafkaProducer`` does, the second a rule of librdkafka.
    """
    linger = max(number_of(changed, name, 0) for name in jvm.LINGER_SETTINGS)
    outage = round(options.retry_timeout * 1000)
    request = number_of(changed, "request.timeout.ms", min(outage, _REQUEST_MS))
    longest = max(outage, math.ceil(linger + request))
    if not options.exactly_once:
        return longest
    return min(longest, round(number_of(changed, "transaction.timeout.ms", float(_TRANSACTION_MS))))


def _choose_compression_level(changed: dict[str, str]) -> None:
    """Take the level of the codec in use: the JVM client has a level for each."""
    levels = {match[1]: changed.pop(name) for name in list(changed) if (match := _COMPRESSION_LEVEL.fullmatch(name))}
    codec = changed.get("compression.type", changed.get("compression.codec", "none")).strip().lower()
    if codec not in levels:
        return
    level = whole_number(levels[codec])
    if level is None or not -1 <= level <= _HIGHEST_LEVEL:
        raise illegal(
            f"The option kafka.compression.{codec}.level cannot be {levels[codec][:_SHORT]!r}",
            f"Give a whole number from -1, the default of the codec, to {_HIGHEST_LEVEL}: librdkafka has no others.",
        )
    changed.setdefault("compression.level", str(level))
