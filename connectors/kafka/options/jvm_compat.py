"""Values that the JVM client takes and librdkafka does not: the nearest one that it does take stands for them.

One setting at a time: what librdkafka refuses for another setting's sake stays refused. Ranges of librdkafka are those
of its CONFIGURATION.md, of the JVM client those of ``ProducerConfig`` and ``ConsumerConfig``. What the JVM client
refuses too is left as it is, for librdkafka to refuse by name.
"""

from __future__ import annotations

import re
from typing import Final

from connectors.kafka.offsets import illegal

__all__ = ["broker_addresses", "is_number", "nearest_value", "pem_lines", "whole_number"]

_MOST: Final = (1 << 31) - 1
_RANGES: Final[dict[str, tuple[int, int, int]]] = {
    "batch.size": (0, 1, _MOST),
    "connections.max.idle.ms": (-(1 << 63), 0, _MOST),
    "fetch.max.bytes": (0, 1_000_000, 2_147_483_135),
    "fetch.message.max.bytes": (0, 1, 1_000_000_000),
    "fetch.min.bytes": (0, 1, 100_000_000),
    "fetch.wait.max.ms": (0, 0, 300_000),
    "linger.ms": (0, 0, 900_000),
    "message.max.bytes": (0, 1000, 1_000_000_000),
    "metadata.max.age.ms": (0, 1, 86_400_000),
    "reconnect.backoff.max.ms": (0, 0, 3_600_000),
    "reconnect.backoff.ms": (0, 0, 3_600_000),
    "request.timeout.ms": (0, 1, 900_000),
    "retry.backoff.max.ms": (0, 1, 300_000),
    "retry.backoff.ms": (0, 1, 300_000),
}
"""By the name in librdkafka: the least that the JVM client takes, and the least and the most that librdkafka does.

That of ``fetch.max.bytes`` is the default of its ``message.max.bytes``, which it may not be below.
"""
_FRACTIONS: Final = frozenset({"linger.ms", "queue.buffering.max.ms"})
_COUNTS: Final = frozenset(
    {"max.in.flight", "max.in.flight.requests.per.connection", "message.send.max.retries", "retries"}
)
_UNITS: Final = (".bytes", ".kbytes", ".messages", ".ms", ".size")
_ADDRESS: Final = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]*?)\]?(?::([0-9]+))?")
"""Host and port as ``org.apache.kafka.common.utils.Utils`` finds them; to librdkafka a port may be missing."""
_HIGHEST_PORT: Final = 65535
_SHORT: Final = 200


_PEM: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s*([A-Za-z0-9+/=\s]+?)\s*-----END \1-----")
_PEM_LETTERS: Final = 64


def pem_lines(text: str) -> str:
    """Certificates or a key in the lines of PEM (RFC 7468): the JVM client takes other spaces for ends of lines."""

    def lines(found: re.Match[str]) -> str:
        letters = "".join(found[2].split())
        parts = [letters[first : first + _PEM_LETTERS] for first in range(0, len(letters), _PEM_LETTERS)]
        return "\n".join([f"-----BEGIN {found[1]}-----", *parts, f"-----END {found[1]}-----\n"])

    return _PEM.sub(lines, text)


def is_number(name: str) -> bool:
    """Whether a setting of librdkafka is a whole number: of others it reads the digits at the beginning, if any."""
    return name in _COUNTS or (name.endswith(_UNITS) and name not in _FRACTIONS)


def broker_addresses(text: str) -> str:
    """The addresses of ``kafka.bootstrap.servers`` as librdkafka takes them: the JVM client passes over a protocol.

    Raises:
        OptionError: there is none, or one has a form that librdkafka would look for elsewhere or try without end.
    """
    found = [_address(each.strip()) for each in text.split(",") if each.strip()]
    if not found:
        raise illegal("The option kafka.bootstrap.servers names no server", "Give host:port of a broker.")
    return ",".join(found)


def _address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    host, port = match.groups() if match else ("", None)
    if not host or host.count(":") == 1 or not 0 < int(port or _HIGHEST_PORT) <= _HIGHEST_PORT:
        shown = "an address" if "@" in text else repr(text[:_SHORT])
        raise illegal(
            f"The option kafka.bootstrap.servers cannot hold {shown}",
            "Give host:port of each broker, with commas between them.",
        )
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def whole_number(text: str) -> int | None:
    """A setting as a whole number; None for anything else."""
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text) else None


def nearest_value(name: str, value: str) -> str:
    """The value of a setting as librdkafka takes it.

    Args:
        name: of librdkafka.
        value: as it was given.
    """
    number = whole_number(value)
    if number is None:
        return value
    if name not in _RANGES:
        # Of digits behind a 0, librdkafka reads the octal number.
        return str(number) if is_number(name) else value
    allowed, least, most = _RANGES[name]
    return str(number) if number < allowed else str(min(max(number, least), most))
