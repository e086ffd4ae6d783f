"""The options of the ``kinesis`` sink; address and credentials are shared with the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.core.errors import OptionError
from connectors.core.options.declaration import option, parse_options
from connectors.core.options.kinds import BOOLEAN, BYTES, STRING
from connectors.core.options.outages import refuse_second_limit
from connectors.kinesis import FORMAT
from connectors.kinesis.options.client import NAME, STREAM_ARN, KinesisClientOptions, resolve_client


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisWriteOptions(KinesisClientOptions):
    """The options of the sink, for streams and batch writes. Made by `parse_write_options`."""

    stream_name: str | None = option(
        "streamName",
        STRING,
        "The stream of all rows; wins over a column stream. This, streamARN or a column stream is required.",
        default=None,
        aliases=("kinesis.streamName",),
    )
    stream_arn: str | None = option(
        "streamARN",
        STRING,
        "The stream of all rows by its ARN, as for one of another account; instead of streamName. This, streamName "
        "or a column stream is required.",
        default=None,
        aliases=("kinesis.streamArn",),
    )
    ordered: bool = option(
        "ordered",
        BOOLEAN,
        "Rows of one partition key reach the stream in the order in which their task has them: one call for each row, "
        "some keys at a time, or, with aggregation, for each aggregate, some shards at a time. Repartition by "
        "partitionKey, and sort within the partitions, so that a key's rows are in one task. PutRecords, which is used "
        "otherwise, keeps no order.",
        default="false",
    )
    aggregation: bool = option(
        "aggregation",
        BOOLEAN,
        "Rows of one shard are put as one record, an aggregate of the Kinesis Producer Library, which its readers take "
        "apart: this source, the KCL, Firehose and Lambda with AWS's modules. Others see the aggregates.",
        default="false",
        aliases=("aggregationEnabled", "kinesis.sink.aggregationEnabled"),
    )
    aggregation_max_size: int = option(
        "aggregationMaxSize",
        BYTES,
        "The most bytes of an aggregate and its key. A row that is larger is put as it is.",
        default="256k",
        minimum="1k",
        maximum="1m",
    )

    @property
    def stream(self) -> str | None:
        """Name or ARN of the stream of all rows; None takes the column."""
        return self.stream_name or self.stream_arn


def parse_write_options(raw: Mapping[str, str], environ: Mapping[str, str]) -> KinesisWriteOptions:
    """Parse the options of a sink; ``environ`` is that of the driver, for secrets and the region.

    Raises an `OptionError` when one is unknown, illegal, or in conflict with another.
    """
    options = parse_options(KinesisWriteOptions, raw, environ, FORMAT)
    refuse_second_limit(raw, "numRetries", FORMAT, is_set=options.num_retries is not None)
    if options.stream_name is not None and options.stream_arn is not None:
        what = "Both streamName and streamARN are given"
        raise OptionError("OPTION_CONFLICT", what, FORMAT, "Give one of them, or neither.")
    for name, value, pattern in (
        ("streamName", options.stream_name, NAME),
        ("streamARN", options.stream_arn, STREAM_ARN),
    ):
        if value is not None and not pattern.fullmatch(value):
            advice = "A sink writes all rows to one stream, or takes them from the column stream."
            raise OptionError("OPTION_ILLEGAL", f"The option {name} cannot be {value!r}", FORMAT, advice)
    return resolve_client(options, environ, options.stream or "")
