"""Exactly-once writes: one transaction for each task, with a marker of its batch.

What makes it safe is the order. `init_transactions` fences earlier attempts of the task and ends their transactions;
then the marker is read. A batch that is marked is not written again, but its rows are compared; one that is not marked,
though the driver noted that all its partitions were written, is refused; otherwise rows and marker are committed
together. All attempts commit through one transactional id, so at most one commit for each query, partition and batch
succeeds. The driver then checks that no earlier run of the batch had more partitions.
docs/explanation/kafka-exactly-once.md says what this does not cover.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from connectors.core.datasource import CommitMessage, StreamTask, current_partition
from connectors.core.errors import DataLossError, OffsetError
from connectors.core.processes.failpoints import failpoint
from connectors.core.processes.pool import Cache
from connectors.kafka.client.errors import connector_error, is_mock, no_transactions
from connectors.kafka.client.factory import client_exception, group_denied, open_consumer, sdk
from connectors.kafka.client.group_offsets import CALL_SECONDS, consumer_settings, metadata_of
from connectors.kafka.options.sink import KafkaWriteOptions, MissingMarker
from connectors.kafka.schema import Columns
from connectors.kafka.sink.commit_markers import Digest, Finished, Marker, Markers, for_each
from connectors.kafka.sink.rows import records, time_range
from connectors.kafka.sink.writer import TransactionalSink, with_dedup_headers

_log = logging.getLogger(__name__)
_MOST_NAMED: Final = 10
_first_batches: Final = Cache(64)
"""The first batch of a run of a query that this process wrote. Only the first of all can be a replay, so the tasks of a
later one need not ask what the driver noted."""


def query_run() -> str:
    """Return the run of the query, from its start to its end; empty where Spark does not name it.

    The jobs of a query are a group of that name: ``setJobGroup`` of Spark's StreamExecution.
    """
    context = TaskContext.get()
    run = context.getLocalProperty("spark.jobGroup.id") if context is not None else None
    return str(run or "")


def finish_batch(settings: ExactlyOnce, query: str, batch: int, partitions: int, query_run: str) -> None:
    """Fence the partitions beyond a batch's present number, check that none wrote it, and note it as finished.

    Called before Spark logs the batch. Raises a `DataLossError` if such a partition wrote rows of it.
    """
    markers = settings.markers(query)

    def fence(partition: int) -> None:
        with TransactionalSink(settings.options.client, markers.group(partition)) as sink:
            sink.fence()

    finished = markers.finished()
    if not finished.comes_before(query_run, batch):
        # All partitions that an earlier run may have had. Its tasks may outlive its driver: no task of this run
        # fences them there.
        highest = max(markers.partitions(), default=-1)
        beyond = list(range(partitions, max(finished.high_water, highest + 1)))
        for_each(fence, beyond)
        _check_beyond(markers.of(beyond, fenced=True), markers, batch, partitions)
    elif partitions != finished.partitions:
        # A change within a run is no replay either, unless another driver was at work meanwhile.
        beyond = [partition for partition in markers.partitions() if partition >= partitions]
        _check_beyond(markers.of(beyond), markers, batch, partitions)
    markers.note(Finished(max(finished.high_water, partitions), query_run, batch, partitions))


def _check_beyond(beyond: dict[int, Marker], markers: Markers, batch: int, partitions: int) -> None:
    # A marker of this batch without rows doubles nothing; one of a later batch means that the checkpoint is too old.
    wrote = {number: marker for number, marker in sorted(beyond.items()) if (marker.batch, marker.rows) > (batch, 0)}
    if wrote:
        groups = [markers.group(partition) for partition in wrote]
        more = f" and {len(groups) - _MOST_NAMED} more" if len(groups) > _MOST_NAMED else ""
        raise DataLossError(
            "KAFKA_LAYOUT_CHANGED",
            f"Batch {batch} now has {partitions} partitions. An earlier run had more, and wrote "
            f"{sum(marker.rows for marker in wrote.values())} rows from {len(wrote)} partitions beyond these, "
            "which are now in the topic twice",
            f"groups {', '.join(groups[:_MOST_NAMED])}{more}",
        )


@dataclass
class KafkaCommitMessage(CommitMessage):
    """What a task of an exactly-once write reports to the driver."""

    query: str
    skipped: bool
    query_run: str


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """How the tasks of a stream write a batch; ``attempt`` is a name that each plan of it has of its own. Pickles."""

    options: KafkaWriteOptions
    columns: Columns
    attempt: str

    @property
    def marker_topic(self) -> str:
        return self.options.marker_topic or self.options.topic or ""

    def markers(self, query: str) -> Markers:
        return Markers(self.options.client, self.options.transactional_id_prefix, query, self.marker_topic)

    def batch_task(self) -> StreamTask:
        """Return the task of a batch write that runs now, by the name and number that its options give."""
        return StreamTask(self.options.txn_app_id or "", self.options.txn_version or 0, current_partition())

    def write(self, batches: Iterable[pa.RecordBatch], task: StreamTask, query_run: str) -> KafkaCommitMessage:
        """Write the rows of a task, unless an earlier attempt has; after an error nothing of it will be seen."""
        transactional_id = self.markers(task.query).group(task.partition)
        with TransactionalSink(self.options.client, transactional_id) as transaction:
            consumer = open_consumer(consumer_settings(self.options.client), {"group.id": transactional_id})
            try:
                return _TaskWrite(self, task, query_run, transaction, consumer).write(batches)
            finally:
                consumer.close()


class _TaskWrite:
    def __init__(
        self, settings: ExactlyOnce, task: StreamTask, query_run: str, transaction: TransactionalSink, consumer: Any
    ) -> None:
        self._settings = settings
        self._task = task
        self._query_run = query_run
        self._transaction = transaction
        self._consumer = consumer
        self._writes_if_missing = settings.options.missing_marker is MissingMarker.WRITE
        self._markers = settings.markers(task.query)
        self._id = self._markers.group(task.partition)
        self._first_batch = _first_batches.get((self._markers.stem, query_run), lambda: task.batch)

    def write(self, batches: Iterable[pa.RecordBatch]) -> KafkaCommitMessage:
        self._transaction.fence()
        failpoint("kafka.fenced")
        marker = self._read_marker()
        failpoint("kafka.marker_read")
        if marker is not None and marker.batch >= self._task.batch:
            rows, skipped = self._skip(marker, batches), True
        else:
            rows, skipped = self._commit(batches, self._check_marker(marker)), False
        return KafkaCommitMessage(rows, self._task.query, skipped, self._query_run)

    def _read_marker(self) -> Marker | None:
        topic = self._settings.marker_topic
        (response,) = self._transaction.call(lambda: _committed(self._consumer, topic), read_only=True)
        if response.error is not None:
            raise connector_error(response.error, f"topic {topic}")
        marker = Marker.read(response.offset, metadata_of(response), self._id)
        if marker is None:
            # Without the topic, the commit of the group's offset would fail, after all rows were sent.
            listed = self._transaction.call(
                lambda: self._consumer.list_topics(topic, timeout=CALL_SECONDS), read_only=True
            )
            if (problem := listed.topics[topic].error) is not None:
                raise connector_error(problem, f"topic {topic}")
            if is_mock(str(listed.cluster_id)):
                raise no_transactions(f"cluster {listed.cluster_id}")
        return marker

    def _check_marker(self, marker: Marker | None) -> int:
        """Return the high-water mark so far; raise if a marker should exist and does not."""
        task, least = self._task, self._task.partition + 1
        if marker is not None and self._query_run and self._first_batch < task.batch:
            return max(marker.high_water, least)
        finished = self._markers.finished()
        self._check_finished(finished, marker)
        if marker is not None:
            return max(marker.high_water, least)
        return least if task.batch == 0 else self._check_missing(finished)

    def _check_finished(self, finished: Finished, marker: Marker | None) -> None:
        """Raise if the driver noted that this batch was written: each of its partitions would have a marker."""
        task = self._task
        if finished.batch < task.batch:
            return
        if finished.batch > task.batch:
            raise self._behind(f"the driver noted that batch {finished.batch} was", self._markers.note_group)
        what = (
            f"Batch {task.batch} was written completely, by {finished.partitions} partitions, but partition "
            f"{task.partition} has no marker for it"
        )
        deleted = task.partition < finished.partitions
        if deleted and marker is None and task.batch > 0:
            return  # `_check_missing` has the error for it
        if deleted and self._writes_if_missing:
            _log.warning(
                "[KAFKA_LAYOUT_CHANGED] %s. The batch is written, because onMissingMarker=write (group %s).",
                what,
                self._id,
            )
            return
        cause = "the marker was deleted" if deleted else "the earlier run had fewer partitions"
        raise DataLossError("KAFKA_LAYOUT_CHANGED", f"{what}: {cause}. Nothing was written now", f"group {self._id}")

    def _check_missing(self, finished: Finished) -> int:
        """Return the high-water mark for a partition without a marker; raise if an earlier batch must have left one."""
        high_water = finished.high_water
        if self._task.partition >= high_water > 0:
            return self._task.partition + 1  # more partitions than ever before
        if self._settings.options.txn_version is not None and finished == Finished(0):
            return self._task.partition + 1  # batch writes begin at any number
        if finished.comes_before(self._query_run, self._task.batch):
            return high_water  # the marker expired, since no batch had that many partitions for long
        what = (
            f"Partition {self._task.partition} of batch {self._task.batch} has no marker of an earlier batch, so the "
            "sink cannot tell whether this batch was already written"
        )
        if not self._writes_if_missing:
            raise OffsetError("KAFKA_MARKER_MISSING", what, f"group {self._id}")
        _log.warning(
            "[KAFKA_MARKER_MISSING] %s. The batch is written, because onMissingMarker=write (group %s).", what, self._id
        )
        return max(high_water, self._task.partition + 1)

    def _skip(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> int:
        """Compare the rows of a batch that was written before; return their number."""
        task = self._task
        if marker.batch > task.batch:
            raise self._behind(f"the marker says that batch {marker.batch} was", self._id)
        digest = Digest()
        for batch in batches:
            for record in records(batch, self._settings.columns):
                digest.add(record)
        if (digest.rows, digest.text) != (marker.rows, marker.digest):
            raise DataLossError(
                "KAFKA_REPLAY_DIFFERS",
                f"Partition {task.partition} of batch {task.batch} was written with {marker.rows} rows (digest "
                f"{marker.digest}), but now has {digest.rows} rows (digest {digest.text})",
                f"group {self._id}",
            )
        return digest.rows

    def _behind(self, what: str, group: str) -> OffsetError:
        what = f"Batch {self._task.batch} is to be written, but {what}"
        return OffsetError("KAFKA_CHECKPOINT_BEHIND", what, f"group {group}")

    def _commit(self, batches: Iterable[pa.RecordBatch], high_water: int) -> int:
        settings, task, transaction, digest = self._settings, self._task, self._transaction, Digest()
        numbers, dedup_headers = count(), settings.options.dedup_headers
        for batch in batches:
            if batch.num_rows:
                transaction.begin()
                rows = digest.counted(records(batch, settings.columns))
                rows = with_dedup_headers(rows, task, numbers) if dedup_headers else rows
                transaction.sink.send(rows, time_range(batch, settings.columns))
        transaction.begin()
        transaction.sink.finish()
        failpoint("kafka.rows_sent")
        marker = Marker(task.batch, digest.rows, digest.text, high_water, settings.attempt)
        offset = sdk().TopicPartition(settings.marker_topic, 0, task.batch + 1, marker.metadata())
        transaction.add_offset(offset, self._consumer.consumer_group_metadata())
        failpoint("kafka.marked")
        transaction.commit()
        failpoint("kafka.committed")
        return digest.rows


def _committed(consumer: Any, topic: str) -> Any:
    """Return the offset that the consumer's group committed; raise at once where the client may not ask."""
    try:
        return consumer.committed([sdk().TopicPartition(topic, 0)], timeout=CALL_SECONDS)
    except client_exception():
        if (denied := group_denied(consumer)) is not None:
            raise denied from None
        raise
