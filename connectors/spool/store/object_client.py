"""Calls of an object store through obstore: bytes in, bytes out, errors of this pack.

obstore repeats a put whose response was lost, and may meet its own object. So "exists" is never believed: the object is
read, and if it is what was to be put, the put was done.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from connectors.core.aws.provided import NEVER, keys_of
from connectors.core.errors import AccessDeniedError, ConnectorError, CredentialsError, SpoolError
from connectors.core.options.providers import Provider, token_of
from connectors.spool.errors import foreign_file
from connectors.spool.store.base import ObjectUrl, StoreAccess, Version

_RETRIES = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3), "base": 2},
}
_CLIENT = {"connect_timeout": "5s", "timeout": "60s"}
_CONFLICTS = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
_CONFLICT_TRIES = 20
_CONFLICT_PAUSE = 0.05
_IN_MEMORY = 8 << 20
_CHUNK = 8 << 20
_MESSAGE_CHARACTERS = 300
_QUERY = re.compile(r"(https?://[^\s?]*)\?\S+")
_MACHINE = re.compile(
    r"/latest/(api/token|meta-data/iam/)|/computeMetadata/v1/instance/service-accounts/|/metadata/identity/oauth2/token"
)
"""Where machines of AWS, Google and Azure get the credentials of their roles, which are used when none are given."""
_LATER = re.compile(r"status code: (429|5\d\d)")
_ENDPOINT_VARIABLES = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}
_AZURE_SCOPE = "https://storage.azure.com/.default"
_AZURE_SECRETS = ("access_key", "sas_token")
_LOOPBACK = re.compile(r"http://(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:\d+)?(/[^?#]*)?")


def connect(url: ObjectUrl, access: StoreAccess, retries: Mapping[str, Any], provider: Any = None) -> Any:
    """Return the store of obstore for a bucket; `provider` is called for its credentials.

    Raises `ValueError`, and what obstore raises for its settings.
    """
    secret = None if access.secret is None else access.secret.reveal()
    token = None if access.session_token is None else access.session_token.reveal()
    client: dict[str, Any] = dict(_CLIENT)
    endpoint = access.endpoint or os.environ.get(_ENDPOINT_VARIABLES[url.kind], "")
    if url.kind == "gs" and endpoint and "://" not in endpoint:
        endpoint = f"http://{endpoint}"  # Google's own clients take it without a scheme too
    if _LOOPBACK.fullmatch(endpoint) or os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true":
        client["allow_http"] = True
    elif endpoint.startswith("http:"):
        raise ValueError("plain http reaches only this machine; use https, or set AWS_ALLOW_HTTP=true")
    common: dict[str, Any] = {"prefix": url.prefix or None, "client_options": client, "retry_config": retries}
    if provider is not None:
        common["credential_provider"] = provider
    if url.kind == "s3":
        config = {
            "endpoint": access.endpoint,
            "region": access.region,
            "access_key_id": access.key_id,
            "secret_access_key": secret,
            "session_token": token,
        }
        return S3Store(url.bucket, config=_without_none(config), **common)  # type: ignore[arg-type]
    if url.kind == "gs":
        service = {"service_account": access.credentials_file}
        if endpoint and access.credentials_file is None:
            service = {"service_account_key": _emulator_key(endpoint)}
        return GCSStore(url.bucket, config=_without_none(service), **common)  # type: ignore[arg-type]
    account = {"account_name": url.account or access.key_id, "account_key": secret, "endpoint": access.endpoint}
    return AzureStore(url.bucket, config=_without_none(account), **common)  # type: ignore[arg-type]


class ObjectClient:
    """One prefix of one bucket. Names are relative to it.

    Every call raises `OSError` (ETIMEDOUT) when the store does not answer, and `ConnectorError` when it refuses.
    ``retries`` replaces entries of obstore's ``retry_config``.

    Attributes:
        connect: makes the store of obstore that is called.
    """

    connect = staticmethod(connect)

    def __init__(self, url: ObjectUrl, access: StoreAccess, retries: Mapping[str, Any] | None = None) -> None:
        self._url = url
        self._access = access
        self._answered = False
        path = access.credential_provider
        self._credentials = None if path is None else _StoreCredentials(url.kind, path)
        try:
            self._bucket = self.connect(url, access, _RETRIES | dict(retries or {}), self._credentials)
        except (exceptions.BaseError, ValueError, TypeError) as error:
            what = f"The configuration of the object store is not valid: {self._said(error)}"
            raise SpoolError("SPOOL_STORE_MISCONFIGURED", what, str(url)) from None

    @contextlib.contextmanager
    def _errors(self, name: str, *, needs_bucket: bool = False) -> Iterator[None]:
        """Turn what a call raises into errors of this pack; conflicts and, of an object, `FileNotFoundError` stay."""
        try:
            yield
        except FileNotFoundError:
            if needs_bucket:
                what = f"There is no bucket or container {self._url.bucket}"
                raise SpoolError("SPOOL_BUCKET_NOT_FOUND", what, str(self._url)) from None
            raise FileNotFoundError(errno.ENOENT, "There is no such object", name) from None
        except _CONFLICTS:
            raise
        except exceptions.BaseError as error:
            self._failed(error, name)
        self._answered = True

    def create(self, name: str, data: bytes | memoryview) -> bool:
        """Put an object if the name is free; return False if something else than these bytes has it.

        After an `OSError` it is not known whether the object is there.
        """
        for _ in range(_CONFLICT_TRIES):
            try:
                with self._errors(name, needs_bucket=True):
                    self._bucket.put(name, data, mode="create", use_multipart=False)
            except _CONFLICTS:
                present = self.read(name)
                if present is not None:
                    return present == bytes(data)
                # Two puts of one name at a time: S3 answers 409 to both sometimes, and wants them to be tried again.
                time.sleep(_CONFLICT_PAUSE)
            else:
                return True
        raise OSError(errno.ETIMEDOUT, "The object store answers that the name is taken, and has nothing there", name)

    def swap(self, name: str, data: bytes, version: Version) -> Version | None:
        mode = {key: version[key] for key in ("e_tag", "version") if version.get(key) is not None}
        try:
            with self._errors(name):
                done: Version = self._bucket.put(name, data, mode=mode, use_multipart=False)
        except (*_CONFLICTS, FileNotFoundError):
            present = self.read_version(name)
            return present[1] if present is not None and present[0] == data else None
        return done

    def overwrite(self, name: str, data: bytes) -> None:
        with self._errors(name, needs_bucket=True):
            self._bucket.put(name, data, use_multipart=False)

    def read(self, name: str) -> bytes | None:
        present = self.read_version(name)
        return None if present is None else present[0]

    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            response = self._bucket.get(name)
            version: Version = dict(response.meta)
            return bytes(response.bytes()), version
        return None

    def tail(self, name: str, length: int) -> tuple[bytes, int]:
        with self._errors(name):
            if self._url.kind == "az":
                # Azure has no ranges that count from the end.
                size = int(self._bucket.head(name)["size"])
                return bytes(self.piece(name, max(size - length, 0), size)), size
            response = self._bucket.get(name, options={"range": {"suffix": length}})
            size = int(response.meta["size"])
            return bytes(response.bytes()), size

    def piece(self, name: str, start: int, end: int) -> memoryview:
        if start >= end:
            return memoryview(b"")
        with self._errors(name):
            return memoryview(self._bucket.get_range(name, start=start, end=end))

    def download(self, name: str) -> memoryview:
        """Return a whole object: in memory if it is small, else in a private file; raises `FileNotFoundError`."""
        with self._errors(name):
            response = self._bucket.get(name)
            if response.meta["size"] <= _IN_MEMORY:
                return memoryview(bytes(response.bytes()))
            with tempfile.TemporaryFile() as file:
                for chunk in response.stream(_CHUNK):
                    file.write(chunk)
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def size(self, name: str) -> int | None:
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            return int(self._bucket.head(name)["size"])
        return None

    def names(self, folder: str) -> dict[str, int | None]:
        """Return what is directly in a folder: names of objects with their lengths, names of folders with None."""
        listed = self._list(folder)
        objects = {entry["path"].rpartition("/")[2]: int(entry["size"]) for entry in listed["objects"]}
        return objects | {path.rstrip("/").rpartition("/")[2]: None for path in listed["common_prefixes"]}

    def sizes(self) -> dict[str, int]:
        with self._errors("", needs_bucket=True):
            return {entry["path"]: int(entry["size"]) for page in self._bucket.list() for entry in page}

    def written(self, folder: str) -> dict[str, float]:
        objects = self._list(folder)["objects"]
        return {entry["path"].rpartition("/")[2]: entry["last_modified"].timestamp() for entry in objects}

    def _list(self, folder: str) -> Any:
        with self._errors(folder, needs_bucket=True):
            return self._bucket.list_with_delimiter(folder)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._errors(name):
            self._bucket.delete(name)

    def _failed(self, error: Exception, name: str) -> NoReturn:
        where, host = f"{self._url}/{name}", socket.gethostname()
        failure = None if self._credentials is None else self._credentials.failure
        if failure is not None:
            raise OSError(errno.ETIMEDOUT, str(failure), where) if failure.transient else failure from None
        if isinstance(error, exceptions.PermissionDeniedError):
            what = f"The object store denies an operation to the host {host}: {self._said(error)}"
            raise AccessDeniedError("SPOOL_ACCESS_DENIED", what, where) from None
        if isinstance(error, exceptions.UnauthenticatedError):
            what = f"The object store does not accept the credentials of the host {host}: {self._said(error)}"
            raise CredentialsError("SPOOL_CREDENTIALS_REFUSED", what, where) from None
        if isinstance(error, exceptions.InvalidPathError):
            # It is in a list of the store: no name of ours has an empty part, dots, or what cannot be printed.
            raise foreign_file(str(self._url), f"{name}: {self._said(error)}") from None
        text = str(error)
        if _MACHINE.search(text) and not _LATER.search(text) and not self._answered:
            # Once the store has answered, the machine has credentials: a failed request for newer ones passes.
            what = (
                f"There are no credentials for the object store, in the options or on the host {host}: "
                f"{self._said(error)}"
            )
            raise CredentialsError("SPOOL_CREDENTIALS_MISSING", what, where) from None
        raise OSError(errno.ETIMEDOUT, f"The object store does not answer: {self._said(error)}", where) from None

    def _said(self, error: Exception) -> str:
        """Return the text of an error in one line, without anything secret."""
        text = " ".join(str(error).split("\n\n")[0].split())
        for secret in (self._access.secret, self._access.session_token):
            if secret is not None:
                text = text.replace(secret.reveal(), "***")
        if self._access.key_id is not None:
            text = text.replace(self._access.key_id, "***")
        shown = _QUERY.sub(r"\1?...", text)[:_MESSAGE_CHARACTERS]
        return f"{type(error).__name__}: {shown}"


class _StoreCredentials:
    """What obstore calls for credentials, and again five minutes before they expire."""

    def __init__(self, kind: str, path: str) -> None:
        self._kind, self._provider = kind, Provider(path, "spoolCredentialProvider")
        self.failure: ConnectorError | None = None
        """Why the last call failed: obstore would show the text of the provider's error."""

    def __call__(self) -> dict[str, Any]:
        try:
            credentials = self._s3() if self._kind == "s3" else self._token()
        except ConnectorError as error:
            self.failure = error
            raise
        self.failure = None
        return credentials

    def _s3(self) -> dict[str, Any]:
        keys = keys_of(self._provider, self._provider())
        expiry = None if keys["expiry_time"] == NEVER else keys["expiry_time"]
        names = {"access_key_id": "access_key", "secret_access_key": "secret_key", "token": "token"}
        return {name: keys[own] for name, own in names.items()} | {"expires_at": expiry}

    def _token(self) -> dict[str, Any]:
        """Return the dict of obstore for Google or Azure; credentials of their own libraries are asked for a token."""
        result = self._provider()
        if self._kind == "gs" and callable(getattr(result, "refresh", None)):
            result = self._provider.attempt(lambda: _google_token(result))
        elif self._kind == "az" and callable(getattr(result, "get_token", None)):
            token = self._provider.attempt(lambda: result.get_token(_AZURE_SCOPE))
            result = {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}
        return token_of(self._provider, result, *(_AZURE_SECRETS if self._kind == "az" else ()))


def _google_token(credentials: Any) -> dict[str, Any]:
    from obstore.auth.google import GoogleCredentialProvider  # noqa: PLC0415 - it imports Google's library

    return dict(GoogleCredentialProvider(credentials)())


def _emulator_key(endpoint: str) -> str:
    """Return the key of a service account for an emulator of GCS, which is asked without credentials."""
    empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    return json.dumps({"gcs_base_url": endpoint, "disable_oauth": True, **empty})


def _without_none(values: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}
