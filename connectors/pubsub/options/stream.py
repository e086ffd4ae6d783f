"""The options of the ``pubsub`` format, each declared once, and the schema of its rows.

Parse in the data source's ``schema()`` and again in ``streamReader()``. ``schema()`` is called while ``load()`` runs,
so a bad option fails there and not when the query starts. Constructors only keep the raw options: they also run where
nothing needs parsing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Self, TypeVar

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import BOOLEAN, BYTES, DURATION, INTEGER, Kind, choice, duration_or
from connectors.pubsub.options.client import connection_transport
from connectors.pubsub.options.resource_names import TOPIC, full_path, resources
from connectors.pubsub.options.seek import PubSubSeekOptions, check_seek
from connectors.pubsub.schema import STREAM_SCHEMA
from connectors.spool.options import (
    LOCATION,
    ObjectStoreOptions,
    check_object_store_options,
    ephemeral_folder,
    fetch_period,
)

__all__ = [
    "POSITION",
    "STREAM_SCHEMA",
    "PubSubStreamOptions",
    "SpoolDurability",
    "StartingPosition",
    "completed",
    "connection_transport",
    "parse_stream_options",
]

_CONNECTOR: Final = "pubsub"

Options = TypeVar("Options", bound="PubSubStreamOptions")


class SpoolDurability(StrEnum):
    """How durable the folder of the spool is."""

    DURABLE = "durable"
    EPHEMERAL = "ephemeral"


class StartingPosition(StrEnum):
    """Where a new checkpoint begins on a used spool, and a batch read of a spool."""

    COMMITTED = "committed"
    EARLIEST = "earliest"
    LATEST = "latest"


def _parse_position(text: str) -> StartingPosition | int:
    return INTEGER.parse(text) if text.isascii() and text.isdigit() else _WORD.parse(text)


_WORD: Final = choice(StartingPosition)
POSITION: Final = Kind(
    "position", f"{_WORD.legal}; for a batch read also a position", StartingPosition | int, _parse_position
)
"""A word, or the number that a row has in the column offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubStreamOptions(PubSubSeekOptions, ObjectStoreOptions):
    """The options of a stream; sizes in bytes, durations in seconds. Made by `parse_stream_options`."""

    subscription_id: str = option(
        "subscriptionId",
        resources("subscriptions"),
        "The subscription to read: its id, or its full path. Several, with commas between them, are read into one "
        "spool; each has its own fetchers, and the column subscription says where a row comes from. A spool belongs "
        "to the subscriptions it was made for.",
    )
    topic_id: str | None = option(
        "topicId",
        TOPIC,
        "Topic of the subscription, as id or full path. When given, a subscription that is absent is created, if the "
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
        "Fetching pauses while the spool holds this much that no batch has begun on. Whatever it is, fetching goes on "
        "when nothing is left to read.",
        default="4g",
        minimum="1",
    )
    spool_retention: float = option(
        "spoolRetention",
        DURATION,
        "How long rows stay in the spool after their batch was committed, whenever they were published. Rows that were "
        "committed before the last start of the query stay so long after they were fetched.",
        default="0",
        minimum="0",
    )
    max_id_index_bytes: int = option(
        "maxIdIndexBytes",
        BYTES,
        "The query stops when the ids kept against duplicates take more than this on disk, 8 bytes for each; none is "
        "forgotten before dedupHorizon.",
        default="64g",
        minimum="64kb",
    )
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger", INTEGER, "The most rows of a batch.", default=None, minimum="1"
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        BYTES,
        "The most bytes of a batch (payload, attributes and ordering key); a row that alone is larger passes alone.",
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
        "How long the id of a message is kept, by its publish time and since it was read, so that a redelivery gives "
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
        "How many pull streams each fetcher holds. The service gives about 10 MB/s a stream; about 16 streams of "
        "1 KB messages keep one processor busy.",
        default="4",
        minimum="1",
        maximum="100",
    )
    max_outstanding_bytes: int = option(
        "maxOutstandingBytes",
        BYTES,
        "The most bytes of messages that a fetcher holds before they are durable. It is counted by the fetcher "
        "itself, because emulators ignore flow control; one message that alone is larger passes alone.",
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
        "is quarantined, and a checkpoint below the oldest kept row goes on at that row. The driver then reads each "
        "segment once more to check it. It also goes on when the subscription of a used spool has vanished and "
        "topicId allows to create it again: what it had not delivered is lost.",
        default="true",
    )
    starting_position: StartingPosition | int = option(
        "startingPosition",
        POSITION,
        "Where a new checkpoint begins on a used spool: after the last commit that the spool knows of, at its oldest "
        "kept row, or at its end. A batch read begins at earliest when this is not given.",
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
    delete_subscription_on_stream_stop: bool = option(
        "deleteSubscriptionOnStreamStop",
        BOOLEAN,
        "Only false is possible: the source cannot tell a stop from a crash, so it would delete the subscription of "
        "a query that is about to be restarted.",
        default="false",
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
        """The full paths of all subscriptions, sorted: their places stand in the spool, whatever the order here."""
        names = self.subscription_id.split(",")
        return tuple(sorted(full_path(self.project_id, "subscriptions", name) for name in names))

    def alone(self, subscription: str) -> Self:
        """These options for one of the subscriptions, given by its full path."""
        return dataclasses.replace(self, subscription_id=subscription)

    @property
    def seek(self) -> dict[str, int | str]:
        """Where the subscription is to be moved to, as JSON values; empty when it stays."""
        snapshot = self.starting_snapshot
        wanted = {
            "timestamp": self.starting_timestamp,
            "snapshot": None if snapshot is None else full_path(self.project, "snapshots", snapshot),
            "dedup_epoch": self.dedup_epoch,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    @property
    def topic(self) -> str | None:
        """The full path of the topic, when topicId was given."""
        return None if self.topic_id is None else full_path(self.project, "topics", self.topic_id)


def parse_stream_options(raw: Mapping[str, str], environ: Mapping[str, str]) -> PubSubStreamOptions:
    """Parse and check the options of a stream; reads nothing but the arguments, and the environment's temp folder.

    Args:
        raw: what Spark hands over: names in any case to texts.
        environ: the environment of the driver.

    Raises:
        OptionError: an option is unknown, missing, illegal, or in conflict with another.
    """
    return completed(parse_options(PubSubStreamOptions, raw, environ, _CONNECTOR), raw, environ)


def completed(options: Options, raw: Mapping[str, str], environ: Mapping[str, str]) -> Options:
    """The same options, checked against each other, and with what is derived; raises as `parse_stream_options` does."""
    _check_project(options)
    _check_deletion(options)
    check_seek(options)
    options = dataclasses.replace(options, transport=connection_transport(options, environ))
    folder = _spool_folder(options, environ)
    check_object_store_options(options, folder, _CONNECTOR)
    period = fetch_period(options.max_fetch_period, folder, given="maxfetchperiod" in map(str.lower, raw))
    return dataclasses.replace(options, spool_folder=folder, max_fetch_period=period)


def _check_project(options: PubSubStreamOptions) -> None:
    for name in options.subscription_id.split(","):
        if name.startswith("projects/"):
            if options.project_id not in {None, name.split("/")[1]}:
                raise conflict(
                    _CONNECTOR,
                    "projectId",
                    "subscriptionId",
                    f"one says {options.project_id}, the other {name.split('/')[1]}",
                    "With a full path in subscriptionId, leave projectId out.",
                )
        elif options.project_id is None:
            raise OptionError(
                "OPTION_MISSING",
                "The option projectId is required",
                _CONNECTOR,
                "Give it, or give subscriptionId as a full path: projects/PROJECT/subscriptions/ID.",
            )
    if len(set(options.subscriptions)) < len(options.subscriptions):
        raise OptionError(
            "OPTION_ILLEGAL",
            "The option subscriptionId names one subscription twice",
            _CONNECTOR,
            "Name each once.",
        )


def _check_deletion(options: PubSubStreamOptions) -> None:
    if options.delete_subscription_on_stream_stop:
        name = options.subscription.rpartition("/")[2]
        raise OptionError(
            "OPTION_ILLEGAL",
            "The option deleteSubscriptionOnStreamStop cannot be 'true': the source is killed in the same way by a "
            "stop and by a crash, so it would also delete the subscription of a query that is restarted",
            _CONNECTOR,
            "Leave it out, and delete the subscription when the query is done with for good: "
            f"gcloud pubsub subscriptions delete {name} --project={options.project}",
        )


def _spool_folder(options: PubSubStreamOptions, environ: Mapping[str, str]) -> Path | str:
    if options.spool_location is not None:
        return options.spool_location
    if options.spool_durability is SpoolDurability.DURABLE:
        raise OptionError(
            "OPTION_MISSING",
            "The option spoolLocation is required",
            _CONNECTOR,
            "Give a folder as durable as the checkpoint, beside it: after the ack it holds the only copy of a "
            "message. Or set spoolDurability=ephemeral, if acked messages may die with this disk.",
        )
    return ephemeral_folder(_CONNECTOR, f"{options.transport.target} {' '.join(options.subscriptions)}", environ)
