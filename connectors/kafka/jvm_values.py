"""Values that the JVM client takes and librdkafka does not: the nearest one that it does take stands for them.

One setting at a time: what librdkafka refuses for another setting's sake stays refused. Ranges of librdkafka are those
of its CONFIGURATION.md, of the JVM client those of ``ProducerConfig`` and ``ConsumerConfig``. What the JVM client
refuses too is left as it is, for librdkafka to refuse by name.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["nearest_value", "whole_number"]

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


def whole_number(text: str) -> int | None:
    """A setting as a whole number; None for anything else, which librdkafka refuses by name."""
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text) else None


def nearest_value(name: str, value: str) -> str:
    """The value of a setting as librdkafka takes it.

    Args:
        name: of librdkafka.
        value: as it was given.
    """
    number = whole_number(value)
    if name not in _RANGES or number is None:
        return value
    allowed, least, most = _RANGES[name]
    return value if number < allowed or least <= number <= most else str(min(max(number, least), most))
