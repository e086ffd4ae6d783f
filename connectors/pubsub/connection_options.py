"""The options by which source and sink reach Pub/Sub."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import BOOLEAN, PATH, is_loopback
from connectors.pubsub.names import PROJECT
from connectors.pubsub.transport import EMULATOR_VARIABLE, ENDPOINT, GOOGLE, Transport, decide_transport

__all__ = ["PubSubConnectionOptions", "connection_transport"]

_log = logging.getLogger(__name__)

_CONNECTOR: Final = "pubsub"


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
