"""Calls of an object store through obstore, whichever cloud it is in: bytes in, bytes out, errors of this pack.

A put whose answer was lost is tried again by obstore itself, and finds its own object in its place. So "exists" is
never believed: what stands there is read, and if it is what was to be put, the put was done.

URLs of object stores, as users write them: ``s3://``, ``gs://``, ``az://`` and ``abfss://``.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from connectors.core.errors import AccessDeniedError, CredentialsError, SpoolError
from connectors.core.extras import install_command
from connectors.core.options.kinds import CUT_FROM_URL

if TYPE_CHECKING:
    from connectors.spool.store.base import StoreAccess

__all__ = ["ObjectClient", "ObjectUrl", "Version", "parse_object_url"]


_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az"}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_ACCOUNT = re.compile(r"([a-z0-9]{3,24})\.(dfs|blob)\.core\.[a-z0-9.]+")


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    """Where in which object store.

    Attributes:
        kind: ``s3``, ``gs`` or ``az``.
        bucket: bucket or container.
        prefix: the part of the names that all objects share, without ``/`` at its ends; may be empty.
        account: the Azure account; empty if the URL does not name it.
    """

    kind: str
    bucket: str
    prefix: str
    account: str = ""

    def __str__(self) -> str:
        """The URL, the same for every way to write it."""
        prefix = f"/{self.prefix}" if self.prefix else ""
        if self.account:
            return f"abfss://{self.bucket}@{self.account}.dfs.core.windows.net{prefix}"
        return f"{self.kind}://{self.bucket}{prefix}"


def parse_object_url(text: str) -> ObjectUrl:
    """Read a URL.

    Raises:
        ValueError: with a reason that can be shown; it never repeats the URL, which may hold a secret.
    """
    url = urlsplit(text)
    scheme = url.scheme.lower()
    if scheme not in _KINDS:
        raise ValueError(f"{scheme} locations are not supported, only s3, gs, az and abfss are")
    if CUT_FROM_URL.search(text):
        raise ValueError("an object store's URL has no ?, # or control characters")
    user, at, host = url.netloc.rpartition("@")
    account = ""
    if scheme in {"abfs", "abfss"}:
        found = _ACCOUNT.fullmatch(host)
        if not at or found is None:
            raise ValueError(f"it is not like {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER")
        account, bucket = found[1], user
    elif at:
        raise ValueError("credentials do not belong in a URL; give them as options or in the environment")
    else:
        bucket = host
    if not _BUCKET.fullmatch(bucket):
        raise ValueError("it names no bucket")
    parts = [part for part in url.path.split("/") if part]
    if any(part in {".", ".."} for part in parts):
        raise ValueError("it has . or .. in its path")
    return ObjectUrl(_KINDS[scheme], bucket, "/".join(parts), account)


Version = Mapping[str, Any]
"""What a store calls the present content of an object: its entity tag or generation."""

_RETRIES = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3), "base": 2},
}
_CLIENT = {"connect_timeout": "5s", "timeout": "60s"}
_CONFLICT_TRIES = 20
_CONFLICT_PAUSE = 0.05
_IN_MEMORY = 8 << 20
_CHUNK = 8 << 20
_MESSAGE_CHARACTERS = 300
_QUERY = re.compile(r"(https?://[^\s?]*)\?\S+")
_MACHINE = re.compile(
    r"/latest/(api/token|meta-data/iam/)|/computeMetadata/v1/instance/service-accounts/|/metadata/identity/oauth2/token"
)
"""Where the machines of AWS, Google and Azure have the credentials of their roles: asked when none are given."""
_LATER = re.compile(r"status code: (429|5\d\d)")
_CREDENTIALS = {
    "s3": "Give the options spoolKeyId and spoolSecret, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the "
    "machine a role; profiles and files of the AWS tools are not read.",
    "gs": "Give the option spoolCredentialsFile, set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service "
    "account.",
    "az": "Give the options spoolKeyId and spoolSecret, set AZURE_STORAGE_ACCOUNT_KEY, or give the machine a managed "
    "identity.",
}
_LOOPBACK = re.compile(r"http://(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:\d+)?/?")


class ObjectClient:
    """One prefix of one bucket. Names are relative to it.

    Args:
        url: where.
        access: how to reach it.

    Raises:
        SpoolError: obstore is not installed, or what is known of the store does not do.
    """

    def __init__(self, url: ObjectUrl, access: StoreAccess) -> None:
        try:
            import obstore  # noqa: PLC0415 - only spools on object stores need it
            import obstore.exceptions  # noqa: PLC0415 - as above
        except ImportError:
            raise SpoolError(
                "SPOOL_OBSTORE_MISSING",
                f"A spool on an object store needs obstore, which the host {socket.gethostname()} does not have",
                str(url),
                f"Install the extra objects there: {install_command('objects')}.",
            ) from None
        self._obstore = obstore
        self._exceptions = obstore.exceptions
        self._url = url
        self._access = access
        self._answered = False
        try:
            self._bucket = _bucket(url, access)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            raise SpoolError(
                "SPOOL_STORE_MISCONFIGURED",
                f"The object store cannot be used as it is configured: {self._said(error)}",
                str(url),
                "Check the options that begin with spool, and the environment variables of the store.",
            ) from None

    def create(self, name: str, data: bytes | memoryview) -> bool:
        """Put an object if the name is free; False if it is taken by something else than these bytes.

        Raises:
            OSError: ETIMEDOUT: the store does not answer; whether the object is there is not known.
            ConnectorError: the store refuses it.
        """
        exceptions = self._exceptions
        for _ in range(_CONFLICT_TRIES):
            try:
                self._obstore.put(self._bucket, name, data, mode="create", use_multipart=False)
                self._answered = True
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                found = self.read(name)
                if found is not None:
                    return found == bytes(data)
                # Two puts of one name at a time: S3 answers 409 to both sometimes, and wants them to be tried again.
                time.sleep(_CONFLICT_PAUSE)
            except FileNotFoundError:
                self._no_bucket()
            except exceptions.BaseError as error:
                self._failed(error, name)
            else:
                return True
        raise OSError(errno.ETIMEDOUT, "The object store answers that the name is taken, and has nothing there", name)

    def replace(self, name: str, data: bytes, version: Version) -> Version | None:
        """Put an object in the place of this version of it; the new version, or None if it is not that one any more."""
        exceptions = self._exceptions
        try:
            mode = {key: version[key] for key in ("e_tag", "version") if version.get(key) is not None}
            done: Version = self._obstore.put(self._bucket, name, data, mode=mode, use_multipart=False)  # type: ignore[arg-type]
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
            found = self.read_version(name)
            return found[1] if found is not None and found[0] == data else None
        except exceptions.BaseError as error:
            self._failed(error, name)
        return done

    def put(self, name: str, data: bytes) -> None:
        """Put an object, whatever is there."""
        try:
            self._obstore.put(self._bucket, name, data, use_multipart=False)
        except FileNotFoundError:
            self._no_bucket()
        except self._exceptions.BaseError as error:
            self._failed(error, name)

    def read(self, name: str) -> bytes | None:
        """A whole object; None if there is none."""
        found = self.read_version(name)
        return None if found is None else found[0]

    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        """A whole object and its version; None if there is none."""
        try:
            found = self._obstore.get(self._bucket, name)
            self._answered = True
            version: Version = dict(found.meta)
            return bytes(found.bytes()), version
        except FileNotFoundError:
            return None
        except self._exceptions.BaseError as error:
            self._failed(error, name)

    def tail(self, name: str, length: int) -> tuple[bytes, int]:
        """The last bytes of an object, and its length; raises `FileNotFoundError`."""
        try:
            if self._url.kind == "az":
                # Azure has no ranges that count from the end.
                size = int(self._obstore.head(self._bucket, name)["size"])
                return bytes(self.piece(name, max(size - length, 0), size)), size
            found = self._obstore.get(self._bucket, name, options={"range": {"suffix": length}})
            size = int(found.meta["size"])
            return bytes(found.bytes()), size
        except FileNotFoundError:
            raise _missing(name) from None
        except self._exceptions.BaseError as error:
            self._failed(error, name)

    def piece(self, name: str, start: int, end: int) -> memoryview:
        """The bytes of an object from `start` to before `end`; raises `FileNotFoundError`."""
        if start >= end:
            return memoryview(b"")
        try:
            return memoryview(self._obstore.get_range(self._bucket, name, start=start, end=end))
        except FileNotFoundError:
            raise _missing(name) from None
        except self._exceptions.BaseError as error:
            self._failed(error, name)

    def download(self, name: str) -> memoryview:
        """A whole object: in memory if it is small, else in a file that nobody else sees.

        Raises:
            FileNotFoundError: there is none.
        """
        try:
            found = self._obstore.get(self._bucket, name)
            if found.meta["size"] <= _IN_MEMORY:
                return memoryview(bytes(found.bytes()))
            with tempfile.TemporaryFile() as file:
                for chunk in found.stream(_CHUNK):
                    file.write(chunk)
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError:
            raise _missing(name) from None
        except self._exceptions.BaseError as error:
            self._failed(error, name)

    def size(self, name: str) -> int | None:
        """The length of an object; None if there is none."""
        try:
            return int(self._obstore.head(self._bucket, name)["size"])
        except FileNotFoundError:
            return None
        except self._exceptions.BaseError as error:
            self._failed(error, name)

    def names(self, folder: str) -> dict[str, int | None]:
        """What is directly in a folder: names of objects with their lengths, names of folders with None."""
        found = self._list(folder)
        objects = {each["path"].rpartition("/")[2]: int(each["size"]) for each in found["objects"]}
        return objects | {path.rstrip("/").rpartition("/")[2]: None for path in found["common_prefixes"]}

    def sizes(self) -> dict[str, int]:
        """The lengths of all objects under the prefix, by name."""
        try:
            pages = self._obstore.list(self._bucket)
            return {each["path"]: int(each["size"]) for page in pages for each in page}
        except FileNotFoundError:
            self._no_bucket()
        except self._exceptions.BaseError as error:
            self._failed(error, "")

    def written(self, folder: str) -> dict[str, float]:
        """The objects directly in a folder, and when each was written, in the store's seconds since 1970."""
        objects = self._list(folder)["objects"]
        return {each["path"].rpartition("/")[2]: each["last_modified"].timestamp() for each in objects}

    def _list(self, folder: str) -> Any:
        """Objects and prefixes directly in a folder, as obstore gives them."""
        try:
            found = self._obstore.list_with_delimiter(self._bucket, folder)
        except FileNotFoundError:
            self._no_bucket()
        except self._exceptions.BaseError as error:
            self._failed(error, folder)
        self._answered = True
        return found

    def delete(self, name: str) -> None:
        """Delete an object; nothing happens if there is none."""
        try:
            self._obstore.delete(self._bucket, name)
        except FileNotFoundError:
            return
        except self._exceptions.BaseError as error:
            self._failed(error, name)

    def _failed(self, error: Exception, name: str) -> NoReturn:
        """Raise what an error of obstore means."""
        where, host = f"{self._url}/{name}", socket.gethostname()
        if isinstance(error, self._exceptions.PermissionDeniedError):
            raise AccessDeniedError(
                "SPOOL_ACCESS_DENIED",
                f"The object store lets the host {host} not do this: {self._said(error)}",
                where,
                "Give its credentials the rights to list the bucket, and to read, create, replace and delete objects.",
            ) from None
        if isinstance(error, self._exceptions.UnauthenticatedError):
            raise CredentialsError(
                "SPOOL_CREDENTIALS_REFUSED",
                f"The object store does not accept the credentials of the host {host}: {self._said(error)}",
                where,
                "Check the options that begin with spool, and the environment variables of the store.",
            ) from None
        text = str(error)
        if _MACHINE.search(text) and not _LATER.search(text) and not self._answered:
            # Once the store has answered, the machine has credentials: it is asked for newer ones, and that passes.
            raise CredentialsError(
                "SPOOL_CREDENTIALS_MISSING",
                f"No credentials for the object store are given, and the host {host} has none of its own: "
                f"{self._said(error)}",
                where,
                _CREDENTIALS[self._url.kind],
            ) from None
        raise OSError(errno.ETIMEDOUT, f"The object store does not answer: {self._said(error)}", where) from None

    def _no_bucket(self) -> NoReturn:
        raise SpoolError(
            "SPOOL_BUCKET_NOT_FOUND",
            f"There is no bucket or container {self._url.bucket}",
            str(self._url),
            "Create it, or correct spoolLocation; the spool creates none.",
        ) from None

    def _said(self, error: Exception) -> str:
        """What an error says, in one line, without anything secret."""
        text = " ".join(str(error).split("\n\n")[0].split())
        for secret in (self._access.secret, self._access.session_token):
            if secret is not None:
                text = text.replace(secret.reveal(), "***")
        if self._access.key_id is not None:
            text = text.replace(self._access.key_id, "***")
        shown = _QUERY.sub(r"\1?...", text)[:_MESSAGE_CHARACTERS]
        return f"{type(error).__name__}: {shown}"


def _bucket(url: ObjectUrl, access: StoreAccess) -> Any:
    """The store of obstore; what is None in `access` it looks up in the environment."""
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415 - only spools on object stores need it

    secret = None if access.secret is None else access.secret.reveal()
    token = None if access.session_token is None else access.session_token.reveal()
    client: dict[str, Any] = dict(_CLIENT)
    endpoint = access.endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
    if _LOOPBACK.fullmatch(endpoint) or os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true":
        client["allow_http"] = True
    common: dict[str, Any] = {"prefix": url.prefix or None, "client_options": client, "retry_config": _RETRIES}
    if url.kind == "s3":
        config = {
            "endpoint": access.endpoint,
            "region": access.region,
            "access_key_id": access.key_id,
            "secret_access_key": secret,
            "session_token": token,
        }
        return S3Store(url.bucket, config=_given(config), **common)  # type: ignore[arg-type]
    if url.kind == "gs":
        return GCSStore(url.bucket, config=_given({"service_account": access.credentials_file}), **common)  # type: ignore[arg-type]
    account = {"account_name": url.account or access.key_id, "account_key": secret, "endpoint": access.endpoint}
    return AzureStore(url.bucket, config=_given(account), **common)  # type: ignore[arg-type]


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


def _missing(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "There is no such object", name)
