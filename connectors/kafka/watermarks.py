"""The first and the last offset of a partition, for a task: each is asked for by itself, and again while it may be had.

librdkafka can be asked for both at once (``rd_kafka_query_watermark_offsets``). It then asks two questions, and when
one answer is an error it now and then reports success with the other answer twice: a partition that looks empty.
"""

from __future__ import annotations

import time
from typing import Final

from connectors.core.errors import ServiceUnavailableError, SourceGoneError
from connectors.kafka.fetched import RecordSource
from connectors.kafka.offsets import EARLIEST, LATEST, TopicPartition

__all__ = ["watermarks"]

_PAUSE_SECONDS: Final = 0.1
_GONE_SECONDS: Final = 1.0
"""A leader that has just come to a partition may say for so long, from its first such answer, that there is none.

However late that is: who believes a single answer may take records for lost that are there.
"""


def watermarks(source: RecordSource, where: TopicPartition, seconds: float) -> tuple[int, int]:
    """The earliest offset of a partition, and the latest under the isolation.

    Args:
        source: asks Kafka.
        where: the partition.
        seconds: how long answers are waited for; a second longer, where the last ones were that there is no partition.

    Raises:
        SourceGoneError: the partition is not there.
        ConnectorError: no answer came, or none will.
    """
    started = time.monotonic()
    return _offset_of(source, where, EARLIEST, started, seconds), _offset_of(source, where, LATEST, started, seconds)


def _offset_of(source: RecordSource, where: TopicPartition, word: int, started: float, seconds: float) -> int:
    gone_since: float | None = None
    while True:
        passed = time.monotonic() - started
        try:
            return source.offset_of(where, word, max(_PAUSE_SECONDS, seconds - passed))
        except SourceGoneError:
            now = time.monotonic()
            gone_since = now if gone_since is None else gone_since
            if now - gone_since > _GONE_SECONDS:
                raise
        except ServiceUnavailableError:
            gone_since = None  # there is another leader soon
            if time.monotonic() - started > seconds:
                raise
        time.sleep(_PAUSE_SECONDS)
