"""Writes the reference pages, and the stub of `connectors.options`, from what the code declares: ``./dev docs``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from connectors.avro.options import AvroOptions
from connectors.json.options import JsonOptions
from connectors.kafka.options.client import KafkaClientOptions
from connectors.kafka.options.sink import KafkaWriteOptions
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.schema import source_schema
from connectors.kinesis.options.client import KinesisClientOptions
from connectors.kinesis.options.sink import KinesisWriteOptions
from connectors.kinesis.options.source import KinesisReadOptions
from connectors.kinesis.schema import source_schema as kinesis_schema
from connectors.protobuf.options import ProtobufOptions
from connectors.pubsub.options.sink import PubSubWriteOptions
from connectors.pubsub.options.source import PubSubReadOptions
from connectors.pubsub.schema import DATABRICKS_SCHEMA, STREAM_SCHEMA
from connectors.registry.azure import AzureOptions
from connectors.registry.glue.options import GlueOptions
from connectors.registry.options import RegistryOptions
from connectors.registry.subjects import SubjectOptions
from tools.option_stub import option_stub
from tools.reference_commands import commands_page
from tools.reference_errors import error_pages
from tools.reference_json import JSON_RULES
from tools.reference_metrics import metrics_page
from tools.reference_options import Declared, Group, option_pages
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

_EXAMPLES = {
    "pubsub": """events = (spark.readStream.format("pubsub")
          .option("projectId", "shop").option("subscriptionId", "orders")
          .option("spoolLocation", "/data/spool/orders")
          .load())""",
    "kafka_py": """orders = (spark.readStream.format("kafka_py")
          .option("kafka.bootstrap.servers", "broker:9092").option("subscribe", "orders")
          .load())""",
    "kinesis": """orders = (spark.readStream.format("kinesis")
          .option("streamName", "orders").option("region", "eu-west-1")
          .load())""",
}


def _beginning(name: str, *promised: str) -> list[str]:
    """Return how the page of a format begins: what it has, an example, where guarantees are."""
    return [
        f"# `{name}`: options and columns",
        "",
        f"Every option and column of `{name}`, from the code (`./dev docs`); first those that a first job needs.",
        "",
        "```python",
        _EXAMPLES[name],
        "```",
        "",
        *promised,
        "",
        "## Options",
        "",
    ]


_COLUMN_HEAD = ("| column | type | meaning |", "|---|---|---|")
_ALL = "stream, batch, write"
_PUBSUB_GROUPS = (
    Group("What to read", "stream, batch", "subscriptionId projectId topicId"),
    Group(
        "The spool",
        "stream, batch",
        "spoolLocation spoolRetention maxSpoolBytes segmentCompression takeOver spoolEndpoint",
    ),
    Group("Credentials and connection", _ALL, "credentialsFile endpoint"),
    Group("Outages", _ALL, "retryTimeout"),
    Group("Where to begin", "stream", "startingTimestamp startTimeout"),
    Group("Where to begin and to end in the spool", "stream, batch", "startingPosition"),
    Group(
        "Batches",
        "stream",
        "maxRecordsPerTrigger availableNow availableNowQuiet failOnDataLoss",
    ),
    Group("Tasks", "stream, batch", "partitionBytes"),
    Group("Duplicates", "stream", "dedupHorizon dedupAttribute dedupEpoch"),
    Group(
        "Fetching",
        "stream",
        "fetchers streams fetch maxOutstandingBytes maxReaderAge",
    ),
    Group(
        "For jobs that move from Databricks",
        "stream, batch",
        "clientEmail schemaMode maxFetchPeriod maxRecordsPerFetch",
    ),
)
_PUBSUB_SINK_GROUPS = (
    Group("What to write", "write", "topicId"),
    Group("Requests", "write", "idAttribute"),
)
_KAFKA_GROUPS = (
    Group(
        "Connection and authentication",
        _ALL,
        "kafka.bootstrap.servers",
    ),
    Group("Outages", _ALL, "retryTimeout"),
)
_KAFKA_SOURCE_GROUPS = (
    Group("What to read: one of three", "stream, batch", "subscribe"),
    Group("Columns", "stream, batch", "includeHeaders"),
    Group(
        "Where to begin",
        "stream, batch",
        "startingOffsets startingTimestamp startingOffsetsByTimestampStrategy",
    ),
    Group("Where to end", "batch", "endingOffsets endingTimestamp"),
    Group("Batches", "stream", "maxOffsetsPerTrigger availableNow"),
    Group("Tasks", "stream, batch", "minPartitions failOnDataLoss"),
    Group("For queries that move from Spark's own source", "stream, batch", "groupIdPrefix"),
    Group("Tools that watch a group", "stream", "commitOffsetsToGroup"),
    Group("The nearest broker", "stream, batch", "kafka.client.rack"),
)
_KAFKA_SINK_GROUPS = (
    Group("What to write", "write", "topic writeTimestamps includeHeaders dedupHeaders"),
    Group("Exactly once", "stream write", "deliveryGuarantee"),
)
_KINESIS_GROUPS = (
    Group("The service", _ALL, "region"),
    Group(
        "Credentials",
        _ALL,
        "awsAccessKey",
    ),
    Group("Outages", _ALL, "retryTimeout maxRetryInterval"),
    Group("For jobs that move from awslabs' connector", _ALL, "numRetries"),
)
_KINESIS_SOURCE_GROUPS = (
    Group("What to read", "stream, batch", "streamName deaggregate"),
    Group("Where to begin", "stream, batch", "initialPosition"),
    Group("Where to end", "batch", "endingPosition"),
    Group("Batches", "stream", "maxRecordsPerTrigger availableNow"),
    Group("Tasks and loss", "stream, batch", "minPartitions failOnDataLoss"),
    Group(
        "Polling",
        "stream, batch",
        "maxRecordsPerFetch shardFetchInterval",
    ),
    Group(
        "Enhanced fan-out",
        "stream",
        "consumerMode consumerName",
    ),
)
_KINESIS_SINK_GROUPS = (
    Group("What to write", "write", "streamName"),
    Group("Requests", "write", "aggregation"),
)
_AVRO_GROUPS = (
    Group("Bad records", "from", "mode"),
    Group(
        "Schemas and types of columns",
        "from",
        "avroSchema",
    ),
)
_AVRO_WRITE_GROUPS = (
    Group(
        "Writing by a schema registry",
        "to",
        "topic subject.name.strategy auto.register.schemas schema.id.serializer",
    ),
)
_JSON_GROUPS = (
    Group("Bad records", "from", "mode columnNameOfCorruptRecord"),
    Group("Types of columns", "from", "recursiveFieldMaxDepth"),
    Group(
        "How JSON is read",
        "from",
        "allowComments",
    ),
)
_PROTOBUF_GROUPS = (
    Group("Bad records", "from, to", "mode"),
    Group(
        "Types of columns",
        "from",
        "recursive.fields.max.depth",
    ),
    Group("Confluent's wire format", "from, to", "wire.format"),
)
_REGISTRY_GROUPS = (
    Group("The registry", "from, to", "type"),
    Group(
        "Authentication",
        "from, to",
        "confluent.schema.registry.basic.auth.user.info allow.insecure",
    ),
    Group(
        "TLS",
        "from, to",
        "confluent.schema.registry.ssl.ca.location",
    ),
    Group("Time limits", "from, to", "request.timeout"),
    Group("Rules of schemas", "from", "ignore.read.rules"),
)


_GLUE_GROUPS = (
    Group("The registry", "from, to", "type region"),
    Group("Writing", "to", "schemaAutoRegistrationEnabled"),
    Group(
        "Authentication",
        "from, to",
        "awsAccessKey stsEndpoint",
    ),
    Group("Time limits", "from, to", "request.timeout"),
)

_AZURE_GROUPS = (
    Group("The registry", "from, to", "type"),
    Group("Authentication", "from, to", "tenantId"),
)


def _pubsub() -> str:
    columns = [f"| `{one.name}` | `{one.dataType.simpleString()}` | {_COLUMNS[one.name]} |" for one in STREAM_SCHEMA]
    theirs = [
        f"| `{one.name}` | `{one.dataType.simpleString()}` | {_DATABRICKS_COLUMNS[one.name]} |"
        for one in DATABRICKS_SCHEMA
    ]
    sink = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _SINK_COLUMNS]
    table, details = option_pages(
        Declared(PubSubReadOptions, _PUBSUB_GROUPS, "Required to read"),
        Declared(PubSubWriteOptions, _PUBSUB_SINK_GROUPS, "Required to write", PubSubReadOptions),
        first="subscriptionId projectId spoolLocation topicId topicId",  # of the source, and of the sink
    )
    return "\n".join(
        [
            *_beginning(
                "pubsub",
                "What is promised: [the spool](../explanation/spool.md) and [the sink](../explanation/pubsub-sink.md).",
            ),
            "Names in any case. An unknown option is an error that names the nearest one. Sizes take `k`, `m`, `g`;",
            "durations `ms`, `s`, `m`, `h`, `d`. The sink takes `projectId`, `credentialsFile`, `endpoint` and",
            "`allowInsecure` too.",
            *table,
            "",
            "## Columns of the source",
            "",
            *_COLUMN_HEAD,
            *columns,
            "",
            "With `schemaMode=databricks`:",
            "",
            *_COLUMN_HEAD,
            *theirs,
            "",
            "## Columns of the sink",
            "",
            "For batch and stream; names in any case, others are not looked at.",
            "",
            *_COLUMN_HEAD,
            *sink,
            "",
            "## Options in detail",
            *details,
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
    table, details = option_pages(
        Declared(KafkaClientOptions, _KAFKA_GROUPS, "Required"),
        Declared(KafkaReadOptions, _KAFKA_SOURCE_GROUPS, "Required to read", KafkaClientOptions),
        Declared(KafkaWriteOptions, _KAFKA_SINK_GROUPS, "Required to write", KafkaClientOptions),
        first="kafka.bootstrap.servers subscribe startingOffsets maxOffsetsPerTrigger topic",
    )
    secrets = [
        f"| {' or '.join(f'`{name}`' for name in (one.name, *one.aliases))} | {one.doc} |"
        for one in KafkaClientOptions.secret_settings
    ]
    return "\n".join(
        [
            *_beginning(
                "kafka_py",
                "What is promised: [source and sink](../explanation/kafka.md) and",
                "[exactly-once writes](../explanation/kafka-exactly-once.md).",
            ),
            "Names in any case. An unknown option is an error that names the nearest one. Everything else that begins",
            "with `kafka.` is a setting of librdkafka; settings of the JVM client are",
            "[translated](../how-to/spark-kafka-settings.md#settings-that-begin-with-kafka) where possible.",
            *table,
            "",
            "### Settings of librdkafka that are secrets",
            "",
            "The secret itself, or `env:NAME` or `file:PATH` that the driver reads. Logs, errors and plans show none.",
            "",
            "| setting | meaning |",
            "|---|---|",
            *secrets,
            "",
            "## Columns of the source",
            "",
            *_COLUMN_HEAD,
            *columns,
            "",
            "## Columns of the sink",
            "",
            "Others are not looked at; names count in their case.",
            "",
            *_COLUMN_HEAD,
            *sink,
            "",
            "## Options in detail",
            *details,
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
    ("stream", "string", "name or ARN; unless the option `streamName` is given, which wins"),
)


def _kinesis() -> str:
    columns = [
        f"| `{one.name}` | `{one.dataType.simpleString()}` | {_KINESIS_COLUMNS[one.name]} |" for one in kinesis_schema()
    ]
    sink = [f"| `{name}` | {kind} | {text} |" for name, kind, text in _KINESIS_SINK_COLUMNS]
    table, details = option_pages(
        Declared(KinesisClientOptions, _KINESIS_GROUPS, "Required"),
        Declared(KinesisReadOptions, _KINESIS_SOURCE_GROUPS, "Required to read", KinesisClientOptions),
        Declared(KinesisWriteOptions, _KINESIS_SINK_GROUPS, "Required to write", KinesisClientOptions),
        first="streamName streamName region initialPosition maxRecordsPerTrigger",  # of the source, and of the sink
    )
    return "\n".join(
        [
            *_beginning(
                "kinesis",
                "What is promised: [the source](../explanation/kinesis.md) and",
                "[the sink](../explanation/kinesis-sink.md).",
            ),
            "Names in any case. An unknown option is an error that names the nearest one. Sizes take `k`, `m`, `g`;",
            "durations `ms`, `s`, `m`, `h`, `d`.",
            *table,
            "",
            "## Columns of the source",
            "",
            *_COLUMN_HEAD,
            *columns,
            "",
            "## Columns of the sink",
            "",
            "Others are not looked at; names count in their case.",
            "",
            *_COLUMN_HEAD,
            *sink,
            "",
            "## Options in detail",
            *details,
            "",
        ]
    )


def _protobuf() -> str:
    table, details = option_pages(
        Declared(ProtobufOptions, _PROTOBUF_GROUPS),
        first="mode on.error emit.default.values enums.as.ints unwrap.primitive.wrapper.types",
    )
    registry, registry_details = option_pages(Declared(RegistryOptions, _REGISTRY_GROUPS))
    glue, glue_details = option_pages(Declared(GlueOptions, _GLUE_GROUPS))
    return "\n".join(
        [
            "# `from_protobuf` and `to_protobuf`",
            "",
            "<!-- blocks not run: signatures -->",
            "Convert protobuf columns: signatures and every option, from the code (`./dev docs`). What is promised:",
            "[behaviours](protobuf-behaviours.md), with tests.",
            "",
            "```python",
            "from connectors.protobuf import from_protobuf, to_protobuf",
            "",
            "from_protobuf(data, messageName=None, descFilePath=None, options=None, binaryDescriptorSet=None, *,",
            "              messageClass=None, schemaRegistry=None, headers=None, isKey=False,",
            "              fields=None, engine='auto')",
            "to_protobuf(data, messageName=None, descFilePath=None, options=None, binaryDescriptorSet=None, *,",
            "            messageClass=None, schemaRegistry=None, engine='auto')",
            "```",
            "",
            "[Build the descriptor set](../how-to/descriptor-sets.md) with `connectors protos build`.",
            "For Spark SQL see `register_sql` in [the Python reference](python.md) and",
            "[its how-to](../how-to/descriptor-sets.md#in-spark-sql).",
            "",
            "The first five parameters are those of `pyspark.sql.protobuf.functions`. Columns have the types of",
            "[Spark's own](https://spark.apache.org/docs/latest/sql-data-sources-protobuf.html). As there, a field",
            "of proto3 that is zero, false or empty is NULL: no message holds it. `emit.default.values=true` gives it.",
            "",
            "## Options",
            "",
            "Names in any case, values as texts. An unknown option is an error that names the nearest one.",
            *table,
            "",
            "## The dictionary `schemaRegistry`",
            "",
            "Names as on Databricks, or the short ones. Names in any case; durations `ms`, `s`, `m`, `h`, `d`.",
            *registry,
            "",
            "## The dictionary `schemaRegistry` of AWS Glue",
            "",
            "With `type` set to `glue`, and the extra `glue`. Authentication has the names of the format `kinesis`.",
            *glue,
            "",
            "## Options in detail",
            *details,
            "",
            "## `schemaRegistry` in detail",
            *registry_details,
            "",
            "## `schemaRegistry` of AWS Glue in detail",
            *glue_details,
            "",
        ]
    )


def _avro() -> str:
    table, details = option_pages(
        Declared(AvroOptions, _AVRO_GROUPS),
        Declared(SubjectOptions, _AVRO_WRITE_GROUPS),
        first="mode on.error avroSchema topic auto.register.schemas",
    )
    azure, azure_details = option_pages(Declared(AzureOptions, _AZURE_GROUPS))
    return "\n".join(
        [
            "# `from_avro` and `to_avro`",
            "",
            "<!-- blocks not run: signatures -->",
            "Convert Avro columns: signatures, differences from Spark's own, options, from the code (`./dev docs`).",
            "",
            "```python",
            "from connectors.avro import from_avro, to_avro",
            "",
            "from_avro(data, jsonFormatSchema=None, options=None, subject=None, schemaRegistryAddress=None, *,",
            "          schemaRegistry=None, headers=None, isKey=False, fields=None)",
            'to_avro(data, jsonFormatSchema="", subject=None, schemaRegistryAddress=None, options=None, *,',
            "        schemaRegistry=None, isKey=False)",
            "```",
            "",
            "## `from_avro`",
            "",
            "The first three parameters are those of `pyspark.sql.avro.functions`, and columns have the types of",
            "[Spark's own](https://spark.apache.org/docs/latest/sql-data-sources-avro.html), except that `time-micros`",
            "and timestamps in nanoseconds are `BIGINT` on every Spark, also where Spark has noted `time(6)` in the",
            "schema. Spark 4.3's own gives `TIME` for these, which a function of Python can return with the",
            "precision 6 only. A union as the whole schema is read here; Spark's own function makes a bad row of each",
            "of its values.",
            "",
            "A schema that expands to more than 50,000 columns, because records hold several of the next one, is",
            "refused (`AVRO_TOO_MANY_COLUMNS`); messages of such a writer's schema are bad rows.",
            "",
            "A writer's schema is resolved to the reader's as in Java's Avro, aliases included: a writer's schema that",
            "equals the reader's keeps its names, and one that has both a field and its alias is refused. Every",
            "default of a reader's schema is checked when the function is called, against type, range, symbols and",
            "size. The default of a union belongs to the first branch that it fits. Each row gets the defaults that",
            "its writer's schema makes necessary, so these have at most 16 KB in all.",
            "",
            "If writer and reader give a field different logical types, such as decimals of another scale or",
            "timestamps of another unit, the call fails with `AVRO_SCHEMA_INCOMPATIBLE`; with a registry, the messages",
            "of that writer are bad rows. Spark and Java read them by the reader's type alone: set",
            "`on.logical.mismatch` to `ignore` for that. A field with a logical type on one side only is read.",
            "",
            "An error says which field could not be read and where it begins:",
            "`ends too early (in customer.name, a value of the type string from byte 17 of 40)`.",
            "",
            "With `schemaRegistry`, messages stand in Confluent's frames (the id or GUID of a schema, in the message",
            "or in a header), or with `type` set to `glue` or `azure` in those of AWS Glue or Azure. Each is resolved",
            "from the schema of its writer to the reader's: `avroSchema`, else",
            "`jsonFormatSchema`, else the latest version of the subject. The dictionary is that of",
            "[`from_protobuf`](protobuf.md#the-dictionary-schemaregistry). The two arguments of Databricks work too;",
            "its `confluent.schema.registry.*` may then stand among the options.",
            "",
            "## `to_avro`",
            "",
            "The first two parameters are those of `pyspark.sql.avro.functions`. Messages are those of Spark's",
            "own, which recorded ones in the tests show. Without `jsonFormatSchema`, the schema is that which",
            "Spark makes of the column: what can be NULL is a union of its type and `null`, in this order.",
            "",
            "With `schemaRegistry`, or with the three arguments of Databricks, messages are in Confluent's frames,",
            "with the id of the schema that they are written by. The driver asks for it when the function is called:",
            "",
            "| `jsonFormatSchema` | option | messages are written by | error |",
            "|---|---|---|---|",
            "| none | | the latest version, asked for with each call | `SCHEMA_NOT_FOUND`: there is no subject |",
            "| given | | it, if it is a version of the subject | `SCHEMA_NOT_FOUND`: it isn't one |",
            "| given | `auto.register.schemas=true` | it; the subject gets it | `SCHEMA_REFUSED`: not compatible |",
            "| given | `use.latest.version=true` | the latest version; it only names the subject | as without it |",
            "",
            "The id of a given schema is asked for once in a process. The subject is the one given, else it is named",
            "by `topic` and `subject.name.strategy`, as Confluent's serializers do.",
            "",
            "With `schema.id.serializer=header`, the GUID of the schema goes into a header and the message stands",
            "alone, as by Confluent's `HeaderSchemaIdSerializer`. With Azure that is the default, and the header is",
            "`content-type`. The column is then `STRUCT<value BINARY, headers",
            "ARRAY<STRUCT<key STRING, value BINARY>>>`, the two columns of the `kafka` sink; both are NULL for a NULL.",
            "A registry that gives out no GUIDs ends the call with `SCHEMA_UNUSABLE`.",
            "",
            "Differences from Spark's own function:",
            "",
            "- The entries of a map keep their order; Spark writes them in the order of Java's `HashMap`.",
            "- A union may be the whole schema, for a struct with the fields `member0`, `member1` and so on. Spark",
            "  writes such unions only below a record.",
            "- A column that does not fit the schema, and a NULL where the schema allows none, have error codes:",
            "  `AVRO_SCHEMA_INCOMPATIBLE` and `AVRO_CANNOT_WRITE_NULL_FIELD`.",
            "- On Spark 4.0, without a schema, each column is written as if it could be NULL: a function of Python",
            "  does not see there which ones can. Rows are encoded one by one there, which takes far longer.",
            "- Texts with a collation are written; Spark's own function refuses them without a schema.",
            "- Intervals of months are refused: pyarrow has none. Cast them.",
            "- `spark.sql.avro.datetimeRebaseModeInWrite=LEGACY` is refused.",
            "",
            "## Options",
            "",
            "Names in any case, values as texts. An unknown option is an error that names the nearest one.",
            *table,
            "",
            "## The dictionary `schemaRegistry` of Azure",
            "",
            "With `type` set to `azure`. The options for authentication, TLS and time limits are",
            "[those of a registry of Confluent](protobuf.md#the-dictionary-schemaregistry).",
            *azure,
            "",
            "## Options in detail",
            *details,
            "",
            "## `schemaRegistry` of Azure in detail",
            *azure_details,
            "",
        ]
    )


def _json() -> str:
    table, details = option_pages(
        Declared(JsonOptions, _JSON_GROUPS),
        first="mode on.error columnNameOfCorruptRecord dateFormat timestampFormat",
    )
    return "\n".join(
        [
            "# `from_json_registry` and `to_json_registry`",
            "",
            "<!-- blocks not run: signatures -->",
            "Convert JSON in a registry's frames: signatures, rules and options, from the code (`./dev docs`).",
            "",
            "```python",
            "from connectors.json import from_json_registry, to_json_registry",
            "",
            "from_json_registry(data, schema=None, options=None, subject=None, schemaRegistryAddress=None, *,",
            "                   schemaRegistry=None, headers=None, isKey=False, fields=None)",
            "to_json_registry(data, options=None, subject=None, schemaRegistryAddress=None, *, schemaRegistry=None)",
            "```",
            "",
            JSON_RULES,
            "",
            "## Options",
            "",
            "Those of `from_json_registry`. Names in any case, values as texts. An unknown option is an error that",
            "names the nearest one. `to_json_registry` passes its options to Spark's `to_json` as they are.",
            *table,
            "",
            "## Options in detail",
            *details,
            "",
        ]
    )


PAGES: Mapping[Path, Callable[[], str]] = {
    Path("docs/reference/pubsub.md"): _pubsub,
    Path("docs/reference/kafka.md"): _kafka,
    Path("docs/reference/kinesis.md"): _kinesis,
    Path("docs/reference/protobuf.md"): _protobuf,
    Path("docs/reference/avro.md"): _avro,
    Path("docs/reference/json.md"): _json,
    Path("docs/reference/command-line.md"): commands_page,
    Path("docs/reference/metrics.md"): metrics_page,
    Path("docs/reference/python.md"): python_page,
    Path("docs/reference/testing.md"): testing_page,
    Path("connectors/core/options/builders.pyi"): option_stub,
} | {Path(f"docs/reference/{name}.md"): partial(error_pages().__getitem__, name) for name in error_pages()}
"""The pages and the stub: path below the root of the repository, and what gives the text."""


def main() -> None:
    """Write the pages."""
    for path, text in PAGES.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text())


if __name__ == "__main__":
    main()
