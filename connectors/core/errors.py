"""Every error this pack raises on purpose.

Errors travel from Spark's Python workers as text, and between our own processes as pickles or JSON: so the
code stands first in the message, and every error survives pickle.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessDeniedError",
    "ConnectorError",
    "CredentialsError",
    "DataLossError",
    "OffsetError",
    "OptionError",
    "ServiceUnavailableError",
    "SourceGoneError",
    "SpoolDamagedError",
    "SpoolError",
    "SpoolFencedError",
    "SpoolFullError",
    "SpoolInUseError",
    "SpoolVersionError",
    "error_from_json",
]


class ConnectorError(Exception):
    """The base of all errors of this pack.

    Its text is ``[CODE] what (where). action``: a stable code that is documented and never reused, one sentence that
    says what is wrong, an option, subscription or file, and an instruction; the last two may be empty.
    """

    transient: ClassVar[bool] = False
    """True when trying again later can help without a change by the user."""

    def __init__(self, code: str, what: str, where: str = "", action: str = "") -> None:
        self.code = code
        self.what = what
        self.where = where
        self.action = action
        place = f" ({where})" if where else ""
        advice = f" {action}" if action else ""
        super().__init__(f"[{code}] {what}{place}.{advice}")

    def __reduce__(self) -> tuple[type[ConnectorError], tuple[str, str, str, str]]:
        return type(self), (self.code, self.what, self.where, self.action)

    def to_json(self) -> dict[str, str]:
        """Return the error as a JSON object, which `error_from_json` reads."""
        kind = type(self).__name__
        return {"kind": kind, "code": self.code, "what": self.what, "where": self.where, "action": self.action}


class OptionError(ConnectorError):
    """Raised before anything is started, when an option is unknown, missing or not valid."""


class CredentialsError(ConnectorError):
    """Raised when credentials cannot be read, or when the service does not accept them."""


class AccessDeniedError(ConnectorError):
    """Raised when the service refuses a call; names the missing role and the resource."""


class SourceGoneError(ConnectorError):
    """Raised when a subscription, topic, stream or shard was deleted, detached or recreated."""


class ServiceUnavailableError(ConnectorError):
    """Raised when the service does not answer after all retries."""

    transient = True


class OffsetError(ConnectorError):
    """Raised when an offset from the checkpoint is malformed, unknown, or beyond the source's end."""


class DataLossError(ConnectorError):
    """Raised when rows that the query needs no longer exist, and ``failOnDataLoss`` is true."""


class SpoolError(ConnectorError):
    """Raised when the spool cannot be used as it is."""


class SpoolInUseError(SpoolError):
    """Raised when another live query holds the spool."""

    transient = True


class SpoolFencedError(SpoolError):
    """Raised in a writer that another writer has fenced; it serves and deletes nothing more."""


class SpoolDamagedError(SpoolError):
    """Raised when a file of the spool is missing, damaged or does not belong there; nothing is skipped."""


class SpoolFullError(SpoolError):
    """Raised when the disk is full or a limit of the spool is reached."""

    transient = True


class SpoolVersionError(SpoolError):
    """Raised when a file was written by a version of this pack that this one cannot read."""


_KINDS = {
    kind.__name__: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, ConnectorError)
}


def error_from_json(value: dict[str, str]) -> ConnectorError:
    """Return the error that `ConnectorError.to_json` wrote; of an unknown kind, a plain `ConnectorError`."""
    kind = _KINDS.get(value.get("kind", ""), ConnectorError)
    return kind(value.get("code", "UNKNOWN"), value.get("what", ""), value.get("where", ""), value.get("action", ""))
