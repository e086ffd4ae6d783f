"""From Spark's progress reports to lag: pure functions and small memories, no I/O.

A source in Python cannot report metrics of its own: Spark shows ``metrics = {}`` for it. It shows offsets, though, and
from those, and from the ledger of a spool, everything here is derived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from connectors.core.datasource import PartitionLag, as_object

__all__ = [
    "LagHistory",
    "Measurement",
    "PartitionLag",
    "SourceLag",
    "SourceMeasurement",
    "SpoolMeasurement",
    "measure",
    "spool_lag",
    "total",
]

SourceLag = Callable[[Any, Any], Mapping[str, tuple[int, int, int | None]] | Mapping[str, PartitionLag] | None]
"""From the end and the latest offset of a source to what lies between, by partition; None if they are not of its kind.

That is (end, latest, time of the first unread record or None) where offsets count records, and a lag where they do not;
the time is in milliseconds since 1970."""

_REMEMBERED: Final = 512


@dataclass(frozen=True, slots=True)
class SpoolMeasurement:
    """A spool at one moment, by its id; see `connectors.spool.SpoolStats` and, for rates, `SpoolRates`.

    Attributes:
        bytes: bytes of rows that are not committed.
        oldest_unread_ms: age of the oldest publish time among segments with rows that are not committed; 0 if none.
        executor_fetchers: where fetchers run that ``fetch_on_executors`` has started.
    """

    spool: str
    sources: tuple[str, ...]
    delivered: int
    duplicates: int
    rows: int
    committed: int
    bytes: int
    oldest_unread_ms: int
    fetched_per_second: float | None = None
    admitted_per_second: float | None = None
    kept_per_second: float | None = None
    committed_per_second: float | None = None
    executor_fetchers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceMeasurement:
    """A source of a query after a batch, with its spool where that is watched.

    Attributes:
        kind: the format, ``spool`` for a format that reads a spool, or ``unknown``.
        records: the lag of all partitions together; None if it is not known of one.
        milliseconds: the largest lag in time.
        metrics: of Kafka, ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest``, as
            texts: what Spark's own source has in its progress.
    """

    kind: str
    rows: int
    records: int | None
    milliseconds: int
    partitions: dict[str, PartitionLag] = field(default_factory=dict)
    spool: SpoolMeasurement | None = None
    metrics: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A query after a batch; one JSON line.

    Attributes:
        time_ms: when, in milliseconds since 1970.
        query: id of the query, the same over restarts; that of ``run`` is not.
        name: empty if it has none.
        rows: input rows.
        rows_per_second: input rows a second while the batch ran.
        batch: -1 before the first one.
    """

    time_ms: int
    query: str
    run: str
    name: str
    batch: int
    rows: int
    batch_ms: int
    rows_per_second: float
    sources: tuple[SourceMeasurement, ...]

    @classmethod
    def started(cls, time_ms: int, query: str, run: str, name: str) -> Measurement:
        """Return a query that has had no batch yet."""
        return cls(time_ms, query, run, name, -1, 0, 0, 0.0, ())

    def at(self, now_ms: int, spools: Mapping[str, SpoolMeasurement]) -> Measurement:
        """Return the last report with lags as old as they are now, and with spools as they were last seen, by id.

        What was unread at the report is so until the next one, so its age grows with the clock.
        """
        sources = (_seen(source, spools) for source in self.sources)
        return replace(self, sources=tuple(_aged(source, now_ms - self.time_ms) for source in sources))

    def idle(self, time_ms: int) -> Measurement:
        """Return the query as it is when Spark reports at `time_ms` that it waits for data, or has ended.

        A spool counts what Spark has not committed, and Spark commits the last batch only with the next one: where no
        record is unread, that is no lag.
        """
        sources = (_idle(_aged(source, time_ms - self.time_ms)) for source in self.sources)
        return replace(self, time_ms=time_ms, rows=0, rows_per_second=0.0, sources=tuple(sources))

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as a JSON object."""
        return {"v": 1, "event": "progress", **asdict(self)}

    def line(self) -> str:
        """Return the measurement as one line for a log."""
        parts = [f"query {self.name or self.query} batch {self.batch}: {self.rows:,} rows in {self.batch_ms:,} ms"]
        for number, source in enumerate(self.sources):
            records = "" if source.records is None else f"{source.records:,} records and "
            text = f"source {number} ({source.kind}) {records}{source.milliseconds:,} ms behind"
            if (spool := source.spool) is not None:
                text += (
                    f", spool {spool.bytes:,} bytes unread, oldest {spool.oldest_unread_ms:,} ms, "
                    f"{spool.duplicates:,} duplicates dropped"
                )
                if spool.executor_fetchers:
                    text += f", fetchers on executors: {', '.join(spool.executor_fetchers)}"
            parts.append(text)
        return "; ".join(parts)


def _aged(source: SourceMeasurement, milliseconds: int) -> SourceMeasurement:
    if not source.records or milliseconds <= 0:
        return source
    partitions = {
        name: replace(lag, milliseconds=lag.milliseconds + milliseconds) if lag.records else lag
        for name, lag in source.partitions.items()
    }
    return replace(source, partitions=partitions, milliseconds=source.milliseconds + milliseconds)


def _seen(source: SourceMeasurement, spools: Mapping[str, SpoolMeasurement]) -> SourceMeasurement:
    if source.spool is None:
        return source
    return replace(source, spool=spools.get(source.spool.spool, source.spool))


def _idle(source: SourceMeasurement) -> SourceMeasurement:
    if source.records != 0:
        return replace(source, rows=0)
    spool = None if source.spool is None else replace(source.spool, oldest_unread_ms=0)
    return replace(source, rows=0, milliseconds=0, spool=spool)


class LagHistory:
    """Remembers when a partition was seen to hold an offset, and so how old the first unread record is at least."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[int, int]]] = {}

    def lag(self, partition: str, end: int, latest: int, now_ms: int) -> PartitionLag:
        """Note the next offset that the query will read and the one after the newest, and return the lag."""
        seen = self._seen.setdefault(partition, deque())
        while seen and seen[0][1] <= end:
            seen.popleft()
        if not seen or seen[-1][1] < latest:
            if len(seen) >= _REMEMBERED:
                del seen[len(seen) // 2]
            seen.append((now_ms, latest))
        if latest <= end:
            return PartitionLag(0, 0)
        return PartitionLag(latest - end, max(0, now_ms - seen[0][0]))


def spool_lag(end: Any, latest: Any) -> Mapping[str, tuple[int, int, None]] | None:
    """Return the positions of a source that reads a spool, whose offsets name it (docs/explanation/spool.md)."""
    reached, newest = as_object(end), as_object(latest)
    spool, position, ahead = reached.get("spool"), reached.get("position"), newest.get("position")
    # Other sources may use the same names.
    if not isinstance(spool, str) or not isinstance(position, int):
        return None
    return {spool: (position, ahead if newest.get("spool") == spool and isinstance(ahead, int) else position, None)}


def measure(
    progress: Mapping[str, Any],
    now_ms: int,
    kinds: Mapping[str, SourceLag],
    histories: dict[tuple[str, int], LagHistory],
    spools: Mapping[str, SpoolMeasurement],
) -> Measurement:
    """Return what the JSON object of a ``StreamingQueryProgress`` says.

    ``histories`` are by run and number of a source, and get what is new; ``spools`` are by id.
    """
    run = str(progress["runId"])
    sources = []
    for number, source in enumerate(progress["sources"]):
        history = histories.setdefault((run, number), LagHistory())
        sources.append(_source(source, now_ms, kinds, history, spools))
    durations = progress.get("durationMs") or {}
    batch_ms = int(durations.get("triggerExecution", 0))
    rows = sum(source.rows for source in sources)
    return Measurement(
        time_ms=now_ms,
        query=str(progress["id"]),
        run=run,
        name=progress.get("name") or "",
        batch=int(progress["batchId"]),
        rows=rows,
        batch_ms=batch_ms,
        rows_per_second=rows * 1000 / batch_ms if batch_ms else 0.0,
        sources=tuple(sources),
    )


def _source(
    source: Mapping[str, Any],
    now_ms: int,
    kinds: Mapping[str, SourceLag],
    history: LagHistory,
    spools: Mapping[str, SpoolMeasurement],
) -> SourceMeasurement:
    rows = int(source.get("numInputRows") or 0)
    end, latest = source.get("endOffset"), source.get("latestOffset")
    read_by = ((kind, read(end, latest)) for kind, read in kinds.items())
    kind, lags = next(((kind, lags) for kind, lags in read_by if lags is not None), ("unknown", {}))
    spool = next((spools[name] for name in lags if kind == "spool" and name in spools), None)
    partitions = {
        name: lag if isinstance(lag, PartitionLag) else _partition(history, name, lag, now_ms, spool)
        for name, lag in lags.items()
    }
    return SourceMeasurement(
        kind,
        rows,
        total([partition.records for partition in partitions.values()]),
        max((partition.milliseconds for partition in partitions.values()), default=0),
        partitions,
        spool,
        _kafka_metrics([partition.records or 0 for partition in partitions.values()]) if kind == "kafka_py" else {},
    )


def _partition(
    history: LagHistory,
    name: str,
    positions: tuple[int, int, int | None],
    now_ms: int,
    spool: SpoolMeasurement | None,
) -> PartitionLag:
    """Return the lag by the oldest sign of an unread record: its own time, that of its message, or when it was seen."""
    end, latest, time_ms = positions
    lag = history.lag(name, end, latest, now_ms)
    if not lag.records:
        return lag
    by_record = 0 if time_ms is None else now_ms - time_ms
    by_message = 0 if spool is None else spool.oldest_unread_ms
    return replace(lag, milliseconds=max(lag.milliseconds, by_record, by_message))


def _kafka_metrics(behind: Sequence[int]) -> dict[str, str]:
    average = sum(behind) / len(behind)  # an offset of Kafka has a partition
    values = {"min": str(min(behind)), "max": str(max(behind)), "avg": str(average)}
    return {f"{name}OffsetsBehindLatest": value for name, value in values.items()}


def total(records: Sequence[int | None]) -> int | None:
    """Return the sum of lags; None if one is not counted."""
    counted = [number for number in records if number is not None]
    return sum(counted) if len(counted) == len(records) else None
