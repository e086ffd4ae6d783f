"""Writes the reference pages, and the stub of `connectors.options`, from what the code declares: ``./dev docs``."""

from __future__ import annotations

from pathlib import Path

from connectors.core.options.declaration import Option, declared_options
from connectors.kafka.options.client import KafkaClientOptions
from connectors.kafka.options.sink import KafkaWriteOptions
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import source_schema
from connectors.kinesis.options.client import KinesisClientOptions
from connectors.kinesis.options.sink import KinesisWriteOptions
from connectors.kinesis.options.source import KinesisReadOptions
from connectors.kinesis.schema import SOURCE_SCHEMA as KINESIS_SCHEMA
from connectors.protobuf.options import ProtobufOptions, RegistryOptions
from connectors.pubsub.options.sink import PubSubWriteOptions
from connectors.pubsub.options.source import PubSubReadOptions
from connectors.pubsub.schema import DATABRICKS_SCHEMA, STREAM_SCHEMA
from tools.option_stub import option_stub
from tools.reference_commands import commands_page
from tools.reference_errors import errors_page
from tools.reference_python import python_page, testing_page

ROOT = Path(__file__).parent.parent

_COLUMNS = {
    "messageId": "the id that the service gave it; unique within its topic",
    "payload": "the data, as published",
    "attributes": "the attributes; an empty map when there are none",
    "orderingKey": "the ordering key; an empty string when there is none",
    "publishTimestamp": "when the service received it",
    "deliveryAttempt": "how often it was delivered, where a dead-letter policy counts that; else null",
    "subscription": "the full path of the subscription",
    "offset": "the position that the spool gave it: dense, from 0, never changed",
}
_SINK_COLUMNS = (
    ("payload", "binary or string, required; or `data`", "null is an empty one"),
    ("attributes", "`map<string,string>`", "null is none; keys and values within the limits of the service"),
    ("orderingKey", "string", "null or empty: no order"),
    ("topic", "string", "an id or a full path; unless the option `topicId` is given, which wins"),
)


_DATABRICKS_COLUMNS = {
    "messageId": _COLUMNS["messageId"],
    "payload": _COLUMNS["payload"],
    "attributes": 'the attributes as a JSON object, such as `{"kind":"order"}`',
    "publishTimestampInMillis": "when the service received it, in milliseconds since 1970",
}


def pages() -> dict[Path, str]:
    """Return the pages and the stub: path below the root of the repository to text."""
    return {
        Path("docs/reference/pubsub.md"): _pubsub(),
        Path("docs/reference/kafka.md"): _kafka(),
        Path("docs/reference/kinesis.md"): _kinesis(),
        Path("docs/reference/protobuf.md"): _protobuf(),
        Path("docs/reference/command-line.md"): commands_page(),
        Path("docs/reference/errors.md"): errors_page(),
        Path("docs/reference/python.md"): python_page(),
        Path("docs/reference/testing.md"): testing_page(),
        Path("connectors/core/options/builders.pyi"): option_stub(),
    }


def _pubsub() -> str:
    columns = [f"| `{one.name}` | `{one.dataType.simpleString()}` | {_COLUMNS[one.name]} |" for one in STREAM_SCHEMA]
    theirs = [
        f"| `{one.name}` | `{one.dataType.simpleString()}` | {_DATABRICKS_COLUMNS[one.name]} |"
        for one in DATABRICKS_SCHEMA
    ]
    options = [text for row in _options(PubSubReadOptions) for text in _option(row)]
    sink = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _SINK_COLUMNS]
    return "\n".join(
        [
            "# `pubsub`: columns and options",
            "",
            "Generated from the code by `./dev docs`. What is promised: [the spool](../explanation/spool.md).",
            "",
            "## Columns of stream and batch",
            "",
            "| column | type | |",
            "|---|---|---|",
            *columns,
            "",
            "With `schemaMode=databricks`:",
            "",
            "| column | type | |",
            "|---|---|---|",
            *theirs,
            "",
            "## Options of stream and batch",
            "",
            "Names in any case. An unknown option is an error that names the nearest one. Bytes take `k`, `m`, `g`;",
            "durations `ms`, `s`, `m`, `h`, `d`.",
            *options,
            "",
            "## Columns of the sink",
            "",
            "For batch and stream; names in any case, others are not looked at. What is promised:",
            "[the sink](../explanation/pubsub-sink.md).",
            "",
            "| column | type | |",
            "|---|---|---|",
            *sink,
            "",
            "## Options of the sink",
            *(text for row in _options(PubSubWriteOptions) for text in _option(row)),
            "",
        ]
    )


_KAFKA_COLUMNS = {
    "key": "the key; null if there is none",
    "value": "the value; null for a tombstone",
    "topic": "the topic",
    "partition": "the partition",
    "offset": "the offset, which grows within a partition, not always by one",
    "timestamp": "the producer's time, or the broker's",
    "timestampType": "0: the producer's time; 1: the broker's; -1: none",
    "headers": "with `includeHeaders`: in their order, duplicates too; null if there are none",
}
_KAFKA_SINK_COLUMNS = (
    ("value", "string or binary, required", "null writes a tombstone"),
    ("key", "string or binary", "null: the partitioner is free"),
    ("topic", "string", "unless the option `topic` is given, which wins"),
    ("partition", "int", "null: the partitioner says"),
    (
        "headers",
        "`array<struct<key:string,value:binary>>`",
        "its fields in any case; no header and no key may be null",
    ),
    ("timestamp", "timestamp", "with `writeTimestamps`; after 1970-01-01T00:00:00Z, null: now"),
)


def _kafka() -> str:
    columns = [
        f"| `{one.name}` | `{one.dataType.simpleString()}` | {_KAFKA_COLUMNS[one.name]} |"
        for one in source_schema(headers=True)
    ]
    sink = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _KAFKA_SINK_COLUMNS]
    client = _options(KafkaClientOptions)
    shared = {row.name for row in client}
    return "\n".join(
        [
            "# `kafka_py`: columns and options",
            "",
            "Generated from the code by `./dev docs`. What is promised: [the behaviours](../explanation/kafka.md) and",
            "[exactly-once writes](../explanation/kafka-exactly-once.md).",
            "",
            "## Columns of the source",
            "",
            "| column | type | |",
            "|---|---|---|",
            *columns,
            "",
            "## Columns of the sink",
            "",
            "Others are not looked at; names count in their case.",
            "",
            "| column | type | |",
            "|---|---|---|",
            *sink,
            "",
            "## Options of source and sink",
            "",
            "Names in any case. An unknown option is an error that names the nearest one. Everything else that begins",
            "with `kafka.` is a setting of librdkafka; settings of the JVM's client are translated where they mean",
            "something, and refused with what to use instead where they do not.",
            *(text for row in client for text in _option(row)),
            "",
            "## Options of the source",
            *(text for row in _options(KafkaReadOptions) if row.name not in shared for text in _option(row)),
            "",
            "## Options of the sink",
            *(text for row in _options(KafkaWriteOptions) if row.name not in shared for text in _option(row)),
            "",
        ]
    )


_KINESIS_COLUMNS = {
    "partitionKey": "the partition key",
    "data": "the data, as put",
    "stream": "the name of the stream",
    "shardId": "the id of the shard",
    "sequenceNumber": "the number of the record: grows within a shard; compare it as a number, not as text",
    "approximateArrivalTimestamp": "when the service received it, to the millisecond; not always growing",
    "subSequenceNumber": "the place within an aggregate of the KPL, from 0; 0 for other records",
    "explicitHashKey": "as in an aggregate of the KPL; null for other records, of which the service does not say it",
}


_KINESIS_SINK_COLUMNS = (
    ("data", "string or binary, required", "text is written as UTF-8"),
    ("partitionKey", "string, required", "1 to 256 characters"),
    ("explicitHashKey", "string", "a whole number that decides the shard instead of the key; null: the key does"),
    ("stream", "string", "name or ARN; unless the option `streamName` or `streamARN` is given, which wins"),
)


def _kinesis() -> str:
    columns = [
        f"| `{one.name}` | `{one.dataType.simpleString()}` | {_KINESIS_COLUMNS[one.name]} |" for one in KINESIS_SCHEMA
    ]
    sink = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _KINESIS_SINK_COLUMNS]
    client = _options(KinesisClientOptions)
    shared = {row.name for row in client}
    return "\n".join(
        [
            "# `kinesis`: columns and options",
            "",
            "Generated from the code by `./dev docs`. What is promised: [the source](../explanation/kinesis.md) and",
            "[the sink](../explanation/kinesis-sink.md).",
            "",
            "## Columns of the source",
            "",
            "| column | type | |",
            "|---|---|---|",
            *columns,
            "",
            "## Columns of the sink",
            "",
            "Others are not looked at; names count in their case.",
            "",
            "| column | type | |",
            "|---|---|---|",
            *sink,
            "",
            "## Options for reaching the service",
            "",
            "Names in any case. An unknown option is an error that names the nearest one. Bytes take `k`, `m`, `g`;",
            "durations `ms`, `s`, `m`, `h`, `d`.",
            *(text for row in client for text in _option(row)),
            "",
            "## Options of the source",
            *(text for row in _options(KinesisReadOptions) if row.name not in shared for text in _option(row)),
            "",
            "## Options of the sink",
            *(text for row in _options(KinesisWriteOptions) if row.name not in shared for text in _option(row)),
            "",
        ]
    )


def _protobuf() -> str:
    options = [text for row in _options(ProtobufOptions) for text in _option(row)]
    registry = [text for row in _options(RegistryOptions) for text in _option(row)]
    return "\n".join(
        [
            "# `from_protobuf` and `to_protobuf`",
            "",
            "Generated from the code by `./dev docs`. What is promised, with the test of each:",
            "[behaviours](protobuf-behaviours.md).",
            "",
            "```python",
            "from connectors.protobuf import from_protobuf, to_protobuf",
            "",
            "from_protobuf(data, messageName=None, descFilePath=None, options=None, binaryDescriptorSet=None, *,",
            "              messageClass=None, schemaRegistry=None, headers=None, fields=None, engine='auto')",
            "to_protobuf(data, messageName=None, descFilePath=None, options=None, binaryDescriptorSet=None, *,",
            "            messageClass=None, schemaRegistry=None, engine='auto')",
            "```",
            "",
            "The first five parameters are those of `pyspark.sql.protobuf.functions`. Columns have the types of",
            "[Spark's own](https://spark.apache.org/docs/latest/sql-data-sources-protobuf.html).",
            "",
            "## Options",
            "",
            "Names in any case, values as texts. An unknown option is an error that names the nearest one.",
            *options,
            "",
            "## The dictionary `schemaRegistry`",
            "",
            "Names as on Databricks, or the short ones. Names in any case; durations `ms`, `s`, `m`, `h`, `d`.",
            *registry,
            "",
        ]
    )


def _options(cls: type) -> list[Option]:
    return list(declared_options(cls).values())


def _option(row: Option) -> list[str]:
    also = f" Also: `{', '.join(row.aliases)}`." if row.aliases else ""
    default = "(required)" if row.required else row.default or "(none)"
    return ["", f"### `{row.name}`", "", f"Default: {default}. Legal: {row.legal}.{also}", "", row.doc]


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()
