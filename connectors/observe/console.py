"""What ``connectors watch`` shows, from the JSON lines of an observer or from its metrics."""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from connectors.core.errors import ConnectorError
from connectors.observe.failure import last_line
from connectors.observe.history import History, Sample
from connectors.observe.lag import Measurement, PartitionLag, SourceMeasurement, SpoolMeasurement, total
from connectors.observe.watch import Runs

_LARGEST_FIGURE = 1e15
"""Of any figure: larger than the bytes of a spool, and than a time in seconds."""
_SOURCE = re.compile(r"[0-9]{1,3}")
_LARGEST: Final = 1 << 63
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that a date can have."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """What an observer writes of a run besides its batches: that it has started, is idle or has terminated."""

    event: str
    time_ms: int
    query: str
    run: str
    name: str | None = None
    exception: str | None = None


Event = RunEvent | Measurement
_RUN_EVENT: Final[TypeAdapter[Event]] = TypeAdapter(RunEvent)
_EVENTS: Final[Mapping[str, TypeAdapter[Event]]] = {
    "started": _RUN_EVENT,
    "progress": TypeAdapter(Measurement),
    "idle": _RUN_EVENT,
    "terminated": _RUN_EVENT,
}


def parse_event(value: object) -> Event | None:
    """Return what an observer says of a query; None for its other events.

    Raises:
        ValueError: the value is no event, or has a number that is out of range or a time that is no date.
    """
    if not isinstance(value, dict) or not isinstance(value.get("event"), str) or not _is_in_range(value):
        raise ValueError("no event")
    if (adapter := _EVENTS.get(value["event"])) is None:
        return None
    event = adapter.validate_python(value)
    if not 0 <= event.time_ms <= _LATEST_MS:
        raise ValueError("no time")
    return event


def _is_in_range(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_in_range, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or -_LARGEST <= value <= _LARGEST


def read_lines(path: Path, begin: int = 0) -> tuple[list[Event], int]:
    """Return the events of queries in a file of an observer, and the byte after the last line that is complete.

    A line that is no JSON was torn, by a loss of power or a full disk, and is left out, if the file has events too.
    A file that is shorter than the byte to begin at was rotated, and is read from its first one.

    Raises:
        ConnectorError: it is not there, cannot be read, or is no such file.
    """
    try:
        with path.open("rb") as file:
            begin = begin if begin <= file.seek(0, os.SEEK_END) else 0
            file.seek(begin)
            data = file.read()
    except FileNotFoundError:
        action = "Give the file that watch(spark, file=...) writes; watch creates it."
        raise ConnectorError("OBSERVE_FILE_MISSING", "There is no such file", str(path), action) from None
    except OSError as error:
        raise _no_file_of_ours(path, str(error)) from None
    events: list[Event] = []
    is_ours, torn = begin > 0, ""
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        try:
            value = json.loads(line)
        except RecursionError as error:
            raise _no_file_of_ours(path, str(error)) from None
        except ValueError as error:
            torn = torn or str(error)
        else:
            try:
                event = parse_event(value)
            except ValueError:
                raise _no_file_of_ours(path, f"the line at byte {begin} is no event of a query") from None
            is_ours = True
            if event is not None:
                events.append(event)
        begin += len(line)
    if torn and not is_ours:
        raise _no_file_of_ours(path, torn)
    return events, begin


def _no_file_of_ours(path: Path, why: str) -> ConnectorError:
    what = f"This is no file of an observer: {why}"
    return ConnectorError("OBSERVE_FILE", what, str(path), "Give the file that watch(spark, file=...) writes.")


@dataclass(frozen=True, slots=True)
class QueryView:
    """A query as Spark last reported it, and its rate and lag before.

    Attributes:
        state: ``running``, ``idle``, ``ended`` or ``failed``.
        newest: the last report; its batch is -1 before the first one.
        batch_ended_ms: when its last batch ended, or before the first one when it started, in milliseconds since 1970.
        error: the last line of its error; empty if it has none.
    """

    state: str
    newest: Measurement
    batch_ended_ms: float = 0.0
    error: str = ""
    history: History = field(default_factory=History, compare=False)

    def remember(self, begin_ms: float, rows: int) -> None:
        """Add the last report to the history, with the rows that were read since a time."""
        sources = self.newest.sources
        seconds = max((source.milliseconds for source in sources), default=0) / 1000
        records = total([source.records for source in sources])
        self.history.add(Sample(begin_ms, self.newest.time_ms, rows, records, seconds))


class LineViews:
    """The newest view of each query in a file of an observer, which may grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._file: int | None = None
        self._runs = Runs()
        self._views: dict[str, QueryView] = {}

    def look(self) -> list[QueryView]:
        """Read what is new in the file, and return the queries in the order of their first event."""
        try:
            file = self._path.stat().st_ino
        except OSError:
            file = None
        if file != self._file:  # another file of this name, or none
            self._file, self._read = file, 0
        events, self._read = read_lines(self._path, self._read)
        for event in events:
            if self._runs.heard(event.query, event.run):
                self._take(event)
        now_ms = time.time_ns() // 1_000_000
        return [
            replace(view, newest=view.newest.at(now_ms, {})) if view.state in {"running", "idle"} else view
            for view in self._views.values()
        ]

    def _take(self, event: Event) -> None:
        before = self._views.get(event.query)
        history = History() if before is None else before.history
        if isinstance(event, Measurement):
            view = QueryView("running", event, event.time_ms, history=history)
            view.remember(event.time_ms - event.batch_ms, event.rows)
        elif event.event == "started":
            newest = Measurement.started(event.time_ms, event.query, event.run, event.name or "")
            view = QueryView("running", newest, event.time_ms, history=history)
        elif event.event == "idle":
            # The start of a query that is idle since then may stand in a file that was rotated.
            last = before or QueryView(
                "", Measurement.started(event.time_ms, event.query, event.run, ""), event.time_ms
            )
            view = replace(last, state="idle", newest=last.newest.idle(event.time_ms))
            if view.newest.batch >= 0:
                view.remember(event.time_ms, 0)
        elif before is None:
            return
        elif event.exception is None:
            view = replace(before, state="ended", newest=before.newest.idle(event.time_ms))
        else:
            newest = replace(before.newest, time_ms=event.time_ms)
            view = replace(before, state="failed", newest=newest, error=last_line(event.exception))
        self._views[event.query] = view


class MetricViews:
    """The newest view of each query in the metrics that an observer serves, and what was seen of it before."""

    def __init__(self) -> None:
        self._views: dict[str, QueryView] = {}
        self._rows: dict[str, int] = {}

    def look(self, text: str) -> list[QueryView]:
        """Take an OpenMetrics response, and return the queries in their order.

        Raises:
            ConnectorError: the text is not OpenMetrics, or the extra ``observe`` is not installed.
        """
        views, self._views = self._views, {}
        for newest, state, ended_ms, rows in _parse_metrics(text):
            before = views.get(newest.query)
            if state in {"ended", "failed"}:  # of which no figure is served
                last = before or QueryView(state, newest, ended_ms)
                self._views[newest.query] = replace(last, state=state)
                continue
            view = QueryView(state, newest, ended_ms, history=before.history if before else History())
            self._views[newest.query] = view
            read = max(0, rows - self._rows.get(newest.query, rows))
            self._rows[newest.query] = rows
            begin_ms = before.newest.time_ms if before else newest.time_ms
            if before is None or begin_ms < newest.time_ms:
                view.remember(begin_ms, read)
        return list(self._views.values())


def _parse_metrics(text: str) -> list[tuple[Measurement, str, int, int]]:
    """Return what an observer serves: queries, their state, when the last batch of each ended, and its rows."""
    from connectors.observe.prometheus import parse_metrics  # noqa: PLC0415 - needs an extra

    by_query: dict[str, list[tuple[str, Mapping[str, str], float]]] = {}
    try:
        for name, labels, value in parse_metrics(text):
            if isfinite(value):
                if abs(value) > _LARGEST_FIGURE:
                    raise ValueError(f"{name} is {value:g}")  # noqa: TRY301 - as what the parser raises
                by_query.setdefault(labels["query"], []).append((name, labels, value))
        return [_measurement(query, samples) for query, samples in by_query.items()]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        what = f"The answer is no OpenMetrics of an observer: {str(error)[:200]}"
        raise ConnectorError("OBSERVE_METRICS", what, "watch URL", "Give the URL of an observer.") from None


def _source(label: str) -> int:
    if not _SOURCE.fullmatch(label):
        raise ValueError(f"a source is {label!r:.40}")
    return int(label)


def _measurement(
    query: str, samples: Sequence[tuple[str, Mapping[str, str], float]]
) -> tuple[Measurement, str, int, int]:
    own: dict[str, float] = defaultdict(float)
    lags: dict[int, dict[str, dict[str, float]]] = {}
    kinds: dict[int, str] = {}
    spools: dict[int, dict[str, float]] = {}
    for name, labels, value in samples:
        number = _source(labels.get("source", "0"))
        if "partition" in labels:
            kinds[number] = labels["kind"]
            lags.setdefault(number, {}).setdefault(labels["partition"], {})[name] = value
        elif "spool" in labels:
            spools.setdefault(number, defaultdict(float))[name] = value
        else:
            own[name] = value
    sources = []
    for number in range(max(kinds, default=-1) + 1):
        partitions = {
            partition: PartitionLag(
                int(lag["lag_records"]) if "lag_records" in lag else None, round(1000 * lag["lag_seconds"])
            )
            for partition, lag in lags.get(number, {}).items()
        }
        spool = _spool(spools[number]) if number in spools else None
        records = total([lag.records for lag in partitions.values()])
        milliseconds = max((lag.milliseconds for lag in partitions.values()), default=0)
        sources.append(SourceMeasurement(kinds.get(number, "unknown"), 0, records, milliseconds, partitions, spool))
    newest = Measurement(
        time_ms=round(1000 * own["reported_timestamp_seconds"]),
        query=query,
        run="",
        name=query,
        batch=int(own.get("batch", -1)),
        rows=0,
        batch_ms=round(1000 * own["batch_seconds"]),
        rows_per_second=own["rows_per_second"],
        sources=tuple(sources),
    )
    ended_ms = round(1000 * own.get("batch_timestamp_seconds", own["started_timestamp_seconds"]))
    state = "idle" if newest.time_ms > ended_ms else "running"
    if own["running"] == 0:
        newest, state = replace(newest, time_ms=ended_ms), "failed" if own["failed"] else "ended"
    return newest, state, ended_ms, int(own["rows_total"])


def _spool(values: Mapping[str, float]) -> SpoolMeasurement:
    delivered, duplicates, committed, unread = (
        int(values[f"spool_{name}"]) for name in ("delivered_total", "duplicates_total", "committed_total", "bytes")
    )
    oldest_ms = round(1000 * values["spool_oldest_unread_seconds"])
    return SpoolMeasurement("", (), delivered, duplicates, 0, committed, unread, oldest_ms)
