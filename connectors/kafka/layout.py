"""The driver's part of exactly-once writes: whether partitions that are no more have written the batch too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connectors.core.errors import DataLossError
from connectors.kafka.markers import Finished, Marker, MarkerNames, Markers, at_once
from connectors.kafka.transactional import TransactionalSink

if TYPE_CHECKING:
    from connectors.kafka.settings import ClientSettings
    from connectors.kafka.transactions import ExactlyOnce

__all__ = ["check_layout"]

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
