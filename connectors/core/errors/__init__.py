"""Every error this pack raises on purpose.

Errors travel from Spark's Python workers as text, and between our own processes as pickles or JSON: so the
code stands first in the message, and every error survives pickle.
"""

from __future__ import annotations

import logging
import tomllib
import unicodedata
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Final

__all__ = [
    "AccessDeniedError",
    "ConnectorError",
    "CredentialsError",
    "DataLossError",
    "OffsetError",
    "OneLineFilter",
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
    "one_line",
    "printable",
]

_BIDIRECTIONAL: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Return a text without what controls a terminal, or reverses what it shows; line feeds and tabs stay.

    Names, errors and records come from files and services: an escape sequence in them could hide or forge lines.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        for character in text
        if character in "\n\t"
        or (unicodedata.category(character) not in {"Cc", "Cs"} and character not in _BIDIRECTIONAL)
    )


def one_line(text: str) -> str:
    """Return a text from outside as `printable` does, on one line: a line break could forge a line of a log."""
    if text.isascii() and text.isprintable():
        return text
    return printable(" ".join(line.strip() for line in text.splitlines()))


@cache
def error_table() -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``codes.toml``: for each part of the package, its codes with kinds, meaning and action."""
    # As a resource, since Spark may ship this package as a zip file.
    return tomllib.loads(files("connectors.core.errors").joinpath("codes.toml").read_text(encoding="utf-8"))


@cache
def declared_action(code: str) -> str:
    """Return what the table says to do about a code, without Markdown; empty for a code that is not in the table."""
    declared = next((group[code] for group in error_table().values() if code in group), {})
    return str(declared.get("action", "")).replace("`", "")


class OneLineFilter(logging.Filter):
    """Passes the records of a logger on, each as one line: for a logger that writes what a service has said."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = one_line(record.getMessage()), None
        return True


class ConnectorError(Exception):
    """The base of all errors of this pack.

    Its text is ``[CODE] what (where). action``: a stable code that is documented and never reused, one sentence that
    says what is wrong, an option, subscription or file, and what to do. Without an ``action`` of its own, an error has
    the one that ``codes.toml`` declares for its code. What services and files put into it cannot control a
    terminal or forge a line of a log: see `one_line`.
    """

    transient: ClassVar[bool] = False
    """True when trying again later can help without a change by the user."""

    def __init__(self, code: str, what: str, where: str = "", action: str = "") -> None:
        self.code = code
        self.what = one_line(what)
        self.where = one_line(where)
        self.action = printable(action) or declared_action(code)
        place = f" ({self.where})" if where else ""
        advice = f" {self.action}" if self.action else ""
        self.sentences = f"{self.what}{place}.{advice}"
        super().__init__(f"[{code}] {self.sentences}")

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
