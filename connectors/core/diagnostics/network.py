"""Whether a server is reached: its name, its port, its certificate. Only the standard library, and only looking."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from email.utils import parsedate_to_datetime

from connectors.core.errors import CredentialsError, ServiceUnavailableError

__all__ = ["clock_difference", "connect", "look_up", "split_address", "tls_handshake"]

_SECONDS = 5.0
_ALERT_SECONDS = 0.5


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Return host and port of ``host``, ``host:port`` or ``[host]:port``.

    Raises:
        ServiceUnavailableError: the port is no number.
    """
    host, separator, port = address.rpartition(":")
    if not separator or address.endswith("]"):
        return address.strip("[]"), default_port
    if not port.isdigit():
        raise ServiceUnavailableError("ADDRESS_MALFORMED", "The address has no number as its port", address)
    return host.strip("[]"), int(port)


def look_up(host: str, port: int) -> str:
    """Return the addresses of a name, as text.

    Raises:
        ServiceUnavailableError: the name is unknown here.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ServiceUnavailableError(
            "NAME_UNKNOWN",
            f"The name cannot be looked up: {_reason(error)}",
            host,
            "Correct the name; or add it to DNS or /etc/hosts of this machine, and of the executors.",
        ) from None
    return ", ".join(dict.fromkeys(str(each[4][0]) for each in found))


def connect(host: str, port: int) -> str:
    """Open and close a connection, and return its peer as text.

    Raises:
        ServiceUnavailableError: none was accepted.
    """
    with _connected(host, port) as connection:
        peer = connection.getpeername()
        return f"{peer[0]} port {peer[1]} accepts connections"


def tls_handshake(host: str, port: int, context: ssl.SSLContext) -> str:
    """Return the negotiated version of TLS, as text; the context decides which certificates are accepted.

    A server that asks for a client's certificate may refuse it after the handshake (TLS 1.3), so this waits a moment.

    Raises:
        CredentialsError: one side does not accept the other's certificate.
        ServiceUnavailableError: the server does not speak TLS, or accepts no connection.
    """
    with _connected(host, port) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=host) as secure:
                secure.settimeout(_ALERT_SECONDS)
                _wait_for_refusal(secure)
                return f"{secure.version()}, the certificate is good for {host}"
        except ssl.SSLCertVerificationError as error:
            raise CredentialsError(
                "TLS_CERTIFICATE",
                f"The certificate of the server is not accepted: {error.verify_message}",
                f"{host}:{port}",
                "Give the authority that signed it, or the name that it was made for; a proxy that opens TLS needs "
                "its own authority.",
            ) from None
        except ssl.SSLError as error:
            if "CERTIFICATE" in str(error.reason or "").upper():
                raise CredentialsError(
                    "TLS_CLIENT_CERTIFICATE",
                    f"The server does not accept this client's certificate: {error.reason}",
                    f"{host}:{port}",
                    "Give a certificate and key of a client that the server knows.",
                ) from None
            raise _no_tls(host, port, str(error.reason)) from None
        except OSError as error:
            raise _no_tls(host, port, _reason(error)) from None


def clock_difference(host: str, port: int, context: ssl.SSLContext) -> float | None:
    """Return the seconds, to about one, that this clock is ahead of a server's ``Date`` header; None without one."""
    connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
        return None if date is None else time.time() - parsedate_to_datetime(date).timestamp()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _wait_for_refusal(secure: ssl.SSLSocket) -> None:
    try:
        secure.recv(1)
    except TimeoutError:
        return  # nothing was said against us


def _connected(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), _SECONDS)
    except OSError as error:
        raise ServiceUnavailableError(
            "TCP_NO_CONNECTION",
            f"No connection is accepted: {_reason(error)}",
            f"{host}:{port}",
            "Check the port, that the server runs, and that no firewall or missing route is between.",
        ) from None


def _no_tls(host: str, port: int, reason: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "TLS_NOT_SPOKEN",
        f"The TLS handshake failed: {reason}",
        f"{host}:{port}",
        "The port may be one without TLS, or a proxy may be between: correct port or protocol.",
    )


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip()
