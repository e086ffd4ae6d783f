"""What the checks of ``connectors doctor`` share: findings, a run of checks, and reaching a server."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from connectors.core.errors import ConnectorError, CredentialsError, ServiceUnavailableError

CHECKS: Final = ("options", "reach", "authenticate", "list", "read")
"""The checks of a source, in their order."""
_SECONDS: Final = 5.0


class Outcome(StrEnum):
    """The status of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: what a check saw; for a warning or a failure, what to do and the code of the error."""

    area: str
    check: str
    outcome: Outcome
    seen: str
    fix: str = ""
    code: str = ""

    @classmethod
    def from_error(cls, area: str, check: str, error: ConnectorError, outcome: Outcome) -> Finding:
        where = f" ({error.where})" if error.where else ""
        return cls(area, check, outcome, f"{error.what}{where}", error.action, error.code)

    def to_json(self) -> dict[str, str]:
        return asdict(self)


class FindingError(ConnectorError):
    """Raised or returned by a check of the doctor for what no query says with a code of its own."""


def run_checks(area: str, checks: Sequence[str], results: Iterator[str | ConnectorError]) -> Iterator[Finding]:
    """Run checks that depend on each other, and yield a finding for each: after the first failure, the rest is skipped.

    ``results`` yields for each check what it saw, or an error that is only a warning; it raises an error that fails it.
    """
    failed = ""
    for check in checks:
        if failed:
            yield Finding(area, check, Outcome.SKIPPED, f"because '{failed}' failed")
            continue
        try:
            seen = next(results)
        except ConnectorError as error:
            failed = check
            yield Finding.from_error(area, check, error, Outcome.FAILURE)
        except OSError as error:
            failed = check
            refused = FindingError("SYSTEM_REFUSES", f"the operating system refuses it: {error}")
            yield Finding.from_error(area, check, refused, Outcome.FAILURE)
        else:
            if isinstance(seen, ConnectorError):
                yield Finding.from_error(area, check, seen, Outcome.WARNING)
            else:
                yield Finding(area, check, Outcome.OK, seen)


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Return host and port of ``host``, ``host:port`` or ``[host]:port``; `ServiceUnavailableError` for others."""
    host, separator, port = address.rpartition(":")
    if not separator or address.endswith("]"):
        return address.strip("[]"), default_port
    if not port.isdigit():
        raise ServiceUnavailableError("ADDRESS_MALFORMED", "The address has no port number", address)
    return host.strip("[]"), int(port)


def reach(host: str, port: int, *, tls: bool = False) -> str:
    """Look a name up, connect, and negotiate TLS where asked; return the result as text.

    Raises:
        CredentialsError: the certificate of the server is not accepted.
        ServiceUnavailableError: the name is unknown, no connection is accepted, or the server does not speak TLS.
    """
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except (OSError, UnicodeError) as error:
        what = f"The host name does not resolve: {_reason(error)}"
        raise ServiceUnavailableError("NAME_UNKNOWN", what, host) from None
    try:
        connection = socket.create_connection((host, port), _SECONDS)
    except OSError as error:
        what = f"The server does not accept the connection: {_reason(error)}"
        raise ServiceUnavailableError("TCP_NO_CONNECTION", what, f"{host}:{port}") from None
    with connection:
        version = f", {_negotiate(connection, host, port)}" if tls else ""
    return f"{host} is {address} and accepts connections on port {port}{version}"


def _negotiate(connection: socket.socket, host: str, port: int) -> str | None:
    try:
        with ssl.create_default_context().wrap_socket(connection, server_hostname=host) as secure:
            return secure.version()
    except ssl.SSLCertVerificationError as error:
        raise CredentialsError(
            "TLS_CERTIFICATE",
            f"The server's certificate is not accepted: {error.verify_message}",
            f"{host}:{port}",
            "Trust the authority that signed it (SSL_CERT_FILE), or use the host name that it was issued for. A proxy "
            "that opens TLS has its own authority.",
        ) from None
    except OSError as error:
        raise ServiceUnavailableError(
            "TLS_NOT_SPOKEN", f"The TLS handshake failed: {_reason(error)}", f"{host}:{port}"
        ) from None


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
