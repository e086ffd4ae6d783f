"""The options of the ``kinesis`` source, and those it shares with the sink, each declared once.

Names and aliases are those of the other Kinesis connectors for Spark, so that a move is small. Parse in the data
source's ``schema()``, so that a bad option fails while ``load()`` runs, and again where the options are needed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, declared_options, option, parse_options
from connectors.core.options.kinds import BOOLEAN, BYTES, DURATION, FLOAT, INTEGER, STRING, Kind, choice
from connectors.kinesis.offsets import CONNECTOR, LATEST, TRIM, Where, parse_where
from connectors.kinesis.options.client import STREAM_ARN, KinesisClientOptions, resolve_client
from connectors.kinesis.options.fan_out import FanOutOptions, check_fan_out, check_no_fan_out
from connectors.spool.options import ephemeral_folder

__all__ = [
    "CONNECTOR",
    "ConsumerMode",
    "Deaggregate",
    "KinesisReadOptions",
    "parse_read_options",
]

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class ConsumerMode(StrEnum):
    """How records are read."""

    POLLING = "polling"
    EFO = "efo"


def _parse_mode(text: str) -> ConsumerMode:
    if text.lower() in {"efo", "subscribetoshard"}:
        return ConsumerMode.EFO
    if text.lower() not in {"polling", "getrecords"}:
        raise ValueError("it is no way to read")
    return ConsumerMode.POLLING


MODE: Final = Kind("choice", "polling or efo", ConsumerMode, _parse_mode)


class Deaggregate(StrEnum):
    """What becomes of aggregates of the KPL."""

    AUTO = "auto"
    FALSE = "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisReadOptions(KinesisClientOptions, FanOutOptions):
    """The options of the source, for streams and batch reads. Made by `parse_read_options`."""

    stream_name: str | None = option(
        "streamName",
        STRING,
        "The streams to read: names, separated by commas. This or streamARN is required.",
        default=None,
        aliases=("streamNames", "kinesis.streamName"),
    )
    stream_arn: str | None = option(
        "streamARN",
        STRING,
        "The streams to read: ARNs of one region, separated by commas. For streams of other accounts.",
        default=None,
        aliases=("streamARNs", "kinesis.streamArn"),
    )
    initial_position: str | None = option(
        "initialPosition",
        STRING,
        "Where a new query begins: latest, trim_horizon (or earliest), at_timestamp with initialTimestamp, or JSON "
        'with a position for shards: {"shardId-000000000000":{"iteratorType":"AFTER_SEQUENCE_NUMBER",'
        '"iteratorPosition":"4959..."}}, for several streams one level deeper, under their names. Types are '
        "AFTER_SEQUENCE_NUMBER, AT_SEQUENCE_NUMBER, AT_TIMESTAMP, TRIM_HORIZON, LATEST and SHARD_END. Shards not named "
        "begin at trim_horizon, parents of those that are count as read. Shards that come later are always read "
        "from their first record. Default: latest for streams, trim_horizon for batch reads.",
        default=None,
        aliases=("startingPosition", "kinesis.startingPosition"),
    )
    initial_timestamp: str | None = option(
        "initialTimestamp",
        STRING,
        "The time of initialPosition=at_timestamp: ISO 8601, UTC where it names no zone, or milliseconds since 1970.",
        default=None,
        aliases=("startingTimestamp",),
    )
    ending_position: str | None = option(
        "endingPosition",
        STRING,
        "Where a batch read ends: latest, at_timestamp with endingTimestamp, or JSON as in initialPosition.",
        default=None,
    )
    ending_timestamp: str | None = option(
        "endingTimestamp", STRING, "The time of endingPosition=at_timestamp; its records are not read.", default=None
    )
    consumer_mode: ConsumerMode = option(
        "consumerMode",
        MODE,
        "polling reads by GetRecords; efo (enhanced fan-out) by subscriptions of a registered consumer, to which "
        "records are pushed. It may change from start to start.",
        default="polling",
        aliases=("consumerType", "readerType", "kinesis.consumerType"),
    )
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger",
        INTEGER,
        "The most records of a batch, shared by the shards that have any. A share of up to 10,000 is counted by the "
        "driver, which reads these records for it; a larger one is cut by time, as a shard takes at most 1,000 "
        "records a second. An aggregate of the KPL is one record.",
        default=None,
        minimum="1",
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        BYTES,
        "The most bytes of data of a batch, shared in the same way. A share of up to 4 MB is counted by the driver; a "
        "larger one is cut by time, as a shard takes at most 1 MB a second. A record that alone is larger passes "
        "alone.",
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
        "The time between two GetRecords calls to a shard, of driver and tasks together. A shard takes five calls a "
        "second from all who read it by polling.",
        default="500ms",
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
        "The time between two looks at a shard to which nothing comes: the longest wait for its first record.",
        default="5s",
        minimum="1ms",
    )
    probe_window: float = option(
        "probeWindow",
        DURATION,
        "How far behind the newest record of a busy shard a batch may end: the driver looks for a record this old, "
        "instead of reading up to the newest.",
        default="1s",
        minimum="1ms",
    )
    shards_per_task: int | None = option(
        "shardsPerTask",
        INTEGER,
        "How many shards a task reads, one after the other. Default: 1.",
        default=None,
        minimum="1",
    )
    max_partitions: int | None = option(
        "maxPartitions", INTEGER, "The most tasks of a batch; shards are dealt out to them.", default=None, minimum="1"
    )
    shard_fetch_interval: float = option(
        "shardFetchInterval",
        DURATION,
        "How often the shards of a stream are listed, to find new ones.",
        default="10s",
        minimum="1ms",
        aliases=("describeShardInterval", "kinesis.describeShardInterval"),
    )
    max_shards_per_describe: int = option(
        "maxShardsPerDescribe",
        INTEGER,
        "The most shards of one ListShards call.",
        default="1000",
        minimum="1",
        maximum="10000",
    )
    preserve_shard_order: bool = option(
        "preserveShardOrder",
        BOOLEAN,
        "A shard that came of a split or merge is read in later batches than the end of its parents, so that records "
        "of one key keep their order. false reads them side by side.",
        default="true",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        BOOLEAN,
        "false goes on, with a warning, when records are gone that the query needs: trimmed, or their shard vanished. "
        "A stream that was made anew always stops the query.",
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
    start: Where = field(default=Where())
    """Derived: where a new query begins; LATEST or TRIM when not given."""
    end: Where = field(default=Where(LATEST))
    """Derived: where a batch read ends."""


def parse_read_options(
    raw: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool | None = None
) -> KinesisReadOptions:
    """Parse and check the options of a source; reads nothing but the arguments.

    Args:
        raw: what Spark hands over: names in any case to texts.
        environ: the environment of the driver, for secrets and the region.
        streaming: whether it is a stream; None while that is not known.

    Raises:
        OptionError: an option is unknown, missing, illegal, not for this kind of read, or in conflict with another.
    """
    options = parse_options(KinesisReadOptions, _without_milliseconds(raw), environ, CONNECTOR)
    streams = _streams(options)
    options = resolve_client(options, environ, streams[0])
    default = TRIM if streaming is False else LATEST
    start = Where(default)
    if options.initial_position is not None or options.initial_timestamp is not None:
        text = options.initial_position or "at_timestamp"
        start = parse_where("initialPosition", text, "initialTimestamp", options.initial_timestamp)
    end = Where(LATEST)
    if options.ending_position is not None or options.ending_timestamp is not None:
        if streaming is True:
            raise OptionError("OPTION_ILLEGAL", "A stream has no endingPosition", CONNECTOR, "Leave it out.")
        text = options.ending_position or "at_timestamp"
        end = parse_where("endingPosition", text, "endingTimestamp", options.ending_timestamp)
    if options.shards_per_task is not None and options.max_partitions is not None:
        raise conflict(CONNECTOR, "shardsPerTask", "maxPartitions", "both say how many tasks there are", "Give one.")
    for where, name in ((start, "initialPosition"), (end, "endingPosition")):
        _check_streams(where, streams, name)
    options = dataclasses.replace(options, streams=streams, start=start, end=end)
    if options.consumer_mode is not ConsumerMode.EFO:
        mode = declared_options(KinesisReadOptions)["consumer_mode"]
        names = {name.lower() for name in (mode.name, *mode.aliases)}
        check_no_fan_out(raw, asked=any(key.lower() in names and value is not None for key, value in raw.items()))
        return options
    consumers = check_fan_out(options, streams)
    identity = f"{options.endpoint_url} {options.region} {' '.join(streams)} {' '.join(consumers)}"
    folder = options.spool_location or ephemeral_folder(CONNECTOR, identity, environ)
    return dataclasses.replace(options, consumers=consumers, spool_folder=folder)


def _without_milliseconds(raw: Mapping[str, str]) -> dict[str, str]:
    """The options, with those that other connectors count in milliseconds under our names, with their unit."""
    found = dict(raw)
    for key, value in raw.items():
        lowered = key.lower().removeprefix("kinesis.").removeprefix("executor.")
        if lowered in {"fetchintervalms", "idletimebetweenreadsinms"} and str(value).strip().isdigit():
            del found[key]
            found["fetchInterval"] = f"{str(value).strip()}ms"
    return found


def _streams(options: KinesisReadOptions) -> tuple[str, ...]:
    """Names or ARNs, each once."""
    if (options.stream_name is None) == (options.stream_arn is None):
        what = (
            "Neither streamName nor streamARN is"
            if options.stream_name is None
            else "Both streamName and streamARN are"
        )
        code = "OPTION_MISSING" if options.stream_name is None else "OPTION_CONFLICT"
        raise OptionError(code, f"{what} given", CONNECTOR, "Give one of them.")
    by_name = options.stream_name is not None
    option_name, pattern = ("streamName", _NAME) if by_name else ("streamARN", STREAM_ARN)
    found = [each.strip() for each in (options.stream_name or options.stream_arn or "").split(",")]
    for each in found:
        if not pattern.fullmatch(each):
            advice = (
                "Give names, separated by commas."
                if by_name
                else "Give ARNs: arn:aws:kinesis:REGION:ACCOUNT:stream/NAME."
            )
            raise OptionError("OPTION_ILLEGAL", f"The option {option_name} cannot hold {each!r}", CONNECTOR, advice)
    if len(set(found)) < len(found):
        raise OptionError(
            "OPTION_ILLEGAL", f"The option {option_name} names a stream twice", CONNECTOR, "Name it once."
        )
    regions = {match[1] for each in found if (match := STREAM_ARN.fullmatch(each))}
    if len(regions) > 1:
        what = f"The option streamARN has streams of several regions: {', '.join(sorted(regions))}"
        raise OptionError("OPTION_ILLEGAL", what, CONNECTOR, "Make one query for each region, or a union.")
    return tuple(found)


def _check_streams(where: Where, streams: tuple[str, ...], option_name: str) -> None:
    """Positions that are named belong to the streams that are read."""
    names = {each.rpartition("/")[2] for each in streams}
    if "" in where.named and len(streams) > 1:
        raise OptionError(
            "OPTION_ILLEGAL",
            f"The option {option_name} names shards and not their streams",
            CONNECTOR,
            "With several streams, put the shards of each under its name.",
        )
    if unknown := sorted(set(where.named) - names - {""}):
        what = f"The option {option_name} names the stream {unknown[0]}, which is not read"
        raise OptionError("OPTION_ILLEGAL", what, CONNECTOR, f"The streams are: {', '.join(sorted(names))}.")
