"""Google credentials. Only calls by TLS import this module: Google's libraries take 0.1 s of processor time to load."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import google.auth.credentials
import grpc
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.grpc import AuthMetadataPlugin
from google.auth.transport.requests import Request

from connectors.core.errors import ConnectorError, CredentialsError
from connectors.core.options.providers import Provider, token_of
from connectors.pubsub import FORMAT
from connectors.pubsub.options.client import Credentials, ServiceAccount

_EXPECTED: Final = "google.auth.credentials.Credentials, or a dict of token and expires_at"
_SCOPES: Final = ("https://www.googleapis.com/auth/pubsub",)
_TOKEN_ENDPOINT: Final = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address, no secret


def tls_credentials(source: Credentials) -> grpc.ChannelCredentials:
    """Build a channel's credentials from these, or the default ones; an error shows no text of another library."""
    make_plugin: Any = AuthMetadataPlugin  # comes without types
    request = Request()
    if isinstance(source, Provider):
        provided = _Provided(source)
        provided.refresh(request)  # now, since gRPC would make a transient error of any failure
        plugin = _QuietPlugin(make_plugin(provided, request))
    else:
        plugin = make_plugin(_load(source), request)
    return grpc.composite_channel_credentials(grpc.ssl_channel_credentials(), grpc.metadata_call_credentials(plugin))


class _Provided(google.auth.credentials.Credentials):
    """Credentials whose token a provider gives, each time it is about to expire."""

    def __init__(self, provider: Provider) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._provider = provider

    def refresh(self, request: Any) -> None:
        """Ask the provider; raises as it does."""
        result = self._provider()
        if isinstance(result, google.auth.credentials.Credentials):
            self.token, self.expiry = self._provider.attempt(lambda: _refreshed(result, request))
            self._quota_project_id = result.quota_project_id
            return
        if not isinstance(result, Mapping):
            raise self._provider.refuse(f"a {type(result).__name__}", _EXPECTED)
        answer = token_of(self._provider, result)
        expiry = answer["expires_at"]
        # Google's library has times of UTC without a zone.
        self.token, self.expiry = answer["token"], expiry and expiry.astimezone(UTC).replace(tzinfo=None)


def _refreshed(credentials: Any, request: Any) -> tuple[str, datetime | None]:
    scope: Any = google.auth.credentials.with_scopes_if_required  # comes without types
    scoped = scope(credentials, _SCOPES)
    if hasattr(scoped, "with_always_use_jwt_access"):
        scoped = scoped.with_always_use_jwt_access(always_use_jwt_access=True)
    scoped.refresh(request)
    return scoped.token, scoped.expiry


class _QuietPlugin(grpc.AuthMetadataPlugin):
    """A plugin whose failure gRPC does not log: it would log it with a traceback for each call."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    def __call__(self, context: Any, callback: Any) -> None:
        try:
            self._plugin(context, callback)
        except ConnectorError as error:
            callback(None, error)


def _load(source: Path | ServiceAccount | None) -> Any:
    if source is None:
        try:
            return google.auth.default(scopes=_SCOPES)[0]
        except GoogleAuthError:
            raise CredentialsError(
                "CREDENTIALS_MISSING",
                "There are no usable application default credentials, and the option credentialsFile is not given",
                FORMAT,
            ) from None
    content = key_file_content(source) if isinstance(source, ServiceAccount) else _read_key_file(source)
    load: Any = google.auth.load_credentials_from_dict  # comes without types
    try:
        with warnings.catch_warnings():
            # It warns of files from strangers; this one is named by the user, and its kinds are many.
            warnings.simplefilter("ignore", DeprecationWarning)
            credentials = load(content, scopes=_SCOPES)[0]
    except (GoogleAuthError, ValueError, TypeError, KeyError, AttributeError):
        raise _unusable(source, "is not a file of Google credentials") from None
    if hasattr(credentials, "with_always_use_jwt_access"):
        # As Google's clients do: the key signs the tokens itself, so no token endpoint has to be reached.
        credentials = credentials.with_always_use_jwt_access(always_use_jwt_access=True)
    return credentials


def key_file_content(account: ServiceAccount) -> dict[str, str]:
    return {
        "type": "service_account",
        "client_email": account.client_email,
        "client_id": account.client_id,
        # A key file is JSON; a key that is copied out of it often has its escapes.
        "private_key": account.private_key.replace("\\n", "\n"),
        "private_key_id": account.private_key_id,
        "token_uri": _TOKEN_ENDPOINT,
    }


def _read_key_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(path, f"cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise _unusable(path, "is not JSON") from None
    if not isinstance(content, dict):
        raise _unusable(path, "is not a JSON object")
    return content


def _unusable(source: Path | ServiceAccount, problem: str) -> CredentialsError:
    if isinstance(source, Path):
        return CredentialsError(
            "CREDENTIALS_UNREADABLE", f"The file that the option credentialsFile names {problem}", str(source)
        )
    return CredentialsError(
        "CREDENTIALS_UNREADABLE",
        "The options clientEmail and privateKey are not the key of a service account",
        source.client_email,
    )
