"""What to do when offsets of a partition are gone: fail or go on after them, as ``failOnDataLoss`` says."""

from __future__ import annotations

import logging
import time
from typing import Final

from connectors.core.errors import DataLossError, ServiceUnavailableError, SourceGoneError
from connectors.kafka.offsets import EARLIEST, LATEST, TopicPartition
from connectors.kafka.source.consumer_pool import ReadSettings, RecordSource
from connectors.kafka.source.splits import OffsetRange

__all__ = ["OffsetGapPolicy", "report_data_loss", "watermarks"]

_log = logging.getLogger(__name__)
_ACTION: Final = "If you do not want your query to fail on such cases, set the source option failOnDataLoss to false."
_WHAT: Final = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged out by "
    "Kafka or the topic may have been deleted before all the data in the topic was processed"
)
_RETRY_SECONDS: Final = 0.1
_GONE_SECONDS: Final = 1.0
"""A new leader may deny for so long that the partition exists; counted from its first such response."""
_WATERMARK_SECONDS: Final = 10.0
_MOST_RETRIES: Final = 3
"""How often in a range an offset that exists is fetched again after the client reported it as missing."""


def report_data_loss(kind: str, reason: str, where: str, *, fail: bool) -> None:
    """Raise a `DataLossError` with the texts of Spark's own source; unless ``fail`` is set, log it as a warning.

    The code of the error is ``KAFKA_DATA_LOSS.KIND``.
    """
    code = f"KAFKA_DATA_LOSS.{kind}"
    if fail:
        raise DataLossError(code, f"{_WHAT}. Reason: {reason}", where, _ACTION)
    _log.warning("[%s] %s. Reason: %s (%s)", code, _WHAT, reason, where)


def watermarks(source: RecordSource, partition: TopicPartition, seconds: float) -> tuple[int, int]:
    """Return the earliest offset of a partition, and the latest under the isolation level.

    ``rd_kafka_query_watermark_offsets`` asks for both, and when one request fails it now and then reports success with
    the result of the other twice, so that the partition looks empty. So each is asked for by itself.

    Raises:
        ConnectorError: the requests failed for ``seconds``, or a second longer with `SourceGoneError`.
    """
    started = time.monotonic()
    low, high = (_offset_of(source, partition, sentinel, started, seconds) for sentinel in (EARLIEST, LATEST))
    return low, high


def _offset_of(source: RecordSource, partition: TopicPartition, sentinel: int, started: float, seconds: float) -> int:
    gone_since: float | None = None
    while True:
        left = started + seconds - time.monotonic()
        try:
            return source.offset_of(partition, sentinel, max(_RETRY_SECONDS, left))
        except SourceGoneError:
            now = time.monotonic()
            gone_since = now if gone_since is None else gone_since
            if now - gone_since > _GONE_SECONDS:
                raise
        except ServiceUnavailableError:
            gone_since = None  # another leader may be elected
            if time.monotonic() - started > seconds:
                raise
        time.sleep(_RETRY_SECONDS)


class OffsetGapPolicy:
    """Decides where a read continues when the next offset of its range is gone or does not arrive.

    Both methods raise a `DataLossError` for lost records if ``failOnDataLoss`` is set.
    """

    def __init__(self, source: RecordSource, part: OffsetRange, settings: ReadSettings) -> None:
        self._source = source
        self._part = part
        self._settings = settings
        self._retries = 0

    def resume_offset(self, position: int, end: int) -> int:
        """Return the offset to fetch after ``position`` was reported as missing; ``end`` if there is none before it.

        ``position`` itself if it exists: the report may be about a topic that was recreated since, or come from a
        broker that no longer leads the partition.
        """
        available = self._watermarks()
        low, high = available or (0, 0)
        if low <= position < high and self._retries < _MOST_RETRIES:
            self._retries += 1
            return position
        partition = self._part.topic_partition
        if available is None:
            self._report_loss(f"{partition} does not exist any more")
        else:
            self._report_loss(
                f"Cannot fetch offsets [{position}, {end}) of {partition}; the earliest available offset is {low} and "
                f"the latest {high}"
            )
        return max(low, position) if low < end and position < high else end

    def give_up(self, position: int, end: int) -> int:
        """Return ``end`` if the records up to it are lost, after nothing arrived for the poll timeout.

        Raises:
            ServiceUnavailableError: the partition holds the records, or nobody knows.
        """
        explain = self._source.last_word.explain
        try:
            low, high = self._watermarks() or (0, 0)
        except ServiceUnavailableError as error:
            raise explain(error) from None
        if high < end:  # the topic was recreated, or a leader lost records, since the range was planned
            self._report_loss(f"{self._part.topic_partition} ends at {high}, and was read up to {position}")
            return end
        raise explain(
            ServiceUnavailableError(
                "KAFKA_POLL_TIMEOUT",
                f"Nothing came for {self._settings.poll_timeout:g} s at offset {position}; the partition holds "
                f"{low} to {high}",
                str(self._part),
                "Check the brokers, or raise kafkaConsumer.pollTimeoutMs.",
            )
        )

    def _watermarks(self) -> tuple[int, int] | None:
        """Return None if the partition does not exist."""
        try:
            return watermarks(self._source, self._part.topic_partition, _WATERMARK_SECONDS)
        except SourceGoneError:
            return None

    def _report_loss(self, reason: str) -> None:
        fail = self._settings.fail_on_data_loss
        report_data_loss("COULD_NOT_READ_OFFSET_RANGE", reason, str(self._part), fail=fail)
