"""The options of a spool on an object store, the same for every connector that has a spool."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import BOOLEAN, PATH, SECRET, STRING, Kind, Secret, is_loopback
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
        raise ValueError("it is no http: or https: URL")
    if "@" in url.netloc:
        raise ValueError("credentials do not belong in a URL")
    if url.scheme == "http" and not is_loopback(url.hostname):
        raise ValueError("data and credentials are sent without TLS only to this machine itself")
    return text.rstrip("/")


_URLS: Final = (
    "s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, az://CONTAINER/FOLDER or "
    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER"
)
LOCATION: Final[Kind[Path | str]] = Kind(
    "location",
    f"an absolute path, a file: URL, or {_URLS}",
    _parse_location,
)
"""A `Path`, or the URL of an object store in its normal form."""

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
        raise OptionError("SPOOL_LOCATION", what, "LOCATION", f"Give a folder, or {_URLS}.") from None


@dataclass(frozen=True, kw_only=True)
class ObjectStoreOptions:
    """The options of a spool on an object store. Without slots, so that it can be a second base."""

    spool_endpoint: str | None = option(
        "spoolEndpoint",
        _ENDPOINT,
        "For spools on object stores: where the store is, if it is not that of the cloud itself, such as MinIO or R2 "
        "for s3, or an emulator on this machine. For gs: an emulator, which is asked without credentials. Like all "
        "options of this kind it may also come from the environment (AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT, "
        "STORAGE_EMULATOR_HOST).",
        default=None,
    )
    spool_region: str | None = option(
        "spoolRegion", STRING, "For spools on s3: the region of the bucket (AWS_REGION).", default=None
    )
    spool_key_id: str | None = option(
        "spoolKeyId",
        STRING,
        "For spools on s3: the access key id (AWS_ACCESS_KEY_ID). For az: the name of the account, where the URL does "
        "not have it (AZURE_STORAGE_ACCOUNT_NAME). Without credentials among the options and in the environment those "
        "of the machine are used.",
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
    take_over: bool = option(
        "takeOver",
        BOOLEAN,
        "For spools on object stores: true takes the spool from whatever query holds its lease, which then stops with "
        "an error. Without it a query waits until the lease of one that has vanished with its machine expires (35 s). "
        "On file systems a lock goes with its process, and this does nothing.",
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
        )


def fetch_period(period: float, location: Path | str, *, given: bool) -> float:
    """Return the seconds after which a fetcher publishes: `period` if the user gave it or the spool is a folder."""
    return _OBJECT_STORE_FETCH_PERIOD if isinstance(location, str) and not given else period


def ephemeral_folder(connector: str, identity: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of an ephemeral spool: the same at each start, so that a query finds what it has acked.

    Others can guess it: `LocalStore.make_root` makes it and its parent for this user alone, or refuses both.
    """
    name = hashlib.blake2b(identity.encode(), digest_size=12).hexdigest()
    temporary = Path(environ.get("TMPDIR") or tempfile.gettempdir())
    return temporary / f"pyspark-stream-connectors-{os.geteuid()}" / f"{connector}-{name}"


def check_object_store_options(options: ObjectStoreOptions, location: Path | str, connector: str) -> None:
    """Refuse options of object stores for a spool in a folder, or of another cloud, with `OptionError`."""
    kind = parse_object_url(location).kind if isinstance(location, str) else "a folder"
    options_of_kinds = {
        "spoolEndpoint": (options.spool_endpoint, ("s3", "gs", "az")),
        "spoolRegion": (options.spool_region, ("s3",)),
        "spoolKeyId": (options.spool_key_id, ("s3", "az")),
        "spoolSecret": (options.spool_secret, ("s3", "az")),
        "spoolSessionToken": (options.spool_session_token, ("s3",)),
        "spoolCredentialsFile": (options.spool_credentials_file, ("gs",)),
    }
    for name, (value, kinds) in options_of_kinds.items():
        if value is not None and kind not in kinds:
            why = f"it is for spools on {' and '.join(kinds)}, and this one is on {kind}"
            raise conflict(connector, name, "spoolLocation", why, "Leave it out.")
    if options.spool_endpoint is not None and options.spool_credentials_file is not None:
        why = "the endpoint of a spool on gs is an emulator, which takes no credentials"
        raise conflict(connector, "spoolCredentialsFile", "spoolEndpoint", why, "Leave one of them out.")
    if (options.spool_key_id is None) != (options.spool_secret is None) and kind == "s3":
        what = "The options spoolKeyId and spoolSecret belong together, and one is missing"
        action = "Give both, or neither to use the environment's credentials."
        raise OptionError("OPTION_MISSING", what, connector, action)
