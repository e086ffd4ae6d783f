"""How fast rows go into the client: so that it is never without work, and never has more than it can send.

An idempotent producer of librdkafka has at most five requests under way to a partition. While more rows wait there for
longer than ``linger.ms``, its thread looks for work without a pause (``rd_kafka_toppar_producer_serve``), which was
measured to take as much of the processor as all else that it does; and what waits for long has left the processor's
caches when its turn comes. So no more is handed to it than a few batches for each partition, and batches wait until
they are full: for up to 200 ms, or until the task ends, which sends all that is there. Brokers that are slow take
longer than 50 ms for what is under way: with that linger the thread looked for work 0.5 to 1.4 million times in 6 s of
writing, with 200 ms 0.2 million times (calls of poll() by the rows of 1 KB with keys of bench/kafka_write.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connectors.kafka.options.jvm_compat import LINGER_SETTINGS, TIMEOUT_SETTINGS

__all__ = ["Pace", "pace_of"]


_LINGER_MS: Final = 200.0
_BATCHES: Final = 3
_LEAST_BYTES: Final = 4 << 20
# The defaults of librdkafka.
_BATCH_BYTES: Final = 1_000_000
_QUEUE_KILOBYTES: Final = 1_048_576
_QUEUE_RECORDS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How much may be under way.

    Attributes:
        linger_ms: so many milliseconds rows wait for a batch to be full; no fewer than 200, which no task waits for.
        batch_bytes: a full batch.
        queue_bytes: what the client's queue takes.
        queue_records: how many records it takes.
    """

    linger_ms: float
    batch_bytes: int
    queue_bytes: int
    queue_records: int

    def room(self, partitions: int, row_bytes: int) -> int:
        """How many records may be under way.

        Args:
            partitions: of the topic; 0 if that is not known.
            row_bytes: of a record.
        """
        wanted = max(_LEAST_BYTES, partitions * _BATCHES * self.batch_bytes)
        # Half of the queue at most: calls wait in silence for a place in a full one.
        return max(1, min(wanted // row_bytes, self.queue_bytes // 2 // row_bytes, self.queue_records // 2))


def pace_of(settings: Mapping[str, str]) -> Pace:
    """The pace that goes with some settings of a producer."""
    given = max(_number(settings, name, 0) for name in LINGER_SETTINGS)
    shortest = min((each for name in TIMEOUT_SETTINGS if (each := _number(settings, name, 0)) > 0), default=math.inf)
    # The client refuses to wait for longer than a record may take. What it refuses by itself stays so.
    own = _LINGER_MS if shortest > _LINGER_MS else shortest / 2
    return Pace(
        linger_ms=max(given, own),
        batch_bytes=int(_number(settings, "batch.size", _BATCH_BYTES)),
        queue_bytes=int(_number(settings, "queue.buffering.max.kbytes", _QUEUE_KILOBYTES)) * 1024,
        queue_records=int(_number(settings, "queue.buffering.max.messages", _QUEUE_RECORDS)),
    )


def _number(settings: Mapping[str, str], name: str, default: float) -> float:
    """A setting as a number; the default for one that is missing, or that only the client can judge."""
    try:
        return float(settings.get(name, default))
    except ValueError:
        return default
