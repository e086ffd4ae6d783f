"""The options of the ``pubsub`` source, each declared once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from connectors.core.errors import OptionError
from connectors.core.options.declaration import available_now, conflict, option, parse_options
from connectors.core.options.kinds import BOOLEAN, BYTES, DURATION, INTEGER, SECRET, STRING, Secret, choice, duration_or
from connectors.pubsub import FORMAT
from connectors.pubsub.options.client import PubSubClientOptions, ServiceAccount, connection_transport
from connectors.pubsub.options.kinds import (
    ATTRIBUTE,
    DELETE_ON_STOP,
    POSITION,
    TIMESTAMP,
    TOPIC,
    BatchMode,
    FetchMode,
    SchemaMode,
    SegmentCompression,
    SpoolDurability,
    StartingPosition,
    check_batch,
    check_credentials,
    check_stream,
    check_subscriptions,
    deletion_refused,
    full_path,
    resource,
)
from connectors.spool.options import (
    LOCATION,
    ObjectStoreOptions,
    check_object_store_options,
    ephemeral_folder,
    fetch_period,
)

__all__ = ["PubSubReadOptions", "parse_read_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubReadOptions(PubSubClientOptions, ObjectStoreOptions):
    """The options of a reader; sizes in bytes, durations in seconds. Made by `parse_read_options`."""

    subscription_id: str = option(
        "subscriptionId",
        resource("subscriptions", several=True),
        "The subscription to read: its id, or its full path. Several, with commas between them, are read into one "
        "spool; each has its own fetchers, and the column subscription says where a row comes from. A spool belongs "
        "to the subscriptions it was created for.",
    )
    topic_id: str | None = option(
        "topicId",
        TOPIC,
        "Topic of the subscription, as id or full path. With it a subscription that does not exist is created, if the "
        "spool is new; a subscription of another topic is refused.",
        default=None,
    )
    spool_location: Path | str | None = option(
        "spoolLocation",
        LOCATION,
        "Folder of the spool, or its URL on an object store: after the ack it holds the only copy of a message, so it "
        "belongs beside the checkpoint and must be as durable. Driver and executors must see it under this path. "
        "Required, unless spoolDurability is ephemeral.",
        default=None,
    )
    spool_durability: SpoolDurability = option(
        "spoolDurability",
        choice(SpoolDurability),
        "ephemeral accepts that acked messages die with the disk of the spool; spoolLocation may then be absent and "
        "a folder under the driver's temporary folder is used, the same for each start of this subscription.",
        default="durable",
    )
    max_spool_bytes: int = option(
        "maxSpoolBytes",
        BYTES,
        "Fetching pauses while the spool holds this much that no batch has begun on. It always goes on when nothing "
        "is left to read.",
        default="4g",
        minimum="1",
    )
    spool_retention: float = option(
        "spoolRetention",
        DURATION,
        "How long rows stay in the spool after their batch was committed, whenever they were published. Rows that "
        "were committed before the last start of the query stay so long after they were fetched.",
        default="0",
        minimum="0",
    )
    max_id_index_bytes: int = option(
        "maxIdIndexBytes",
        BYTES,
        "The query stops when the ids that are stored against duplicates take more than this on disk, 8 bytes for "
        "each; none is discarded before dedupHorizon.",
        default="64g",
        minimum="64kb",
    )
    available_now: bool = available_now()
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger", INTEGER, "The most rows of a batch.", default=None, minimum="1"
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        BYTES,
        "The most bytes of a batch (payload, attributes and ordering key); a single row that is larger still passes.",
        default=None,
        minimum="1",
    )
    partition_bytes: int = option(
        "partitionBytes", BYTES, "A batch gets one partition for each so many bytes.", default="16mb", minimum="1"
    )
    max_partitions: int = option(
        "maxPartitions", INTEGER, "The most partitions of a batch.", default="8", minimum="1", maximum="100000"
    )
    dedup_horizon: float | None = option(
        "dedupHorizon",
        duration_or("auto"),
        "How long the id of a message is stored, by its publish time and since it was read, so that a redelivery gives "
        "no second row. auto is the larger of the subscription's and the topic's retention, the only bound that can be "
        "proved; a shorter one is weaker.",
        default="auto",
        minimum="10m",
        maximum="31d",
    )
    fetchers: int = option(
        "fetchers",
        INTEGER,
        "How many processes fetch. A subscription with message ordering is fetched by one.",
        default="1",
        minimum="1",
        maximum="64",
        aliases=("numFetchPartitions",),
    )
    streams: int = option(
        "streams",
        INTEGER,
        "How many pull streams each fetcher opens. The service gives about 10 MB/s a stream; about 16 streams of "
        "1 KB messages saturate one processor.",
        default="4",
        minimum="1",
        maximum="100",
    )
    max_outstanding_bytes: int = option(
        "maxOutstandingBytes",
        BYTES,
        "The most bytes of messages that a fetcher holds before they are durable. The fetcher itself counts them, "
        "because emulators ignore flow control; a single message that is larger still passes.",
        default="128mb",
        minimum="1",
    )
    max_outstanding_messages: int | None = option(
        "maxOutstandingMessages",
        INTEGER,
        "The most messages that a fetcher holds before they are durable.",
        default=None,
        minimum="1",
    )
    segment_bytes: int = option(
        "segmentBytes",
        BYTES,
        "A fetcher writes a segment when it has gathered this much.",
        default="64mb",
        minimum="1",
        maximum="1g",
    )
    segment_records: int | None = option(
        "segmentRecords",
        INTEGER,
        "A fetcher writes a segment when it has gathered this many messages. Best left out: small segments cost one "
        "flush to disk each.",
        default=None,
        minimum="1",
        aliases=("maxRecordsPerFetch",),
    )
    max_fetch_period: float = option(
        "maxFetchPeriod",
        DURATION,
        "A fetcher writes a segment at the latest this long after its first message arrived; 1s when absent and the "
        "spool is on an object store, where each segment costs a put.",
        default="100ms",
        minimum="1ms",
        maximum="10m",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        BOOLEAN,
        "false goes on, with a warning and a record in the spool, when rows are gone: a damaged or missing segment "
        "is quarantined, and a checkpoint below the oldest retained row goes on at that row. The driver then reads "
        "each segment once more to check it. It also goes on when the subscription of a used spool was deleted and "
        "topicId allows to create it again: what it had not delivered is lost.",
        default="true",
    )
    starting_position: StartingPosition | int = option(
        "startingPosition",
        POSITION,
        "Where a new checkpoint begins on a used spool: after the last commit in the spool, at its oldest retained "
        "row, or at its end. A batch read begins at earliest when this is absent.",
        default="committed",
    )
    start_timeout: float = option(
        "startTimeout",
        DURATION,
        "How long the first batch waits for the first messages.",
        default="10s",
        minimum="0",
        maximum="1h",
    )
    available_now_quiet: float = option(
        "availableNowQuiet",
        DURATION,
        "Trigger.AvailableNow ends when healthy streams have brought nothing that was published before its start for "
        "this long.",
        default="10s",
        minimum="0",
        maximum="1h",
    )
    available_now_max_wait: float = option(
        "availableNowMaxWait",
        DURATION,
        "Trigger.AvailableNow waits no longer than this for messages published before its start.",
        default="5m",
        minimum="0",
        maximum="1d",
    )
    starting_timestamp: int | None = option(
        "startingTimestamp",
        TIMESTAMP,
        "Seek the subscription to this time: what was published since is read again, as far as the subscription or "
        "its topic retains acknowledged messages, and what is older is skipped. Done once for each value, so the "
        "option may stay where it is; it moves the subscription for everyone who reads it.",
        default=None,
    )
    starting_snapshot: str | None = option(
        "startingSnapshot",
        resource("snapshots"),
        "Seek the subscription to this snapshot, an id or a full path: what was not acknowledged then, and what was "
        "published since, is read again. Done once for each value.",
        default=None,
    )
    dedup_epoch: int | None = option(
        "dedupEpoch",
        INTEGER,
        "Another number makes the query discard the ids of the messages it has read, once, so that what the service "
        "redelivers gives rows again: for a seek that was done outside of the query. With startingTimestamp or "
        "startingSnapshot another number does the same seek once more.",
        default=None,
        minimum="0",
    )
    dedup_attribute: str | None = option(
        "dedupAttribute",
        ATTRIBUTE,
        "Messages with the same value of this attribute are duplicates, also when their message ids differ, because "
        "they were published twice: the first one stays, for dedupHorizon. A message without it, or with an empty "
        "value, is identified by its message id alone; connectors.spool.stats counts these as "
        "dedup_attribute_missing. It costs 16 bytes more for each id.",
        default=None,
    )
    schema_mode: SchemaMode = option(
        "schemaMode",
        choice(SchemaMode),
        "databricks gives the four columns of Databricks' source, for jobs that move from there: messageId, payload, "
        "attributes as JSON text, and publishTimestampInMillis. The rows in the spool are the same, so the mode may "
        "be changed.",
        default="native",
    )
    client_email: str | None = option(
        "clientEmail",
        STRING,
        "Name of a service account, for credentials by options as on Databricks; needs privateKey. A credentialsFile "
        "does the same with no key in the code.",
        default=None,
    )
    client_id: str | None = option("clientId", STRING, "Id of that service account.", default=None)
    private_key: Secret | None = option(
        "privateKey",
        SECRET,
        "Private key of that service account, in the PEM format; line ends may be written as \\n.",
        default=None,
        multiline=True,
    )
    private_key_id: str | None = option("privateKeyId", STRING, "Id of that key.", default=None, sensitive=True)
    segment_compression: SegmentCompression = option(
        "segmentCompression",
        choice(SegmentCompression),
        "How the rows in the spool are compressed: lz4 makes text smaller by half or more, and costs the fetchers and "
        "the tasks some processor time. May be changed: each segment says how it was written.",
        default="none",
    )
    fetch: FetchMode = option(
        "fetch",
        choice(FetchMode),
        "Who fetches: driver starts the fetchers beside the reader, on the driver. With external the reader starts "
        "none, and only admits what others publish into the spool: fetchers on the executors "
        "(connectors.executors.fetch_on_executors), or connectors fetch outside of Spark, with the same options.",
        default="driver",
    )
    max_reader_age: float = option(
        "maxReaderAge",
        DURATION,
        "With fetch=external: fetchers pause when the newest record of the ledger is older than this, by the times of "
        "the file system or object store itself. A reader that runs writes one in a quarter of it, or each minute.",
        default="10m",
        minimum="1s",
        maximum="1d",
    )
    batch_mode: BatchMode = option(
        "batchMode",
        choice(BatchMode),
        "Of a batch read: spool reads the retained rows of an existing spool, changes nothing, and may run beside the "
        "query that fills it. peek fetches from the subscription while load() plans, and hands everything back, which "
        "the service counts as an attempt to deliver each message; it uses a private folder beside spoolLocation, or "
        "in the driver's temporary folder without it.",
        default="spool",
    )
    ending_position: StartingPosition | int = option(
        "endingPosition", POSITION, "Of a batch read of a spool: the position after its last row.", default="latest"
    )
    peek_time: float = option(
        "peekTime",
        DURATION,
        "The longest that batchMode=peek fetches, once its stream is open; that may take startTimeout.",
        default="10s",
        minimum="1s",
        maximum="10m",
    )
    peek_max_rows: int = option(
        "peekMaxRows",
        INTEGER,
        "batchMode=peek ends when it has this many rows, and gives no more than these.",
        default="1000",
        minimum="1",
        maximum="1000000",
    )
    spool_folder: Path | str = field(default=Path())
    """Derived: spoolLocation (a str on object stores), or the folder that is picked for an ephemeral spool."""

    @property
    def project(self) -> str:
        """The project of the subscription."""
        return self.subscription.split("/")[1]

    @property
    def subscription(self) -> str:
        """The full path of the subscription; of the first of several."""
        return self.subscriptions[0]

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The full paths of all subscriptions, sorted: the spool stores their indexes, whatever the order here."""
        names = self.subscription_id.split(",")
        return tuple(sorted(full_path(self.project_id, "subscriptions", name) for name in names))

    def alone(self, subscription: str) -> Self:
        """Return these options for one of the subscriptions, by its full path."""
        return dataclasses.replace(self, subscription_id=subscription)

    @property
    def seek(self) -> dict[str, int | str]:
        """The place to move the subscription to, as JSON values; empty when it stays."""
        place: dict[str, int | str | None] = {"timestamp": self.starting_timestamp, "dedup_epoch": self.dedup_epoch}
        if self.starting_snapshot is not None:
            place["snapshot"] = full_path(self.project, "snapshots", self.starting_snapshot)
        return {name: value for name, value in place.items() if value is not None}

    @property
    def topic(self) -> str | None:
        """The full path of the topic, if there is the option topicId."""
        return None if self.topic_id is None else full_path(self.project, "topics", self.topic_id)

    @property
    def credentials(self) -> Path | ServiceAccount | None:
        """The credentials; None for application default credentials."""
        if self.client_email is None or self.private_key is None:
            return self.credentials_file
        return ServiceAccount(
            self.client_email, self.private_key.reveal(), self.client_id or "", self.private_key_id or ""
        )


def parse_read_options(
    raw: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool | None = None
) -> PubSubReadOptions:
    """Parse and check the options of a reader; raise OptionError for what is unknown, missing or illegal.

    Where `streaming` is None, only what streams and batch reads have in common is checked.
    """
    names = {key.lower() for key in raw if raw.get(key) is not None}
    own = {key: value for key, value in raw.items() if key.lower() != DELETE_ON_STOP.lower()}
    options = parse_options(PubSubReadOptions, own, environ, FORMAT)
    if streaming:
        check_stream(names, options.starting_position)
    if streaming is False:
        check_batch(names, options.batch_mode)
        if "startingposition" not in names:
            options = dataclasses.replace(options, starting_position=StartingPosition.EARLIEST)
    check_credentials(names)
    check_subscriptions(options.subscription_id, options.project_id, options.batch_mode)
    if DELETE_ON_STOP.lower() in names:
        raise deletion_refused(options.subscription)
    if options.starting_timestamp is not None and options.starting_snapshot is not None:
        why, action = "a subscription can be moved to one place only", "Leave one of them out."
        raise conflict(FORMAT, "startingTimestamp", "startingSnapshot", why, action)
    account_option = None if options.client_email is None else "clientEmail"
    options = dataclasses.replace(options, transport=connection_transport(options, environ, account_option))
    folder = _spool_folder(options, environ)
    check_object_store_options(options, folder, FORMAT)
    period = fetch_period(options.max_fetch_period, folder, given="maxfetchperiod" in names)
    return dataclasses.replace(options, spool_folder=folder, max_fetch_period=period)


def _spool_folder(options: PubSubReadOptions, environ: Mapping[str, str]) -> Path | str:
    if options.spool_location is not None:
        return options.spool_location
    # The private folder of a peek is beside the spool, wherever that would be.
    if options.spool_durability is SpoolDurability.DURABLE and options.batch_mode is not BatchMode.PEEK:
        raise OptionError(
            "OPTION_MISSING",
            "The option spoolLocation is required",
            FORMAT,
            "Give a folder as durable as the checkpoint, beside it: after the ack it holds the only copy of a "
            "message. Or set spoolDurability=ephemeral, if acked messages may die with this disk.",
        )
    return ephemeral_folder(FORMAT, f"{options.transport.target} {' '.join(options.subscriptions)}", environ)
