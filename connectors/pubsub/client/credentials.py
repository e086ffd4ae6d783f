"""Google credentials. Only calls by TLS import this module: Google's libraries take 0.1 s of processor time to load."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Final

import google.auth
import grpc
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.grpc import AuthMetadataPlugin
from google.auth.transport.requests import Request

from connectors.core.errors import CredentialsError
from connectors.pubsub import FORMAT
from connectors.pubsub.options.client import ServiceAccount

_SCOPES: Final = ("https://www.googleapis.com/auth/pubsub",)
_TOKEN_ENDPOINT: Final = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address, no secret


def tls_credentials(source: Path | ServiceAccount | None) -> grpc.ChannelCredentials:
    """Build a channel's credentials from these, or the default ones; an error shows no text of another library."""
    make_plugin: Any = AuthMetadataPlugin  # comes without types
    plugin = make_plugin(_load(source), Request())
    return grpc.composite_channel_credentials(grpc.ssl_channel_credentials(), grpc.metadata_call_credentials(plugin))


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
        raise _unusable(source, "is no file of Google credentials") from None
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
        "The options clientEmail and privateKey are no key of a service account",
        source.client_email,
    )
