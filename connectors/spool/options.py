"""The options that every source on a spool has, each declared once; a connector adds those of its service."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options.declaration import available_now, conflict, option, parse_options, push_down_predicate
from connectors.core.options.kinds import (
    BOOLEAN,
    BYTES,
    DURATION,
    INTEGER,
    PATH,
    SECRET,
    STRING,
    Kind,
    Secret,
    choice,
    duration_or,
    is_loopback,
)
from connectors.core.options.outages import OutageOptions
from connectors.core.options.providers import credential_provider
from connectors.spool.store.base import StoreAccess, parse_object_url

_OBJECT_STORE_FETCH_PERIOD: Final = 1.0
"""Seconds: longer than on a disk, because each segment costs a put."""


def _parse_location(text: str) -> Path | str:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", text)
    if scheme is None or scheme[1].lower() == "file":
        return PATH.parse(text)
    return str(parse_object_url(text))


def _parse_endpoint(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError("it is not an http: or https: URL")
    if "@" in url.netloc:
        raise ValueError("credentials do not belong in a URL")
    if url.scheme == "http" and not is_loopback(url.hostname):
        raise ValueError("data and credentials are sent without TLS only to this machine itself")
    return text.rstrip("/")


_URLS: Final = (
    "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER or "
    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"
)
LOCATION: Final[Kind[Path | str]] = Kind("location", f"an absolute path, a file: URL, or {_URLS}", _parse_location)
"""A `Path`, or the URL of an object store in its normal form."""
EPHEMERAL: Final = "ephemeral"
_SPOOL_LOCATION: Final[Kind[Path | str]] = Kind(
    "location",
    f"{LOCATION.legal}; or {EPHEMERAL}",
    lambda text: EPHEMERAL if text.lower() == EPHEMERAL else _parse_location(text),
)

_ENDPOINT: Final[Kind[str]] = Kind("URL", "an https: URL; http: only for this machine", _parse_endpoint)


def location_text(location: str | Path) -> str:
    """Return a location as the option spoolLocation, but a path may be relative; raises `OptionError`."""
    text = str(location)
    if isinstance(location, Path) or (text and "://" not in text and not text.lower().startswith("file:")):
        return text
    try:
        return str(LOCATION.parse(text))
    except ValueError as error:
        # The location is not repeated: a URL may hold a secret.
        what = f"No spool can be there: {error if text else 'the text is empty'}"
        raise OptionError("SPOOL_LOCATION", what, "LOCATION") from None


@dataclass(frozen=True, kw_only=True)
class ObjectStoreOptions:
    """The options of a spool on an object store. Without slots, so that it can be a second base."""

    spool_endpoint: str | None = option(
        "spoolEndpoint",
        _ENDPOINT,
        "For spools on object stores: the store's URL, if it is not the cloud's own, such as MinIO or R2 for s3, or "
        "an emulator on this machine (for gs: one that takes no credentials). All options of object stores may also "
        "come from the environment: this one from AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT or STORAGE_EMULATOR_HOST.",
        default=None,
    )
    spool_region: str | None = option(
        "spoolRegion", STRING, "For spools on s3: the region of the bucket (AWS_REGION).", default=None
    )
    spool_key_id: str | None = option(
        "spoolKeyId",
        STRING,
        "For spools on s3: the access key id (AWS_ACCESS_KEY_ID). For az: the name of the account, if the URL does not "
        "have it (AZURE_STORAGE_ACCOUNT_NAME). Without credentials in options or environment, the machine's are used.",
        default=None,
        sensitive=True,
    )
    spool_secret: Secret | None = option(
        "spoolSecret",
        SECRET,
        "For spools on s3: the secret access key (AWS_SECRET_ACCESS_KEY). For az: the key of the account "
        "(AZURE_STORAGE_ACCOUNT_KEY).",
        default=None,
    )
    spool_session_token: Secret | None = option(
        "spoolSessionToken",
        SECRET,
        "For spools on s3: the token of temporary credentials (AWS_SESSION_TOKEN).",
        default=None,
    )
    spool_credentials_file: Path | None = option(
        "spoolCredentialsFile",
        PATH,
        "For spools on gs: the key file of a service account, which the driver and all executors can read "
        "(GOOGLE_SERVICE_ACCOUNT). Application default credentials when absent.",
        default=None,
        sensitive=True,
    )
    spool_credential_provider: str | None = credential_provider(
        "spoolCredentialProvider",
        "what obstore's credential_provider returns for the store's cloud: a dict with expires_at and the keys or the "
        "token. For s3 also what credentialProvider of the format kinesis takes, for gs Google credentials, for az a "
        "credential of azure-identity",
    )
    take_over: bool = option(
        "takeOver",
        BOOLEAN,
        "For spools on object stores: true takes the spool from the query that holds its lease, which then stops with "
        "an error. Otherwise a query waits until the lease of a query that vanished with its machine expires (35 s). "
        "Does nothing on file systems, where a lock ends with its process.",
        default="false",
    )

    @property
    def store_access(self) -> StoreAccess:
        """How to reach the store."""
        return StoreAccess(
            self.spool_endpoint,
            self.spool_region,
            self.spool_key_id,
            self.spool_secret,
            self.spool_session_token,
            None if self.spool_credentials_file is None else str(self.spool_credentials_file),
            self.spool_credential_provider,
        )


def ephemeral_folder(connector: str, identity: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of an ephemeral spool: the same at each start, so that a query finds what it has acked.

    Others can guess it: `LocalStore.make_root` makes it and its parent for this user alone, or refuses both.
    """
    name = hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()
    temporary = Path(environ.get("TMPDIR") or tempfile.gettempdir())
    return temporary / f"pyspark-stream-connectors-{os.geteuid()}" / f"{connector}-{name}"


def check_object_store_options(options: ObjectStoreOptions, location: Path | str, connector: str) -> None:
    kind = parse_object_url(location).kind if isinstance(location, str) else "a folder"
    options_of_kinds = {
        "spoolEndpoint": (options.spool_endpoint, ("s3", "gs", "az")),
        "spoolRegion": (options.spool_region, ("s3",)),
        "spoolKeyId": (options.spool_key_id, ("s3", "az")),
        "spoolSecret": (options.spool_secret, ("s3", "az")),
        "spoolSessionToken": (options.spool_session_token, ("s3",)),
        "spoolCredentialsFile": (options.spool_credentials_file, ("gs",)),
        "spoolCredentialProvider": (options.spool_credential_provider, ("s3", "gs", "az")),
    }
    for name, (value, kinds) in options_of_kinds.items():
        if value is not None and kind not in kinds:
            why = f"it is for spools on {' and '.join(kinds)}, but this one is on {kind}"
            raise conflict(connector, name, "spoolLocation", why, "Leave it out.")
    for name in ("spoolSecret", "spoolSessionToken", "spoolCredentialsFile"):
        if options.spool_credential_provider is not None and options_of_kinds[name][0] is not None:
            why = "both give credentials"
            raise conflict(connector, "spoolCredentialProvider", name, why, "Give one of them.")
    if options.spool_endpoint is not None and options.spool_credentials_file is not None:
        why = "the endpoint of a spool on gs is an emulator, which takes no credentials"
        raise conflict(connector, "spoolCredentialsFile", "spoolEndpoint", why, "Leave one of them out.")
    if (options.spool_key_id is None) != (options.spool_secret is None) and kind == "s3":
        what = "The options spoolKeyId and spoolSecret belong together, but one is missing"
        action = "Give both, or neither to use the environment's credentials."
        raise OptionError("OPTION_MISSING", what, connector, action)


class StartingPosition(StrEnum):
    """Where a new checkpoint begins on a used spool, and a batch read of a spool."""

    COMMITTED = "committed"
    EARLIEST = "earliest"
    LATEST = "latest"


class SegmentCompression(StrEnum):
    """How the rows of segments are compressed."""

    NONE = "none"
    LZ4 = "lz4"


class FetchMode(StrEnum):
    """Which processes fetch for a stream."""

    DRIVER = "driver"
    EXTERNAL = "external"


def _parse_position(text: str) -> StartingPosition | int:
    return INTEGER.parse(text) if text.isascii() and text.isdigit() else _WORD.parse(text)


_WORD: Final = choice(StartingPosition)
_POSITION: Final = Kind("position", f"{_WORD.legal}; for a batch read also a position", _parse_position)


@dataclass(frozen=True, kw_only=True)
class SpoolOptions(ObjectStoreOptions, OutageOptions):
    """The options of a reader on a spool; sizes in bytes, durations in seconds. Made by `parse_spool_options`.

    Without slots, so that it can be a second base.
    """

    spool_location: Path | str | None = option(
        "spoolLocation",
        _SPOOL_LOCATION,
        "Folder of the spool, or its URL on an object store. After the ack it holds the only copy of a message, so it "
        "belongs beside the checkpoint and must be as durable. Driver and executors must see it under this path. "
        "The word ephemeral accepts that acked messages die with the driver's disk: it stands for a folder under the "
        "driver's temporary folder, the same for each start on this source. Required.",
        default=None,
    )
    max_spool_bytes: int = option(
        "maxSpoolBytes",
        BYTES,
        "Fetching pauses while the spool holds this many bytes that no batch has begun to read. It always continues "
        "when nothing is left to read.",
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
    available_now: bool = available_now()
    push_down_predicate: bool = push_down_predicate()
    max_records_per_trigger: int | None = option(
        "maxRecordsPerTrigger", INTEGER, "Maximum rows per batch.", default=None, minimum="1"
    )
    max_bytes_per_trigger: int | None = option(
        "maxBytesPerTrigger",
        BYTES,
        "Maximum bytes per batch; a single row that is larger still passes.",
        default=None,
        minimum="1",
    )
    partition_bytes: int = option(
        "partitionBytes", BYTES, "Bytes per partition of a batch.", default="16mb", minimum="1"
    )
    max_partitions: int = option(
        "maxPartitions", INTEGER, "Maximum partitions per batch.", default="8", minimum="1", maximum="100000"
    )
    dedup_horizon: float | None = option(
        "dedupHorizon",
        duration_or("auto"),
        "How long the id of a message is stored, by its publish time and since it was read, so that a redelivery gives "
        "no second row. auto is the longest time for which the service retains a message; a shorter time may let "
        "duplicates through.",
        default="auto",
        minimum="10m",
        maximum="31d",
    )
    fetchers: int = option(
        "fetchers",
        INTEGER,
        "How many processes fetch. A source that keeps an order is fetched by one.",
        default="1",
        minimum="1",
        maximum="64",
    )
    max_outstanding_bytes: int = option(
        "maxOutstandingBytes",
        BYTES,
        "Maximum bytes of messages that a fetcher holds before they are durable; a single message that is larger still "
        "passes.",
        default="128mb",
        minimum="1",
    )
    segment_records: int | None = option(
        "maxRecordsPerFetch",
        INTEGER,
        "A fetcher writes a segment when it has gathered this many messages. Best left out: small segments cost one "
        "flush to disk each.",
        default=None,
        minimum="1",
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
        "each segment once more to check it.",
        default="true",
    )
    starting_position: StartingPosition | int = option(
        "startingPosition",
        _POSITION,
        "Where a new checkpoint begins on a used spool: after the last commit in the spool, at its oldest retained "
        "row, or at its end. A batch read begins at earliest when this is absent.",
        default="committed",
    )
    ending_position: StartingPosition | int = option(
        "endingPosition", _POSITION, "Of a batch read of a spool: the position after its last row.", default="latest"
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
    available_now_max_wait: float | None = option(
        "availableNowMaxWait",
        DURATION,
        "Trigger.AvailableNow waits no longer than this for messages published before its start, and then ends with "
        "what has come. Default: 5m while the service works, and retryTimeout in an outage.",
        default=None,
        minimum="0",
        maximum="1d",
    )
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
    spool_folder: Path | str = field(default=Path())
    """Derived: spoolLocation (a str on object stores), or the folder that is picked for an ephemeral spool."""


S = TypeVar("S", bound=SpoolOptions)


def parse_spool_options(
    cls: type[S], raw: Mapping[str, str], environ: Mapping[str, str], connector: str, *, streaming: bool | None
) -> S:
    """Parse the options of a reader, but for the place of the spool: `place_spool` follows. Raises `OptionError`.

    Where `streaming` is None, only what streams and batch reads have in common is checked.
    """
    names = _lower_names(raw)
    options = parse_options(cls, raw, environ, connector)
    if streaming:
        if "endingposition" in names:
            what = "The option endingPosition is for batch reads, but this is a stream"
            raise OptionError("OPTION_ILLEGAL", what, connector, "Leave it out, or use spark.read.")
        if not isinstance(options.starting_position, StartingPosition):
            what = f"The option startingPosition cannot be {options.starting_position}: a stream begins at a word"
            raise OptionError("OPTION_ILLEGAL", what, connector, f"Give {_WORD.legal}.")
    if streaming is False and "startingposition" not in names:
        return dataclasses.replace(options, starting_position=StartingPosition.EARLIEST)
    return options


def place_spool(options: S, raw: Mapping[str, str], environ: Mapping[str, str], connector: str, identity: str) -> S:
    """Return the options with the place of the spool; an ephemeral one is found again by the text `identity`.

    Raises `OptionError` if spoolLocation is missing, or an option of object stores does not belong to it.
    """
    folder = options.spool_location
    if folder is None:
        action = (
            "Give a folder next to the checkpoint, on a disk as durable: after the ack it holds the only copy of a "
            "message. Or set spoolLocation=ephemeral, if acked messages may be lost with this disk."
        )
        raise OptionError("OPTION_MISSING", "The option spoolLocation is required", connector, action)
    if folder == EPHEMERAL:
        folder = ephemeral_folder(connector, identity, environ)
    check_object_store_options(options, folder, connector)
    period = options.max_fetch_period
    if isinstance(folder, str) and "maxfetchperiod" not in _lower_names(raw):
        period = _OBJECT_STORE_FETCH_PERIOD
    return dataclasses.replace(options, spool_folder=folder, max_fetch_period=period)


def _lower_names(raw: Mapping[str, str]) -> set[str]:
    return {key.lower() for key in raw if raw.get(key) is not None}
