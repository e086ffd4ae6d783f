"""What the checks of ``connectors doctor`` share: findings, steps, network checks, and the offsets of a checkpoint."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import socket
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from connectors.core.errors import ConnectorError, CredentialsError, OffsetError, ServiceUnavailableError
from connectors.core.offsets import is_sentinel

T = TypeVar("T")

_SECONDS: Final = 5.0
_ALERT_SECONDS: Final = 0.5
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # with one slash: it is what a Path makes of a URL
_VERSION: Final = re.compile(r"v([1-9][0-9]{0,8})\r?")


class Outcome(StrEnum):
    """The status of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: what it saw, and where something is wrong, what to do and the code of the error."""

    area: str
    check: str
    outcome: Outcome
    found: str
    fix: str = ""
    code: str = ""

    @classmethod
    def ok(cls, area: str, check: str, found: str) -> Finding:
        """Return a check without a fault."""
        return cls(area, check, Outcome.OK, found)

    @classmethod
    def warning(cls, area: str, check: str, found: str, fix: str, code: str) -> Finding:
        """Return a check after which a query works, but the user should know something."""
        return cls(area, check, Outcome.WARNING, found, fix, code)

    @classmethod
    def failure(cls, area: str, check: str, found: str, fix: str, code: str) -> Finding:
        """Return a check after which a query does not work."""
        return cls(area, check, Outcome.FAILURE, found, fix, code)

    @classmethod
    def from_error(cls, area: str, check: str, error: ConnectorError, outcome: Outcome = Outcome.FAILURE) -> Finding:
        """Return the finding of an error."""
        place = f" ({error.where})" if error.where else ""
        return cls(area, check, outcome, f"{error.what}{place}", error.action, error.code)

    def to_json(self) -> dict[str, str]:
        """Return the finding as a JSON object."""
        return asdict(self)


class Steps:
    """Checks of an area that depend on each other: after the first failure the others are skipped."""

    def __init__(self, area: str) -> None:
        self.area = area
        self._failed = ""

    @property
    def failed(self) -> bool:
        """Whether a step has failed."""
        return bool(self._failed)

    def step(self, check: str, look: Callable[[], str | Finding]) -> Finding:
        """Run a check that returns what it saw, or a finding; a `ConnectorError` or `OSError` is a failure."""
        if self._failed:
            return Finding(self.area, check, Outcome.SKIPPED, f"because '{self._failed}' failed")
        try:
            seen = look()
        except ConnectorError as error:
            seen = Finding.from_error(self.area, check, error)
        except OSError as error:
            what = f"the operating system refuses it: {error}"
            seen = Finding.failure(self.area, check, what, "Let the user of the driver use it.", "SYSTEM_REFUSES")
        found = seen if isinstance(seen, Finding) else Finding.ok(self.area, check, seen)
        if found.outcome is Outcome.FAILURE:
            self._failed = check
        return found


def look_at_checkpoint(checkpoint: Path, look: Callable[[list[Mapping[str, Any]]], T]) -> T | str:
    """Return what ``look`` makes of the newest offset of each source; for a new query, that there is none yet.

    A running query is not disturbed.

    Raises:
        OffsetError: it is no checkpoint, or cannot be read.
    """
    if _is_new(checkpoint):
        return f"{checkpoint} is not there yet: a new query"
    return look(_newest_offsets(checkpoint / "offsets"))


def _is_new(checkpoint: Path) -> bool:
    """Return whether a query would create or fill the folder; of a URL that is unknown."""
    if _URL.match(str(checkpoint)):
        return False
    try:
        return not any(checkpoint.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False  # reading its offsets says why


def _newest_offsets(log: Path) -> list[Mapping[str, Any]]:
    """Read Spark's OffsetSeqLog: a file per batch, with a version, metadata, and a line for each source.

    A line of version 1 is an offset. In version 2, which Spark also writes for sources with a ``.name()``, the name or
    number of the source and a colon stand before it.
    """
    try:
        batches = [int(each.name) for each in log.iterdir() if re.fullmatch(r"[0-9]{1,18}", each.name)]
        values = _parse_offsets(_read_file(log / str(max(batches))), log) if batches else []
    except (OSError, ValueError, RecursionError) as error:
        raise OffsetError(
            "CHECKPOINT_UNREADABLE",
            f"The offsets of the checkpoint cannot be read: {error}",
            str(log),
            "Give the folder that the option checkpointLocation names.",
        ) from None
    return [value for value in values if isinstance(value, Mapping) and not is_sentinel(value)]


def _parse_offsets(text: str, log: Path) -> list[Any]:
    version, _, *lines = [*text.split("\n"), ""]
    if (found := _VERSION.fullmatch(version)) is None:
        raise ValueError("the newest file does not begin with a version")
    if found[1] not in {"1", "2"}:
        raise OffsetError(
            "CHECKPOINT_VERSION",
            f"Spark wrote the offsets of the checkpoint in version {found[1]}, and this pack reads versions 1 and 2",
            str(log),
            "The query itself is not affected: Spark reads this log. Update this pack on the machine that runs the "
            "command, or leave the checkpoint out.",
        )
    if found[1] == "2":
        lines = [line[line.index(":") + 1 :] for line in lines if line]
    return [json.loads(line) for line in lines if line.startswith("{")]


def _read_file(path: Path) -> str:
    """Return the text of a file; raises an `OSError` for a pipe in its place, which would be waited for."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is no regular file", str(path))
        return file.read()


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Return host and port of ``host``, ``host:port`` or ``[host]:port``; `ServiceUnavailableError` for others."""
    host, separator, port = address.rpartition(":")
    if not separator or address.endswith("]"):
        return address.strip("[]"), default_port
    if not port.isdigit():
        raise ServiceUnavailableError("ADDRESS_MALFORMED", "The address has no number as its port", address)
    return host.strip("[]"), int(port)


def look_up(host: str, port: int) -> str:
    """Return the addresses of a name, as text; raise `ServiceUnavailableError` if the name is unknown here."""
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
    """Open and close a connection, and return its peer as text; raise `ServiceUnavailableError` without one."""
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
