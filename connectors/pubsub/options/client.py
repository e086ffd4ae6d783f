"""The options by which source and sink reach Pub/Sub.

Where the Pub/Sub service is reached, and whether by TLS.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import BOOLEAN, PATH, Kind, is_loopback
from connectors.pubsub.options.resource_names import PROJECT

__all__ = [
    "EMULATOR_VARIABLE",
    "ENDPOINT",
    "GOOGLE",
    "PubSubConnectionOptions",
    "Transport",
    "connection_transport",
    "decide_transport",
]


EMULATOR_VARIABLE: Final = "PUBSUB_EMULATOR_HOST"
"""The environment variable that Google's own clients take an emulator's address from."""

_CONNECTOR: Final = "pubsub"
_TLS_PORT: Final = 443


@dataclass(frozen=True, slots=True)
class Transport:
    """How the service is reached; decided by `decide_transport`.

    Attributes:
        target: ``host:port``.
        secure: True for TLS with credentials; False for plaintext, over which no credentials are ever sent.
        local: the target is this machine or an emulator.
    """

    target: str
    secure: bool
    local: bool


GOOGLE: Final = Transport(f"pubsub.googleapis.com:{_TLS_PORT}", secure=True, local=False)
"""The service itself, at its global endpoint."""


def _parse_endpoint(text: str) -> str:
    _split_endpoint(text)
    return text


ENDPOINT: Final = Kind("string", "host, host:port, http://host:port or https://host:port", str, _parse_endpoint)


def decide_transport(endpoint: str | None, emulator: str | None, *, allow_insecure: bool) -> Transport:
    """Where the service is reached, and whether by TLS.

    1. Without ``endpoint``, the emulator is used when there is one, in plaintext; else Google's endpoint, by TLS.
    2. ``https://`` asks for TLS, ``http://`` for plaintext.
    3. Without a scheme, a loopback address and the emulator's own address are plaintext; anything else is TLS, unless
       ``allow_insecure``.
    4. Plaintext to anything but loopback and the emulator's address needs ``allow_insecure``.

    A name counts as loopback only if it is ``localhost`` or below it: no name is looked up.

    Args:
        endpoint: the option of that name.
        emulator: the value of ``PUBSUB_EMULATOR_HOST``; an empty one is none.
        allow_insecure: the option allowInsecure.

    Raises:
        OptionError: the endpoint or the variable is malformed, or asks for plaintext where that is not allowed.
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
            _CONNECTOR,
            f"Use https://, name the emulator in {EMULATOR_VARIABLE}, or allow it with the option allowInsecure=true.",
        )
    if port is None and not secure:
        raise OptionError("OPTION_ILLEGAL", "The option endpoint has no port", _CONNECTOR, f"Give {ENDPOINT.legal}.")
    return Transport(_target(host, port or _TLS_PORT), secure=secure, local=local)


def _split_endpoint(text: str) -> tuple[str, str, int | None]:
    """Scheme (or an empty text), host, and port (or None) of an endpoint; ValueError with a reason."""
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme.lower() not in {"http", "https"}:
        raise ValueError(f"{scheme} is not a scheme it knows")
    url = urlsplit(f"//{rest.removesuffix('/')}")
    if url.path or url.query or url.fragment or "@" in url.netloc or not url.hostname or " " in text:
        raise ValueError("it is not a host and a port")
    try:
        return scheme.lower(), url.hostname, url.port
    except ValueError:
        raise ValueError("its port is not a number from 0 to 65535") from None


def _emulator_target(text: str) -> str:
    try:
        _, host, port = _split_endpoint(text.strip())
    except ValueError:
        host, port = "", None
    if port is None:
        raise OptionError(
            "OPTION_ILLEGAL",
            f"The environment variable {EMULATOR_VARIABLE} is not host:port",
            _CONNECTOR,
            "Set it to something like localhost:8085, or unset it.",
        )
    return _target(host, port)


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubConnectionOptions:
    """What is needed to reach the service."""

    project_id: str | None = option(
        "projectId",
        PROJECT,
        "Project of the subscription, and of a topic given by its id. May be left out when subscriptionId is a full "
        "path.",
        default=None,
    )
    endpoint: str | None = option(
        "endpoint",
        ENDPOINT,
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
        "A key file of a service account, or another file of Google credentials, that the driver and the fetchers "
        "can read. Application default credentials when absent.",
        default=None,
        instead_of=("clientEmail", "clientId", "privateKey", "privateKeyId", "serviceCredential"),
        sensitive=True,
    )
    transport: Transport = GOOGLE
    """Derived from endpoint, allowInsecure and the environment."""


def connection_transport(options: PubSubConnectionOptions, environ: Mapping[str, str]) -> Transport:
    """Where the options and the environment say that the service is.

    Raises:
        OptionError: they contradict each other, or would send credentials, or instead of them data, without TLS.
    """
    transport = decide_transport(
        options.endpoint, environ.get(EMULATOR_VARIABLE), allow_insecure=options.allow_insecure
    )
    if transport.local:
        _check_emulator(options, transport)
    if options.credentials_file is not None and not transport.secure and not transport.local:
        raise conflict(
            _CONNECTOR,
            "credentialsFile",
            "allowInsecure",
            "credentials are never sent without TLS",
            "Leave one of them out.",
        )
    return transport


def _check_emulator(options: PubSubConnectionOptions, transport: Transport) -> None:
    """Warn where the environment alone decides that no TLS or no credentials are used.

    Raises:
        OptionError: credentials are given, and the emulator is another machine.
    """
    remote = not is_loopback(transport.target.rpartition(":")[0].strip("[]"))
    named = "credentialsFile" if options.credentials_file is not None else None
    if getattr(options, "client_email", None) is not None:
        named = "clientEmail"
    if remote and named is not None:
        raise OptionError(
            "OPTION_CONFLICT",
            f"The option {named} is given, and {EMULATOR_VARIABLE} names {transport.target}, which is not this machine "
            "and would be reached without TLS and without credentials",
            _CONNECTOR,
            f"Unset {EMULATOR_VARIABLE} to reach the service itself, or leave {named} out to use the emulator.",
        )
    if remote:
        _warn_of_emulator(transport.target, "which is not this machine: messages are sent and read without TLS")
    elif named is not None and options.endpoint is None:
        _warn_of_emulator(transport.target, f"so the option {named} is not used")


@cache
def _warn_of_emulator(target: str, consequence: str) -> None:
    _log.warning(
        "[PUBSUB_EMULATOR] %s names the emulator %s, %s. Unset it to reach the service itself.",
        EMULATOR_VARIABLE,
        target,
        consequence,
    )
