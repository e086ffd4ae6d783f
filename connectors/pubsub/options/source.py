"""Options of the ``pubsub`` source; those of a stream alone are in `connectors.pubsub.options.stream`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import DURATION, INTEGER, SECRET, STRING, Kind, Secret, choice
from connectors.pubsub.options.credentials import ServiceAccount
from connectors.pubsub.options.stream import (
    POSITION,
    PubSubStreamOptions,
    SpoolDurability,
    StartingPosition,
    completed,
)
from connectors.pubsub.schema import SchemaMode

__all__ = ["BatchMode", "FetchMode", "PubSubReadOptions", "SegmentCompression", "parse_read_options"]

_CONNECTOR: Final = "pubsub"
_LONGEST_ATTRIBUTE: Final = 256
_STREAM_ONLY: Final = ("startingTimestamp", "startingSnapshot", "dedupEpoch")
_BATCH_ONLY: Final = ("batchMode", "endingPosition", "peekTime", "peekMaxRows")


class SegmentCompression(StrEnum):
    """How the rows of segments are compressed."""

    NONE = "none"
    LZ4 = "lz4"


class FetchMode(StrEnum):
    """Who fetches what a stream reads."""

    DRIVER = "driver"
    EXTERNAL = "external"


class BatchMode(StrEnum):
    """What a batch read reads."""

    SPOOL = "spool"
    PEEK = "peek"


def _parse_attribute(text: str) -> str:
    if not text or len(text.encode()) > _LONGEST_ATTRIBUTE:
        raise ValueError(f"the key of an attribute has 1 to {_LONGEST_ATTRIBUTE} bytes")
    return text


_ATTRIBUTE: Final = Kind("string", "the key of an attribute", str, _parse_attribute)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubReadOptions(PubSubStreamOptions):
    """The options of a reader. Made by `parse_read_options`."""

    dedup_attribute: str | None = option(
        "dedupAttribute",
        _ATTRIBUTE,
        "Messages with the same value of this attribute are copies, also when their message ids differ, because they "
        "were published twice: the first one is kept, for dedupHorizon. A message without it, or with an empty value, "
        "counts by its message id alone; connectors.spool.stats counts these as dedup_attribute_missing. It costs 16 "
        "bytes more for each id.",
        default=None,
    )
    schema_mode: SchemaMode = option(
        "schemaMode",
        choice(SchemaMode),
        "databricks gives the four columns of Databricks' source, for jobs that move from there: messageId, payload, "
        "attributes as JSON text, and publishTimestampInMillis. What is kept in the spool is the same, so the mode may "
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
        "Of a batch read: spool reads the rows that an existing spool keeps, changes nothing, and may run beside the "
        "query that fills it. peek fetches from the subscription while load() plans, and hands everything back, which "
        "the service counts as an attempt to deliver each message; it keeps a private folder beside spoolLocation, or "
        "in the driver's temporary folder without it.",
        default="spool",
    )
    ending_position: StartingPosition | int = option(
        "endingPosition",
        POSITION,
        "Of a batch read of a spool: the position after its last row.",
        default="latest",
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

    @property
    def credentials(self) -> Path | ServiceAccount | None:
        """What to reach the service with; None for application default credentials."""
        if self.client_email is None or self.private_key is None:
            return self.credentials_file
        return ServiceAccount(
            self.client_email, self.private_key.reveal(), self.client_id or "", self.private_key_id or ""
        )


def parse_read_options(
    raw: Mapping[str, str], environ: Mapping[str, str], *, streaming: bool | None = None
) -> PubSubReadOptions:
    """Parse and check the options of a reader; reads nothing but the arguments, and the environment's temp folder.

    Args:
        raw: what Spark hands over: names in any case to texts.
        environ: the environment of the driver.
        streaming: whether it is a stream; None while that is not known, then only what both have in common is checked.

    Raises:
        OptionError: an option is unknown, missing, illegal, not for this kind of read, or in conflict with another.
    """
    options = parse_options(PubSubReadOptions, raw, environ, _CONNECTOR)
    given = {key.lower() for key in raw if raw.get(key) is not None}
    if streaming:
        _check_stream(options, given)
    if streaming is False:
        _check_batch(options, given)
    if streaming is False and "startingposition" not in given:
        options = dataclasses.replace(options, starting_position=StartingPosition.EARLIEST)
    if options.batch_mode is BatchMode.PEEK and options.spool_location is None:
        # The private folder of a peek is beside the spool, wherever that would be.
        options = dataclasses.replace(options, spool_durability=SpoolDurability.EPHEMERAL)
    if options.batch_mode is BatchMode.PEEK and len(options.subscriptions) > 1:
        raise OptionError(
            "OPTION_ILLEGAL",
            "The option subscriptionId names several subscriptions, and batchMode=peek looks at one",
            _CONNECTOR,
            "Name one, and read each by itself.",
        )
    _check_service_account(options)
    options = completed(options, raw, environ)
    if options.private_key is not None and not options.transport.secure and not options.transport.local:
        raise conflict(
            _CONNECTOR,
            "privateKey",
            "allowInsecure",
            "credentials are never sent without TLS",
            "Leave one of them out.",
        )
    return options


def _check_service_account(options: PubSubReadOptions) -> None:
    """A service account is given as a whole, or as a file."""
    account = (
        ("clientEmail", options.client_email),
        ("privateKey", options.private_key),
        ("clientId", options.client_id),
        ("privateKeyId", options.private_key_id),
    )
    given = [name for name, value in account if value is not None]
    if given and options.credentials_file is not None:
        raise conflict(
            _CONNECTOR, given[0], "credentialsFile", "both say who reaches the service", "Leave one of them out."
        )
    for name in ("clientEmail", "privateKey"):
        if given and name not in given:
            raise OptionError(
                "OPTION_MISSING", f"The option {name} is required with {given[0]}", _CONNECTOR, "Give both."
            )


def _check_batch(options: PubSubReadOptions, given: set[str]) -> None:
    """Refuse what only a stream can have."""
    for name in _STREAM_ONLY:
        if name.lower() in given:
            raise OptionError(
                "OPTION_ILLEGAL",
                f"The option {name} is for streams, and this is a batch read, which moves no subscription",
                _CONNECTOR,
                "Leave it out, or use spark.readStream.",
            )
    peeks = options.batch_mode is BatchMode.PEEK
    for name in ("startingPosition", "endingPosition") if peeks else ("peekTime", "peekMaxRows"):
        if name.lower() in given:
            other, mode = (BatchMode.SPOOL, "a peek") if peeks else (BatchMode.PEEK, "a read of the spool")
            why, action = f"{mode} does not use it", f"Give batchMode={other.value}, or leave {name} out."
            raise conflict(_CONNECTOR, name, "batchMode", why, action)
    if peeks and "," in options.subscription_id:
        raise conflict(
            _CONNECTOR,
            "batchMode",
            "subscriptionId",
            "a peek looks at one subscription",
            "Name one subscription, or read the spool with batchMode=spool.",
        )


def _check_stream(options: PubSubReadOptions, given: set[str]) -> None:
    """Refuse what only a batch read can have."""
    for name in _BATCH_ONLY:
        if name.lower() in given:
            raise OptionError(
                "OPTION_ILLEGAL",
                f"The option {name} is for batch reads, and this is a stream",
                _CONNECTOR,
                "Leave it out, or use spark.read.",
            )
    if not isinstance(options.starting_position, StartingPosition):
        raise OptionError(
            "OPTION_ILLEGAL",
            f"The option startingPosition cannot be {options.starting_position}: a stream begins at a word",
            _CONNECTOR,
            f"Give {choice(StartingPosition).legal}.",
        )
