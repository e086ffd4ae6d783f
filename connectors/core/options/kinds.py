"""The kinds of value an option can have, and how the text of each is read.

Sizes follow Spark's own (``64mb`` is 64 * 1024 * 1024 bytes, a plain number is bytes); durations always carry a unit,
because systems disagree on what a plain number means.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote, urlsplit

from connectors.core.errors import OptionError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_BYTES: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{unit: 1024**power for power, letter in enumerate("kmgtp", 1) for unit in (letter, letter + "b")},
}
_SECONDS: Final = {
    unit: seconds
    for units, seconds in (
        (("ms", "millisecond", "milliseconds"), 0.001),
        (("s", "second", "seconds"), 1.0),
        (("m", "min", "minute", "minutes"), 60.0),
        (("h", "hour", "hours"), 3600.0),
        (("d", "day", "days"), 86400.0),
    )
    for unit in units
}
_SHOWN_CHARACTERS: Final = 80
_LARGEST_LONG: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_SIZE: Final = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([a-z]*)")
CUT_FROM_URL: Final = re.compile(r"[?#\x00-\x1f\x7f]")
"""What ends the path of a URL, or is left out of it in silence."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
SECRET_ARGUMENT: Final = re.compile(r"[?&][^=&]*(?:secret|passw|token|key)[^=&]*=", re.IGNORECASE)
"""An argument after ``?`` that is named like a secret."""
_IMPORT_PATH: Final = re.compile(r"[^\s:?]+:[^\s:?]+(?:\?(?:[^\s?&=]+=[^\s?&]*(?:&|$))+)?")


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret text that prints as ``***``.

    It pickles with its value, because executors may need it: a pickle of options is as secret as they are.
    """

    _value: str = field(repr=False)

    def reveal(self) -> str:
        """Return the secret itself; for a client, never for a log or an error."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How the text of an option is read.

    Attributes:
        name: the type as the documentation calls it.
        legal: what may be given, as it follows the word "Give".
        parse: text to value; raises ValueError with a reason that can be shown.
    """

    name: str
    legal: str
    parse: Callable[[str], T] = field(repr=False)


def _parse_string(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def _parse_integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("it is not a whole number")
    value = int(text)
    if abs(value) > _LARGEST_LONG:
        raise ValueError("it does not fit in 64 bits")
    return value


def _parse_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("it is not a number") from None
    if not math.isfinite(value):
        raise ValueError("it is not a finite number")
    return value


def _parse_boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("it is neither true nor false")
    return text.lower() == "true"


def _parse_bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.lower())
    if match is None or match[2] not in _BYTES:
        raise ValueError("it is not a size")
    value = int(match[1]) * _BYTES[match[2]]
    if value > _LARGEST_LONG:
        raise ValueError("it does not fit in 64 bits")
    return value


def _parse_duration(text: str) -> float:
    match = _DURATION.fullmatch(text.lower())
    if match is None or (match[2] and match[2] not in _SECONDS):
        raise ValueError("it is not a duration")
    number = float(match[1])
    if match[2]:
        return number * _SECONDS[match[2]]
    if number:
        raise ValueError("it has no unit")
    return 0.0


def _parse_path(text: str) -> Path:
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() != "file":
        raise ValueError(f"{scheme[1]} locations cannot be used here, only local and shared file systems can")
    if scheme is not None:
        if CUT_FROM_URL.search(text):
            raise ValueError("a file URL has no ?, # or control characters; write them as %3F, %23 and so on")
        url = urlsplit(text)
        if url.netloc not in {"", "localhost"}:
            raise ValueError("a file URL has three slashes, or names no other host than localhost")
        text = unquote(url.path)
    if "\0" in text:
        raise ValueError("it holds a zero byte")
    path = Path(text)
    if not path.is_absolute():
        raise ValueError("it is relative, and driver and executors may work in different folders")
    return path


def _parse_import_path(text: str) -> str:
    if SECRET_ARGUMENT.search(text):
        raise ValueError("an argument is named like a secret, and plans show it")
    if not _IMPORT_PATH.fullmatch(text):
        raise ValueError("it names no class or function of a module")
    return text


STRING: Final = Kind("string", "a text that is not empty", _parse_string)
INTEGER: Final = Kind("integer", "a whole number", _parse_integer)
FLOAT: Final = Kind("number", "a number", _parse_float)
BOOLEAN: Final = Kind("boolean", "true or false", _parse_boolean)
BYTES: Final = Kind("size", "a size such as 65536, 64kb, 16mb or 4g (1 kb is 1024 bytes)", _parse_bytes)
DURATION: Final = Kind("duration", "a duration with its unit, such as 500ms, 10s, 5m, 12h or 7d", _parse_duration)
"""Seconds, as a float."""
PATH: Final = Kind("path", "an absolute path or a file: URL", _parse_path)
IMPORT_PATH: Final = Kind(
    "import path", "module:Class or module:function, with ?name=value after it for arguments", _parse_import_path
)
"""What is imported where it is needed."""
SECRET: Final = Kind("secret", "the secret, or env:NAME or file:PATH that hold it", Secret)
"""Resolved where the options are parsed, which is on the driver."""


def is_loopback(host: str) -> bool:
    """Return whether a host of a URL is this machine, by its text alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def choice(enum: type[E]) -> Kind[E]:
    """Return the kind of an option with a closed set of values, in any case."""
    values = [member.value for member in enum]
    legal = " or ".join([", ".join(values[:-1]), values[-1]])

    def parse(text: str) -> E:
        try:
            return enum(text.lower())
        except ValueError:
            raise ValueError(f"it is not one of {', '.join(values)}") from None

    return Kind("choice", legal, parse)


def duration_or(word: str) -> Kind[float | None]:
    """Return the kind of a duration, or of a word that stands for None."""

    def parse(text: str) -> float | None:
        return None if text.lower() == word else _parse_duration(text)

    return Kind("duration", f"{word}, or {DURATION.legal}", parse)


def option_text(name: str, value: str, connector: str) -> str:
    """Return the text of an option without the white space around it.

    Raises:
        OptionError: name or value hold a NUL. The C libraries behind the sources would cut them there in silence.
    """
    if "\0" in name or "\0" in str(value):
        what = f"The option {name.replace(chr(0), '?')[:_SHOWN_CHARACTERS]} holds a NUL character"
        raise OptionError("OPTION_ILLEGAL", what, connector, "Remove the character.")
    return str(value).strip()


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as the texts that Spark makes of them, without those that are None."""
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
