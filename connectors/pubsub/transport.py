"""Where the Pub/Sub service is reached, and whether by TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options.kinds import Kind, is_loopback

__all__ = ["EMULATOR_VARIABLE", "ENDPOINT", "GOOGLE", "Transport", "decide_transport"]

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
