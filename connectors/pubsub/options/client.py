"""The options with which source and sink reach Pub/Sub, and what follows from them: the address, and TLS or not."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import BOOLEAN, PATH, Kind, is_loopback
from connectors.core.options.outages import OutageOptions
from connectors.core.options.providers import Provider, credential_provider
from connectors.pubsub import FORMAT
from connectors.pubsub.options.kinds import PROJECT

_log = logging.getLogger(__name__)

EMULATOR_VARIABLE: Final = "PUBSUB_EMULATOR_HOST"
"""The environment variable that Google's own clients take an emulator's address from."""

_TLS_PORT: Final = 443


@dataclass(frozen=True, slots=True)
class Transport:
    """How the service is reached, at ``host:port``: by TLS with credentials, or else without; locally or not."""

    target: str
    secure: bool
    local: bool


GOOGLE: Final = Transport(f"pubsub.googleapis.com:{_TLS_PORT}", secure=True, local=False)
"""The service itself, at its global endpoint."""


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    r"""The key of a service account, by options instead of a file; line ends of the PEM may be written as ``\n``."""

    client_email: str
    private_key: str = field(repr=False)
    client_id: str = ""
    private_key_id: str = ""


def _parse_endpoint(text: str) -> str:
    _split_endpoint(text)
    return text


_ENDPOINT: Final = Kind("string", "host, host:port, http://host:port or https://host:port", _parse_endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubClientOptions(OutageOptions):
    """What is needed to reach the service."""

    project_id: str | None = option(
        "projectId",
        PROJECT,
        "Project of subscriptions and topics that are given by their ids. Required, unless all are full paths.",
        default=None,
    )
    endpoint: str | None = option(
        "endpoint",
        _ENDPOINT,
        "Where the service is; pubsub.googleapis.com when absent, or the emulator that PUBSUB_EMULATOR_HOST names "
        "(set for the driver before the session starts). An address of this machine and the emulator are reached "
        "without TLS and without credentials, unless it begins with https://; everything else by TLS with "
        "credentials.",
        default=None,
        instead_of=("emulatorHost", "emulator", "apiEndpoint", "pubsubRootUrl"),
    )
    allow_insecure: bool = option(
        "allowInsecure",
        BOOLEAN,
        "Reach an endpoint that is neither this machine nor an emulator without TLS, and without credentials. Only "
        "acts together with endpoint.",
        default="false",
    )
    credentials_file: Path | None = option(
        "credentialsFile",
        PATH,
        "A key file of a service account, or another file of Google credentials, that every process which reaches "
        "the service can read under this path: driver and fetchers of a source, all executors of a sink. Application "
        "default credentials when absent.",
        default=None,
        instead_of=("clientEmail", "clientId", "privateKey", "privateKeyId"),
        sensitive=True,
    )
    credential_provider: str | None = credential_provider(
        "credentialProvider",
        "google.auth.credentials.Credentials, or a dict of token and expires_at, as obstore's for Google",
        instead_of=("serviceCredential",),
    )
    transport: Transport = GOOGLE
    """Derived from endpoint, allowInsecure and the environment."""


Credentials = Path | ServiceAccount | Provider | None
"""What calls by TLS authenticate with: a key file, its key, a provider; None for application default credentials."""


def client_credentials(options: PubSubClientOptions) -> Path | Provider | None:
    """Return the credentials that source and sink both may have."""
    path = options.credential_provider
    return options.credentials_file if path is None else Provider(path)


def decide_transport(endpoint: str | None, emulator: str | None, *, allow_insecure: bool) -> Transport:
    """Decide where the service is reached, and whether by TLS; raise OptionError where plaintext is not allowed.

    1. Without ``endpoint``, the emulator is used when there is one, in plaintext; else Google's endpoint, by TLS.
    2. ``https://`` asks for TLS, ``http://`` for plaintext.
    3. Without a scheme, a loopback address and the emulator's own address are plaintext; anything else is TLS, unless
       ``allow_insecure``.
    4. Plaintext to anything but loopback and the emulator's address needs ``allow_insecure``.

    A name counts as loopback only if it is ``localhost`` or below it: no name is resolved.
    """
    emulator_target = _emulator_target(emulator) if emulator else None
    if endpoint is None:
        if emulator_target is not None:
            return Transport(emulator_target, secure=False, local=True)
        return GOOGLE
    scheme, host, port = _split_endpoint(endpoint)
    local = is_loopback(host) or (port is not None and _target(host, port) == emulator_target)
    secure = scheme == "https" if scheme else not (local or allow_insecure)
    if not secure and not local and not allow_insecure:
        raise OptionError(
            "OPTION_CONFLICT",
            f"The option endpoint asks for plaintext to {host}, which is neither this machine nor an emulator",
            FORMAT,
            f"Use https://, name the emulator in {EMULATOR_VARIABLE}, or allow plaintext with the option "
            "allowInsecure=true.",
        )
    if port is None and not secure:
        raise OptionError("OPTION_ILLEGAL", "The option endpoint has no port", FORMAT, f"Give {_ENDPOINT.legal}.")
    return Transport(_target(host, port or _TLS_PORT), secure=secure, local=local)


def _split_endpoint(text: str) -> tuple[str, str, int | None]:
    """Return scheme (or an empty text), host, and port (or None) of an endpoint; raise ValueError with a reason."""
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme.lower() not in {"http", "https"}:
        raise ValueError(f"the scheme {scheme} is neither http nor https")
    url = urlsplit(f"//{rest.removesuffix('/')}")
    if url.path or url.query or url.fragment or "@" in url.netloc or not url.hostname or " " in text:
        raise ValueError("it is not a host and a port")
    try:
        return scheme.lower(), url.hostname, url.port
    except ValueError:
        raise ValueError("its port is not a number from 0 to 65535") from None


def _emulator_target(text: str) -> str:
    with suppress(ValueError):
        _, host, port = _split_endpoint(text.strip())
        if port is not None:
            return _target(host, port)
    what = f"The environment variable {EMULATOR_VARIABLE} is not host:port"
    raise OptionError("OPTION_ILLEGAL", what, FORMAT, "Set it to something like localhost:8085, or unset it.")


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connection_transport(
    options: PubSubClientOptions, environ: Mapping[str, str], credentials_option: str | None = None
) -> Transport:
    """Decide from options and environment where the service is; raise OptionError if they contradict each other.

    `credentials_option` is the option that gives credentials, if it is not credentialsFile.
    """
    transport = decide_transport(
        options.endpoint, environ.get(EMULATOR_VARIABLE), allow_insecure=options.allow_insecure
    )
    chosen = [
        name
        for name, value in (
            ("credentialProvider", options.credential_provider),
            ("credentialsFile", options.credentials_file),
            (credentials_option, credentials_option),
        )
        if name is not None and value is not None
    ]
    if chosen[1:]:
        raise conflict(FORMAT, chosen[0], chosen[1], "both give credentials", "Give one of them.")
    credentials_option = chosen[0] if chosen else None
    if transport.local:
        _check_emulator(transport, credentials_option, by_environment=options.endpoint is None)
    elif credentials_option is not None and not transport.secure:
        why, action = "credentials are never sent without TLS", "Leave one of them out."
        raise conflict(FORMAT, credentials_option, "allowInsecure", why, action)
    return transport


def _check_emulator(transport: Transport, credentials_option: str | None, *, by_environment: bool) -> None:
    """Warn where the environment alone decides against TLS or credentials; refuse to lose credentials by it."""
    if is_loopback(transport.target.rpartition(":")[0].strip("[]")):
        if credentials_option is not None and by_environment:
            _warn_of_emulator(transport.target, f"so the option {credentials_option} is not used")
    elif credentials_option is None:
        _warn_of_emulator(transport.target, "which is not this machine: messages are sent and read without TLS")
    else:
        raise OptionError(
            "OPTION_CONFLICT",
            f"The option {credentials_option} is given, but {EMULATOR_VARIABLE} names {transport.target}. That is not "
            "this machine, and would be reached without TLS and without credentials",
            FORMAT,
            f"Unset {EMULATOR_VARIABLE} to reach the service itself, or leave {credentials_option} out to use the "
            "emulator.",
        )


@cache
def _warn_of_emulator(target: str, consequence: str) -> None:
    _log.warning(
        "[PUBSUB_EMULATOR] %s names the emulator %s, %s. Unset it to reach the service itself.",
        EMULATOR_VARIABLE,
        target,
        consequence,
    )
