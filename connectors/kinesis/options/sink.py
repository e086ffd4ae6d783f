"""The options of the ``kinesis`` sink; address and credentials are shared with the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.core.errors import OptionError
from connectors.core.options.declaration import option, parse_options
from connectors.core.options.kinds import BOOLEAN, STRING
from connectors.core.options.outages import refuse_second_limit
from connectors.kinesis import FORMAT
from connectors.kinesis.options.client import STREAM, KinesisClientOptions, resolve_client


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisWriteOptions(KinesisClientOptions):
    """The options of the sink, for streams and batch writes. Made by `parse_write_options`."""

    stream: str | None = option(
        "streamName",
        STRING,
        "The stream of all rows, by its name, or by its ARN for one of another account; wins over a column stream. "
        "This or a column stream is required.",
        default=None,
        aliases=("streamARN", "kinesis.streamName", "kinesis.streamArn"),
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

    def datasets(self) -> list[tuple[str, str]]:
        """Return the stream as OpenLineage names datasets; none if a column names streams."""
        return [] if self.stream is None else self.stream_datasets([self.stream])


def parse_write_options(raw: Mapping[str, str], environ: Mapping[str, str]) -> KinesisWriteOptions:
    """Parse the options of a sink; ``environ`` is the driver's, for secrets and the region.

    Raises an `OptionError` for an option that is unknown, illegal, or contradicts another.
    """
    options = parse_options(KinesisWriteOptions, raw, environ, FORMAT)
    refuse_second_limit(raw, "numRetries", FORMAT, is_set=options.num_retries is not None)
    if options.stream is not None and not STREAM.fullmatch(options.stream):
        what = f"The option streamName cannot be {options.stream!r}"
        action = "Name one stream for all rows, or leave the option out and give a column stream."
        raise OptionError("OPTION_ILLEGAL", what, FORMAT, action)
    return resolve_client(options, environ, options.stream or "")
