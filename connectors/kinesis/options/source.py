"""The options of the ``kinesis`` source, under the names of the other Kinesis connectors for Spark."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import (
    Option,
    available_now,
    conflict,
    declared_options,
    option,
    parse_options,
    push_down_predicate,
)
from connectors.core.options.kinds import BOOLEAN, BYTES, DURATION, FLOAT, INTEGER, PATH, STRING, Kind, choice
from connectors.core.options.outages import refuse_second_limit
from connectors.kinesis import FORMAT
from connectors.kinesis.offsets import LATEST, TRIM, ShardPositions, parse_positions
from connectors.kinesis.options.client import NAME, STREAM, STREAM_ARN, KinesisClientOptions, resolve_client
from connectors.spool.options import ephemeral_folder

_log = logging.getLogger(__name__)
_CONSUMER_ARN: Final = r"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:[0-9]{12}:stream/[^/]+/consumer/[^/:]+:[0-9]+"
_CONSUMER: Final = re.compile(f"{NAME.pattern}|{_CONSUMER_ARN}")


class ConsumerMode(StrEnum):
    """How records are read."""

    POLLING = "polling"
    EFO = "efo"


def _parse_mode(text: str) -> ConsumerMode:
    if text.lower() in {"efo", "subscribetoshard"}:
        return ConsumerMode.EFO
    if text.lower() not in {"polling", "getrecords"}:
        raise ValueError("it is not a mode")
    return ConsumerMode.POLLING


MODE: Final = Kind("choice", "polling or efo", _parse_mode)


class Deaggregate(StrEnum):
    """What becomes of aggregates of the KPL."""

    AUTO = "auto"
    FALSE = "false"


@dataclass(frozen=True, kw_only=True)
class FanOutOptions:
    """The options of subscriptions; without slots, so that it can be a second base."""

    consumer_name: str | None = option(
        "consumerName",
        STRING,
        "For efo: the name of the consumer, one of its own for each query. It is registered with each stream where it "
        "is missing, and stays. With efo, this or consumerARN is required.",
        default=None,
        aliases=("efo.consumer.name", "kinesis.consumerName"),
    )
    consumer_arn: str | None = option(
        "consumerARN",
        STRING,
        "For efo: consumers that are registered already, in the order of the streams, separated by commas, by ARN or "
        "by name. They are never registered or deregistered.",
        default=None,
        aliases=("registeredConsumerId", "fanoutConsumerARN"),
    )
    require_deregistration: bool = option(
        "requireConsumerDeregistration",
        BOOLEAN,
        "For efo: true deregisters the consumer when the query ends, however it ends, also when it is about to be "
        "started again. A consumer costs by the hour and shard.",
        default="false",
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
    consumers: tuple[str, ...] = ()
    """Derived: the name or ARN of the consumer of each stream; none for polling."""
    spool_folder: Path = Path()
    """Derived: spoolLocation, or the folder that is picked without it."""
    register_seconds: float = 60.0
    """Constant: how long a consumer may take to become ACTIVE, which takes the service some seconds."""
    stall_seconds: float = 30.0
    """Constant: silence after which a subscription is reopened. The service sends something every few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisReadOptions(KinesisClientOptions, FanOutOptions):
    """The options of the source, for streams and batch reads; `parse_read_options` makes them."""

    stream_name: str = option(
        "streamName",
        STRING,
        "The streams to read: names or ARNs, separated by commas. A stream of another account needs its ARN. All are "
        "in one region.",
        aliases=("streamNames", "kinesis.streamName", "streamARN", "streamARNs", "kinesis.streamArn"),
    )
    initial_position: str | None = option(
        "initialPosition",
        STRING,
        "Where a new query begins: latest, trim_horizon (or earliest), at_timestamp TIME, or JSON with a position for "
        "each shard. TIME is ISO 8601, in UTC unless it names a zone, or milliseconds since 1970. JSON: "
        '{"shardId-000000000000":{"iteratorType":"AFTER_SEQUENCE_NUMBER","iteratorPosition":"4959..."}}, for several '
        "streams one level deeper, under their names. Types are AFTER_SEQUENCE_NUMBER, AT_SEQUENCE_NUMBER, "
        "AT_TIMESTAMP, TRIM_HORIZON, LATEST and SHARD_END. Shards not named begin at trim_horizon, parents of those "
        "that are count as read. Shards that come later are always read from their first record. Default: latest for "
        "streams, trim_horizon for batch reads.",
        default=None,
        aliases=("startingPosition", "kinesis.startingPosition"),
        instead_of=("initialTimestamp", "startingTimestamp"),
    )
    ending_position: str | None = option(
        "endingPosition",
        STRING,
        "Where a batch read ends: latest, at_timestamp TIME (its records are not read), or JSON as in initialPosition.",
        default=None,
        instead_of=("endingTimestamp",),
    )
    consumer_mode: ConsumerMode = option(
        "consumerMode",
        MODE,
        "polling reads by GetRecords; efo (enhanced fan-out) by subscriptions of a registered consumer, to which "
        "records are pushed. It may change from start to start.",
        default="polling",
        aliases=("consumerType", "readerType", "kinesis.consumerType"),
    )
    available_now: bool = available_now()
    push_down_predicate: bool = push_down_predicate()
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger",
        INTEGER,
        "The most records of a batch, shared by the shards that have any. The driver counts a share of up to 10,000, "
        "and reads these records for it; it cuts a larger one by time, as a shard of AWS takes at most 1,000 records "
        "a second. Outside AWS, or once more arrived, it counts every share. An aggregate of the KPL is one record.",
        default=None,
        minimum="1",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        BYTES,
        "The most bytes of data of a batch, shared in the same way. The driver counts a share of up to 4 MB; it cuts a "
        "larger one by time, as a shard of AWS takes at most 1 MB a second, or counts it as for maxRecordsPerTrigger. "
        "A record that alone is larger passes alone.",
        default=None,
        minimum="1",
    )
    max_records_per_fetch: int = option(
        "maxRecordsPerFetch",
        INTEGER,
        "The most records of one GetRecords call.",
        default="10000",
        minimum="1",
        maximum="10000",
        aliases=("kinesis.numberOfRecordsPerFetch", "numberOfRecordsPerFetch", "executor.maxRecordPerRead"),
    )
    min_fetch_period: float = option(
        "minFetchPeriod",
        DURATION,
        "The time between the starts of two GetRecords calls to a shard, of driver and tasks; after a pause up to "
        "three follow at once, and a search takes 0.7 of it. A shard takes five calls a second from all who poll.",
        default="400ms",
        minimum="1ms",
        aliases=("fetchInterval",),
    )
    max_fetch_rate: float = option(
        "maxFetchRate",
        FLOAT,
        "The most MB a second that a task reads from a shard. The service gives 2 to all who poll.",
        default="2.0",
        minimum="0.001",
        maximum="1000000",
    )
    idle_fetch_period: float = option(
        "idleFetchPeriod",
        DURATION,
        "The time between two polls of a shard to which nothing comes: the longest wait for its first record.",
        default="5s",
        minimum="1ms",
    )
    min_partitions: int | None = option(
        "minPartitions",
        INTEGER,
        "The least tasks of a batch, up to one for each shard that has new records. Default: as few as read 30 MB a "
        "second each where every shard gives maxFetchRate. A task reads up to 16 shards at a time.",
        default=None,
        minimum="1",
        instead_of=("shardsPerTask",),
    )
    shard_fetch_interval: float = option(
        "shardFetchInterval",
        DURATION,
        "How often the shards of a stream are listed, to find new ones.",
        default="10s",
        minimum="1ms",
        aliases=("describeShardInterval", "kinesis.describeShardInterval"),
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        BOOLEAN,
        "false goes on, with a warning, when records are gone that the query needs: trimmed, or their shard vanished. "
        "A stream that was recreated always stops the query.",
        default="true",
    )
    deaggregate: Deaggregate = option(
        "deaggregate",
        choice(Deaggregate),
        "auto takes aggregates of the KPL apart; one with a bad checksum stays one row. false leaves all as they are.",
        default="auto",
    )
    streams: tuple[str, ...] = ()
    """Derived: names or ARNs of the streams."""
    start: ShardPositions = field(default=ShardPositions())
    """Derived: where a new query begins; LATEST or TRIM when not given."""
    end: ShardPositions = field(default=ShardPositions(LATEST))
    """Derived: where a batch read ends."""

    def datasets(self, _: Any = None) -> list[tuple[str, str]]:
        """Return the streams as OpenLineage names datasets."""
        return self.stream_datasets(self.streams)


def parse_read_options(
    raw: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool | None = None
) -> KinesisReadOptions:
    """Parse the options of a source; ``streaming`` is None until Spark has decided.

    Raises an `OptionError` for an option that is unknown, missing, illegal, or contradicts another.
    """
    options = parse_options(KinesisReadOptions, _without_milliseconds(raw), environ, FORMAT)
    streams = _streams(options)
    options = resolve_client(options, environ, next(filter(STREAM_ARN.fullmatch, streams), ""))
    refuse_second_limit(raw, "numRetries", FORMAT, is_set=options.num_retries is not None)
    start = ShardPositions(TRIM if streaming is False else LATEST)
    if options.initial_position is not None:
        start = parse_positions("initialPosition", options.initial_position)
    end = ShardPositions(LATEST)
    if options.ending_position is not None:
        if streaming is True:
            raise _illegal("A stream has no endingPosition", "Leave it out.")
        end = parse_positions("endingPosition", options.ending_position)
    _check_streams(start, streams, "initialPosition")
    _check_streams(end, streams, "endingPosition")
    options = dataclasses.replace(options, streams=streams, start=start, end=end)
    if options.consumer_mode is not ConsumerMode.EFO:
        _check_no_fan_out(raw)
        return options
    consumers = _consumers(options, streams)
    identity = f"{options.endpoint_url} {options.region} {' '.join(streams)} {' '.join(consumers)}"
    folder = options.spool_location or ephemeral_folder(FORMAT, identity, environ)
    return dataclasses.replace(options, consumers=consumers, spool_folder=folder)


def _without_milliseconds(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options with a unit where other connectors count milliseconds under one of our names."""
    options = dict(raw)
    for key, value in raw.items():
        lowered = key.lower().removeprefix("kinesis.").removeprefix("executor.")
        if lowered in {"fetchintervalms", "idletimebetweenreadsinms"} and str(value).strip().isdigit():
            del options[key]
            options["fetchInterval"] = f"{str(value).strip()}ms"
    return options


def _streams(options: KinesisReadOptions) -> tuple[str, ...]:
    action = "Give names or ARNs, separated by commas. An ARN is arn:aws:kinesis:REGION:ACCOUNT:stream/NAME."
    streams = _split("streamName", options.stream_name, STREAM, action)
    if len(set(streams)) < len(streams):
        raise _illegal("The option streamName names a stream twice", "Name it once.")
    regions = {match[1] for stream in streams if (match := STREAM_ARN.fullmatch(stream))}
    if len(regions) > 1:
        what = f"The option streamName has streams of several regions: {', '.join(sorted(regions))}"
        raise _illegal(what, "Make one query for each region, or a union.")
    return streams


def _split(name: str, text: str, pattern: re.Pattern[str], action: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        if not pattern.fullmatch(part):
            raise _illegal(f"The option {name} cannot hold {part!r}", action)
    return parts


def _check_streams(positions: ShardPositions, streams: tuple[str, ...], option_name: str) -> None:
    names = {stream.rpartition("/")[2] for stream in streams}
    if "" in positions.named and len(streams) > 1:
        what = f"The option {option_name} names shards, but not their streams"
        raise _illegal(what, "With several streams, put each one's shards under its name.")
    if unknown := sorted(set(positions.named) - names - {""}):
        what = f"The option {option_name} names the stream {unknown[0]}, which the query does not read"
        raise _illegal(what, f"The streams are: {', '.join(sorted(names))}.")


def _consumers(options: FanOutOptions, streams: Sequence[str]) -> tuple[str, ...]:
    """Return the name or ARN of the consumer of each stream."""
    if options.consumer_name is not None and options.consumer_arn is not None:
        raise conflict(FORMAT, "consumerName", "consumerARN", "both name the consumer", "Give one of them.")
    if options.consumer_arn is not None:
        return _registered(options, options.consumer_arn, streams)
    if options.consumer_name is None:
        action = "Give a name that no other query on the stream uses, or consumerARN for a registered consumer."
        raise OptionError("OPTION_MISSING", "consumerMode=efo needs consumerName", FORMAT, action)
    if not NAME.fullmatch(options.consumer_name):
        action = "Give up to 128 letters, digits, dots, dashes and underscores."
        raise _illegal(f"The option consumerName cannot be {options.consumer_name!r}", action)
    return (options.consumer_name,) * len(streams)


def _registered(options: FanOutOptions, text: str, streams: Sequence[str]) -> tuple[str, ...]:
    if options.require_deregistration:
        what = "the query deregisters no consumer that it did not register"
        raise conflict(FORMAT, "requireConsumerDeregistration", "consumerARN", what, "Leave it out.")
    action = "Give names of consumers, or ARNs: arn:aws:kinesis:REGION:ACCOUNT:stream/NAME/consumer/NAME:NUMBER."
    consumers = _split("consumerARN", text, _CONSUMER, action)
    if len(consumers) != len(streams):
        what = f"The option consumerARN names {len(consumers)} consumers for {len(streams)} streams"
        raise _illegal(what, "Give one for each stream, in their order.")
    for stream, consumer in zip(streams, consumers, strict=True):
        if ":" in consumer:
            check_consumer_of(stream, consumer)
    return consumers


def check_consumer_of(stream: str, consumer: str) -> None:
    """Raise an `OptionError` for the ARN of another stream's consumer: it would bring the records of that stream."""
    owner = consumer.partition("/consumer/")[0]
    if stream != (owner if stream.startswith("arn:") else owner.rpartition("/")[2]):
        what = f"The option consumerARN names a consumer of {owner} for the stream {stream}"
        action = "Give the consumers of the streams, in the order of the streams."
        raise OptionError("OPTION_CONFLICT", what, FORMAT, action)


def _check_no_fan_out(raw: Mapping[str, str | None]) -> None:
    """Refuse options of efo beside polling; when consumerMode was given, it was not forgotten: then only warn."""
    present = {key.lower() for key, value in raw.items() if value is not None}

    def named(options: Iterable[Option]) -> list[str]:
        return [name for one in options for name in (one.name, *one.aliases) if name.lower() in present]

    ignored = named(declared_options(FanOutOptions).values())
    if ignored and named([declared_options(KinesisReadOptions)["consumer_mode"]]):
        _warn_ignored(", ".join(ignored))
    elif ignored:
        why = "it is for efo, but the query polls records, the default"
        action = f"Give consumerMode=efo, or leave {ignored[0]} out."
        raise conflict(FORMAT, ignored[0], "consumerMode", why, action)


@cache
def _warn_ignored(names: str) -> None:
    """Warn once of what each start of a query and each of its processes finds."""
    _log.warning("[KINESIS_OPTION_IGNORED] consumerMode=polling does not use %s.", names)


def _illegal(what: str, action: str) -> OptionError:
    return OptionError("OPTION_ILLEGAL", what, FORMAT, action)
