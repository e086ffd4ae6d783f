"""Exactly-once writes: one transaction for each task, with a marker of its batch.

In this order, which is what makes it safe: `init_transactions` fences earlier attempts of the task and ends what they
left open; then the marker is read; a batch that is marked is not written again, but its rows are compared; one that is
not marked, though the driver has noted that all its partitions were written, is refused; otherwise rows and marker are
committed together. However attempts, retries and drivers overlap, each commits through the same transactional id, so
at most one commit for each query, partition and batch succeeds. What this does not cover is in
docs/explanation/kafka-exactly-once.md.

The driver's part of exactly-once writes: whether partitions that are no more have written the batch too.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import DataLossError, OffsetError
from connectors.core.failpoints import failpoint
from connectors.kafka.client.errors import connector_error
from connectors.kafka.client.factory import client_exception, group_denied, open_consumer, sdk
from connectors.kafka.client.group_offsets import CALL_SECONDS, consumer_settings
from connectors.kafka.sink.commit_markers import Digest, Finished, Marker, MarkerNames, Markers, at_once
from connectors.kafka.sink.rows import Columns, Record, records
from connectors.kafka.sink.transactional_producer import TransactionalSink
from connectors.kafka.sink.writer import with_dedup_headers

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.kafka.options.client import ClientSettings
    from connectors.kafka.sink.task import StreamTask

__all__ = ["ExactlyOnce", "Written", "check_layout"]


_MOST_NAMED: Final = 10


def check_layout(how: ExactlyOnce, query: str, batch: int, partitions: int, query_run: str) -> None:
    """Check a batch before Spark logs it: no partition beyond the present ones has written it too, or still can.

    Args:
        how: as the tasks wrote.
        query: the id of the query.
        batch: the number of the batch.
        partitions: how many it had.
        query_run: names the run of the query; empty if that is not known.

    Raises:
        DataLossError: an earlier run of this batch had more partitions, and one of these was written.
    """
    names = how.names(query)
    with Markers(how.client, names) as markers:
        finished = markers.finished()
        if not finished.comes_before(query_run, batch):
            beyond = _once_there(markers, finished, partitions)
            _fence(how.client, names, beyond)
            _check(markers.of(beyond, fenced=True), names, batch, partitions)
        elif partitions != finished.partitions:
            # A change within a run is no repetition either, unless another driver was at work meanwhile.
            listed = [each for each in markers.partitions() if each >= partitions]
            _check(markers.of(listed), names, batch, partitions)
        markers.note(Finished(max(finished.width, partitions), query_run, batch, partitions))


def _once_there(markers: Markers, finished: Finished, partitions: int) -> list[int]:
    """The partitions beyond the present ones that an earlier run may have had, as far as that is known."""
    highest = max(markers.partitions(), default=-1)
    return list(range(partitions, max(finished.width, highest + 1)))


def _fence(client: ClientSettings, names: MarkerNames, beyond: list[int]) -> None:
    """Have tasks of an earlier run fail that go on where their driver is gone: no task of this run does that there."""

    def fence(partition: int) -> None:
        with TransactionalSink(client, names.of(partition)) as sink:
            sink.fence()

    at_once(fence, beyond)


def _check(beyond: dict[int, Marker], names: MarkerNames, batch: int, partitions: int) -> None:
    """Whether partitions beyond the present ones have written a batch, by their markers; all are named at once."""
    # A marker of this batch without rows doubles nothing; one of a later batch says that the checkpoint is too old.
    wrote = {each: marker for each, marker in sorted(beyond.items()) if (marker.batch, marker.rows) > (batch, 0)}
    if wrote:
        groups = [names.of(each) for each in wrote]
        more = f" and {len(groups) - _MOST_NAMED} more" if len(groups) > _MOST_NAMED else ""
        raise DataLossError(
            "KAFKA_LAYOUT_CHANGED",
            f"Batch {batch} has {partitions} partitions now, and an earlier run of it, which had more, wrote "
            f"{sum(marker.rows for marker in wrote.values())} rows of {len(wrote)} partitions beyond these",
            f"groups {', '.join(groups[:_MOST_NAMED])}{more}",
            "These rows are in the topic twice. Keep the number of partitions between a crash and the restart; it can "
            "follow the number of cores, see docs/explanation/kafka-exactly-once.md. To go on as it is, delete these "
            "groups.",
        )


_log = logging.getLogger(__name__)

_MOST_RUNS: Final = 64
"""How many runs of queries a process remembers."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a task has written: how many rows, and whether an earlier attempt had."""

    rows: int
    skipped: bool


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """How the tasks of a stream write; pickles.

    Attributes:
        client: the settings of the producer.
        columns: what is read of the rows.
        prefix: the option ``transactionalIdPrefix``.
        marker_topic: the topic that markers name.
        fail_if_missing: whether a marker that is gone stops the query.
        dedup_headers: the option ``dedupHeaders``.
        run: names this run of a batch.
    """

    client: ClientSettings
    columns: Columns
    prefix: str
    marker_topic: str
    fail_if_missing: bool
    dedup_headers: bool
    run: str

    def names(self, query: str) -> MarkerNames:
        """How the groups of a query are called."""
        return MarkerNames(self.prefix, query, self.marker_topic)

    def write(self, batches: Iterable[pa.RecordBatch], task: StreamTask, query_run: str = "") -> Written:
        """Write the rows of a task, unless an earlier attempt has.

        Args:
            batches: the rows.
            task: which query, batch and partition.
            query_run: names the run of the query; empty if that is not known.

        Raises:
            DataLossError: it has, with other rows.
            OffsetError: the marker does not fit the batch.
            ConnectorError: something could not be written; nothing of it will be seen.
        """
        return _Task(self, task, query_run).write(batches)


class _Runs:
    """In which runs of queries this process has written, and from which batch on.

    Only the first batch of a run can be a repetition, so that a later one need not ask what the driver has noted.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._first: OrderedDict[tuple[MarkerNames, str], int] = OrderedDict()

    def note(self, names: MarkerNames, query_run: str, batch: int) -> None:
        """Note that a batch was written, or was there already."""
        with self._lock:
            self._first.setdefault((names, query_run), batch)
            self._first.move_to_end((names, query_run))
            if len(self._first) > _MOST_RUNS:
                self._first.popitem(last=False)

    def began_before(self, names: MarkerNames, query_run: str, batch: int) -> bool:
        """Whether a run is known to have begun before a batch; false where Spark does not name runs."""
        return bool(query_run) and self._first.get((names, query_run), batch) < batch


_runs: Final = _Runs()


class _Task:
    """One attempt of a task."""

    def __init__(self, how: ExactlyOnce, task: StreamTask, query_run: str) -> None:
        self._how = how
        self._query_run = query_run
        self._task = task
        self._names = how.names(task.query)
        self._id = self._names.of(task.partition)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        with TransactionalSink(self._how.client, self._id) as self._sink:
            consumer = open_consumer(consumer_settings(self._how.client), {"group.id": self._id})
            try:
                return self._write(batches, consumer)
            finally:
                consumer.close()

    def _write(self, batches: Iterable[pa.RecordBatch], consumer: Any) -> Written:
        self._sink.fence()
        failpoint("kafka.fenced")
        marker = self._read_marker(consumer)
        failpoint("kafka.marker_read")
        if marker is not None and marker.batch >= self._task.batch:
            written = self._skip(marker, batches)
        else:
            written = self._commit(batches, self._expect_marker(marker), consumer)
        _runs.note(self._names, self._query_run, self._task.batch)
        return written

    def _read_marker(self, consumer: Any) -> Marker | None:
        where = [sdk().TopicPartition(self._how.marker_topic, 0)]
        (found,) = self._sink.call(lambda: _committed(consumer, where), asks=True)
        if found.error is not None:
            raise connector_error(found.error, f"topic {self._how.marker_topic}")
        marker = Marker.read(found.offset, found.metadata, self._id)
        if marker is None:
            # A group can have offsets of a topic that exists only; without one the commit would fail, after its rows.
            name = self._how.marker_topic
            topics = self._sink.call(lambda: consumer.list_topics(name, timeout=CALL_SECONDS), asks=True).topics
            if (problem := topics[name].error) is not None:
                raise connector_error(problem, f"topic {self._how.marker_topic}")
        return marker

    def _expect_marker(self, marker: Marker | None) -> int:
        """The width so far; fails if a marker should be there and is not."""
        with_own = self._task.partition + 1
        if marker is not None and _runs.began_before(self._names, self._query_run, self._task.batch):
            return max(marker.width, with_own)
        with Markers(self._how.client, self._names) as markers:
            finished = markers.finished()
        self._check_finished(finished, marker)
        if marker is not None:
            return max(marker.width, with_own)
        return with_own if self._task.batch == 0 else self._expect_width(finished)

    def _check_finished(self, finished: Finished, marker: Marker | None) -> None:
        """Fails if the driver has noted that this batch was written: each of its partitions would have a marker."""
        task = self._task
        if finished.batch < task.batch:
            return
        if finished.batch > task.batch:
            raise self._behind(f"the driver has noted that batch {finished.batch} was", self._names.width)
        what = (
            f"Batch {task.batch} was written completely, by {finished.partitions} partitions, and partition "
            f"{task.partition} has no marker of it"
        )
        gone = task.partition < finished.partitions  # each of these had one
        if gone and marker is None and task.batch > 0:
            return  # which `_expect_width` has the error for
        if gone and not self._how.fail_if_missing:
            _log.warning("[KAFKA_LAYOUT_CHANGED] %s; it is written (group %s)", what, self._id)
            return
        raise DataLossError(
            "KAFKA_LAYOUT_CHANGED",
            f"{what}; nothing of it was written now",
            f"group {self._id}",
            "The marker was deleted. If the rows of this partition may come twice, run once with onMissingMarker=write."
            if gone
            else f"Put the number of partitions back to {finished.partitions}, and with it what it follows from, such "
            "as the number of cores. See docs/explanation/kafka-exactly-once.md.",
        )

    def _expect_width(self, finished: Finished) -> int:
        """The width so far, of a partition without any marker; fails if that of an earlier batch should be there."""
        width = finished.width
        if self._task.partition >= width > 0:
            return self._task.partition + 1  # more partitions than ever before
        if finished.comes_before(self._query_run, self._task.batch):
            return width  # the marker expired, since no batch had so many partitions for long
        what = (
            f"Partition {self._task.partition} of batch {self._task.batch} finds no marker of an earlier batch, so it "
            "cannot tell whether this batch was written already"
        )
        if self._how.fail_if_missing:
            raise OffsetError(
                "KAFKA_MARKER_MISSING",
                what,
                f"group {self._id}",
                "Markers expire when a query rests for offsets.retention.minutes (a week), and go with their topic; a "
                "checkpoint that was used without exactly_once has none. If the last batch may come twice, run once "
                "with onMissingMarker=write.",
            )
        _log.warning("[KAFKA_MARKER_MISSING] %s; it is written (group %s)", what, self._id)
        return max(width, self._task.partition + 1)

    def _skip(self, marker: Marker, batches: Iterable[pa.RecordBatch]) -> Written:
        """The batch is there: see that it is the same."""
        if marker.batch > self._task.batch:
            raise self._behind(f"the marker says that batch {marker.batch} was", self._id)
        digest = Digest()
        for batch in batches:
            for record in records(batch, self._how.columns):
                digest.add(record)
        if (digest.rows, digest.text) != (marker.rows, marker.digest):
            raise DataLossError(
                "KAFKA_REPLAY_DIFFERS",
                f"Partition {self._task.partition} of batch {self._task.batch} was written with {marker.rows} rows of "
                f"the digest {marker.digest}, and now has {digest.rows} of {digest.text}",
                f"group {self._id}",
                "A repeated batch must have the same rows in the same partitions: no change of code, options or number "
                "of partitions between a crash and the restart, also not by another number of cores, and no random or "
                "current values. Put it back as it was; if that is not possible: docs/how-to/write-exactly-once.md.",
            )
        return Written(digest.rows, skipped=True)

    def _behind(self, what: str, group: str) -> OffsetError:
        return OffsetError(
            "KAFKA_CHECKPOINT_BEHIND",
            f"Batch {self._task.batch} is about to be written, and {what}",
            f"group {group}",
            "The checkpoint is an older copy, or another driver runs this query. Start with a new checkpoint, or "
            "restore the one that wrote last.",
        )

    def _commit(self, batches: Iterable[pa.RecordBatch], width: int, consumer: Any) -> Written:
        digest = Digest()
        self._sink_rows(batches, digest)
        self._sink.begin()
        self._sink.finish()
        failpoint("kafka.rows_sent")
        marker = Marker(self._task.batch, digest.rows, digest.text, width, self._how.run)
        offset = sdk().TopicPartition(self._how.marker_topic, 0, self._task.batch + 1, marker.metadata())
        self._sink.mark(offset, consumer.consumer_group_metadata())
        failpoint("kafka.marked")
        self._sink.commit()
        failpoint("kafka.committed")
        return Written(digest.rows, skipped=False)

    def _sink_rows(self, batches: Iterable[pa.RecordBatch], digest: Digest) -> None:
        numbers = count()
        for batch in batches:
            if not batch.num_rows:
                continue
            self._sink.begin()
            found: Iterator[Record] = _counted(records(batch, self._how.columns), digest)
            self._sink.send(with_dedup_headers(found, self._task, numbers) if self._how.dedup_headers else found)


def _committed(consumer: Any, where: Any) -> Any:
    """What a group has committed; an error at once if nobody lets us ask."""
    try:
        return consumer.committed(where, timeout=CALL_SECONDS)
    except client_exception():
        if (denied := group_denied(consumer)) is not None:
            raise denied from None
        raise


def _counted(found: Iterable[Record], digest: Digest) -> Iterator[Record]:
    for record in found:
        digest.add(record)
        yield record
