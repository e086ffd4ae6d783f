"""What ``connectors watch`` shows, from the JSON lines of an observer or from its metrics."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeGuard

from connectors.core.errors import ConnectorError
from connectors.core.extras import install_command
from connectors.observe.history import History, Sample
from connectors.observe.watch import Runs

__all__ = [
    "LineViews",
    "MetricViews",
    "QueryView",
    "SourceView",
    "idle_after",
    "last_line",
    "read_lines",
]

_NUMBER: Final = (int, float)
_LARGEST: Final = 1 << 63
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that a date can have."""
_TEXT_OR_NONE: Final = (str, NoneType)
_NO_REASON: Final = re.compile(r"at \S+\(.*\)$|\.\.\. \d+ more$|Driver stacktrace:$|SQLSTATE: \w+$")
_FIELDS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "started": {"query": (str,), "run": (str,), "time_ms": _NUMBER, "name": _TEXT_OR_NONE},
    "idle": {"query": (str,), "run": (str,), "time_ms": _NUMBER},
    "progress": {
        "query": (str,),
        "run": (str,),
        "name": _TEXT_OR_NONE,
        "time_ms": _NUMBER,
        "batch": (int,),
        "batch_ms": _NUMBER,
        "rows": (int,),
        "rows_per_second": _NUMBER,
        "sources": (list,),
    },
    "terminated": {"query": (str,), "run": (str,), "time_ms": _NUMBER, "exception": _TEXT_OR_NONE},
}
"""What is read of the events, by kind."""
_SOURCE: Final = {"kind": (str,), "records": (int, NoneType), "milliseconds": _NUMBER, "spool": (dict, NoneType)}
_PARTITION: Final[Mapping[str, tuple[type, ...]]] = {"records": (int, NoneType), "milliseconds": _NUMBER}
_SPOOL: Final = {"bytes": (int,), "oldest_unread_ms": _NUMBER, "duplicates": (int,)}


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source of a query: its lag, and of a spool, where one is watched, what is unread and what was deduplicated.

    Attributes:
        partitions: how many it has.
        furthest: the partition with the largest lag, and that lag in records; None if none is behind, or not counted.
    """

    source: str
    kind: str
    records: int | None
    seconds: float
    partitions: int = 0
    furthest: tuple[str, int] | None = None
    unread_bytes: int | None = None
    oldest_seconds: float | None = None
    duplicates: int | None = None


@dataclass(frozen=True, slots=True)
class QueryView:
    """A query as Spark last reported it.

    Attributes:
        state: ``running``, ``idle``, ``ended`` or ``failed``.
        reported_ms: when Spark last reported anything of it, in milliseconds since 1970.
        batch_ms: when its last batch ended; 0 if there was none.
        error: the last line of its error; empty if it has none.
        history: its rate and lag before.
    """

    name: str
    state: str
    batch: int
    rows_per_second: float
    batch_seconds: float
    sources: tuple[SourceView, ...] = ()
    reported_ms: float = 0.0
    batch_ms: float = 0.0
    error: str = ""
    history: History = field(default_factory=History, compare=False)


def read_lines(path: Path, begin: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The events in a file of an observer; a last line that is being written is left for later.

    A line that is no JSON was torn, by a loss of power or a full disk, and is left out, if the file has events too.

    Args:
        path: the file.
        begin: the byte to begin at; a file that is shorter by now was rotated, and is read from its first one.

    Returns:
        The events, and the byte behind the last one.

    Raises:
        ConnectorError: it is not there, cannot be read, or is no such file.
    """
    try:
        with path.open("rb") as file:
            begin = begin if begin <= file.seek(0, os.SEEK_END) else 0
            file.seek(begin)
            data = file.read()
    except FileNotFoundError:
        raise ConnectorError(
            "OBSERVE_FILE_MISSING",
            "There is no such file",
            str(path),
            "Give the file that watch(spark, file=...) writes; watch creates it.",
        ) from None
    except OSError as error:
        raise _no_file_of_ours(path, str(error)) from None
    events: list[dict[str, Any]] = []
    is_new, torn = begin == 0, ""
    for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
        try:
            event = json.loads(line)
        except RecursionError as error:
            raise _no_file_of_ours(path, str(error)) from None
        except ValueError as error:
            torn = torn or str(error)
        else:
            if not _is_event(event):
                raise _no_file_of_ours(path, f"the line at byte {begin} is no event of a query")
            events.append(event)
        begin += len(line)
    if torn and is_new and not events:
        raise _no_file_of_ours(path, torn)
    return events, begin


def _no_file_of_ours(path: Path, why: str) -> ConnectorError:
    return ConnectorError(
        "OBSERVE_FILE",
        f"This is no file of an observer: {why}",
        str(path),
        "Give the file that watch(spark, file=...) writes.",
    )


def _is_event(value: object) -> bool:
    """Return whether a value is an event with the fields that are read; unknown kinds may hold anything."""
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return False
    fields = _FIELDS.get(value["event"], {})
    return _has(value, fields) and all(_is_source(each) for each in (value["sources"] if "sources" in fields else ()))


def _is_source(value: object) -> bool:
    if not _has(value, _SOURCE) or not isinstance(partitions := value.get("partitions", {}), dict):
        return False
    spool_is_read = value["spool"] is None or _has(value["spool"], _SPOOL)
    return spool_is_read and all(_has(each, _PARTITION) for each in partitions.values())


def _has(value: object, fields: Mapping[str, tuple[type, ...]]) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is an object with these fields, each of one of its types."""
    return isinstance(value, dict) and all(
        name in value and isinstance(value[name], types) and _fits(name, value[name]) for name, types in fields.items()
    )


def _fits(name: str, value: object) -> bool:
    """Return whether a number is finite and in range, and a time a date."""
    if not isinstance(value, int | float):
        return True
    return 0 <= value <= _LATEST_MS if name == "time_ms" else -_LARGEST <= value <= _LARGEST


class LineViews:
    """The newest view of each query in a file of an observer, which may grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._file: int | None = None
        self._runs = Runs()
        self._views: dict[str, QueryView] = {}
        self._batches: dict[str, Mapping[str, Any]] = {}

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
            self._take(event)
        return list(self._views.values())

    def _take(self, event: Mapping[str, Any]) -> None:
        query = str(event.get("query", ""))
        if event["event"] in _FIELDS and not self._runs.heard(query, event["run"]):
            return  # of a run before the newest
        before = self._views.get(query)
        history = History() if before is None else before.history
        match event.get("event"):
            case "started":
                name, time_ms = event["name"] or query, event["time_ms"]
                self._views[query] = QueryView(name, "running", -1, 0.0, 0.0, reported_ms=time_ms, history=history)
            case "progress":
                self._batches[query] = event
                self._views[query] = view = _of_progress(event, history)
                begin_ms = event["time_ms"] - event["batch_ms"]
                history.add(_sample(view, begin_ms, event["rows"]))
            case "idle" if before is not None and query in self._batches:
                moment = idle_after(self._batches[query], event["time_ms"])
                view = replace(_of_progress(moment, history), state="idle", batch_ms=before.batch_ms)
                self._views[query] = view
                history.add(_sample(view, view.reported_ms, 0))
            case "terminated" if before is not None:
                state = "ended" if event["exception"] is None else "failed"
                error = last_line(event["exception"] or "")
                self._views[query] = replace(before, state=state, reported_ms=event["time_ms"], error=error)


def idle_after(batch: Mapping[str, Any], time_ms: float) -> dict[str, Any]:
    """Return what an event of a query that waits for data says, after its last batch, as `Measurement.idle` does."""
    sources = [{**each, "milliseconds": 0} if each["records"] == 0 else each for each in batch["sources"]]
    return {**batch, "time_ms": time_ms, "rows": 0, "rows_per_second": 0.0, "sources": sources}


def last_line(exception: str) -> str:
    """Return the line that says what is wrong: the last one that is no frame of a stack of the JVM."""
    lines = [line.strip() for line in exception.splitlines()]
    return next((line for line in reversed(lines) if line and not _NO_REASON.match(line)), "")


def _of_progress(event: Mapping[str, Any], history: History) -> QueryView:
    sources = []
    for number, source in enumerate(event["sources"]):
        partitions = {name: each["records"] for name, each in source.get("partitions", {}).items()}
        seconds = source["milliseconds"] / 1000
        view = SourceView(
            str(number), source["kind"], source["records"], seconds, len(partitions), _furthest(partitions)
        )
        if (spool := source["spool"]) is not None:
            oldest = spool["oldest_unread_ms"] / 1000
            view = replace(view, unread_bytes=spool["bytes"], oldest_seconds=oldest, duplicates=spool["duplicates"])
        sources.append(view)
    return QueryView(
        event["name"] or event["query"],
        "running",
        event["batch"],
        event["rows_per_second"],
        event["batch_ms"] / 1000,
        tuple(sources),
        event["time_ms"],
        event["time_ms"],
        history=history,
    )


def _furthest(partitions: Mapping[str, int | None]) -> tuple[str, int] | None:
    known = [(records, name) for name, records in partitions.items() if records]
    if not known:
        return None
    records, name = max(known)
    return name, records


def _sample(view: QueryView, begin_ms: float, rows: int) -> Sample:
    known = [source.records for source in view.sources if source.records is not None]
    records = sum(known) if len(known) == len(view.sources) else None
    seconds = max((source.seconds for source in view.sources), default=0.0)
    return Sample(begin_ms, view.reported_ms, rows, records, seconds)


class MetricViews:
    """The newest view of each query in the metrics that an observer serves, and what was seen of it before."""

    def __init__(self) -> None:
        self._views: dict[str, QueryView] = {}
        self._rows: dict[str, float] = {}

    def look(self, text: str) -> list[QueryView]:
        """Take an OpenMetrics response, and return the queries in their order.

        Raises:
            ConnectorError: the text is not OpenMetrics, or the extra ``observe`` is not installed.
        """
        before, self._views = self._views, {}
        for name, found in _by_query(text).items():
            history = before[name].history if name in before else History()
            self._views[name] = view = _of_samples(name, found, history)
            rows = found[""].get("rows_total", {}).get("", 0.0)
            read = max(0.0, rows - self._rows.get(name, rows))
            self._rows[name] = rows
            begin_ms = before[name].reported_ms if name in before else view.reported_ms
            if name not in before or begin_ms < view.reported_ms:
                history.add(_sample(view, begin_ms, int(read)))
        return list(self._views.values())


_Found = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By source (empty for the query itself), name of a metric, and partition (empty where there is none): its value."""


def _by_query(text: str) -> Mapping[str, _Found]:
    try:
        from prometheus_client.openmetrics import parser  # noqa: PLC0415 - an extra

        families: Any = parser.text_string_to_metric_families  # comes without types
        samples = [sample for family in families(text) for sample in family.samples]
    except ImportError:
        raise ConnectorError(
            "OBSERVE_EXTRA_MISSING",
            "Metrics need the package prometheus-client",
            "watch URL",
            f"Install the extra observe: {install_command('observe')}, or watch a file.",
        ) from None
    except ValueError as error:
        raise ConnectorError(
            "OBSERVE_METRICS", f"The answer is no OpenMetrics: {error}", "watch URL", "Give the URL of an observer."
        ) from None
    by_query: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for sample in samples:
        if not isfinite(sample.value):
            continue
        labels = sample.labels
        source = f"{labels['source']} {labels.get('kind', 'spool')}" if "source" in labels else ""
        names = by_query.setdefault(labels.get("query", ""), {"": {}}).setdefault(source, {})
        names.setdefault(sample.name.removeprefix("connectors_"), {})[labels.get("partition", "")] = sample.value
    return by_query


def _of_samples(name: str, found: _Found, history: History) -> QueryView:
    def one(source: str, sample: str) -> float | None:
        return found.get(source, {}).get(sample, {}).get("")

    sources = []
    for source in sorted(each for each in found if each and "lag_seconds" in found[each]):
        number, _, kind = source.partition(" ")
        spool = f"{number} spool"
        unread, duplicates = one(spool, "spool_bytes"), one(spool, "spool_duplicates_total")
        seconds = found[source]["lag_seconds"]
        records = {each: int(value) for each, value in found[source].get("lag_records", {}).items()}
        sources.append(
            SourceView(
                number,
                kind,
                sum(records.values()) if len(records) == len(seconds) else None,
                max(seconds.values()),
                len(seconds),
                _furthest(records),
                None if unread is None else int(unread),
                one(spool, "spool_oldest_unread_seconds"),
                None if duplicates is None else int(duplicates),
            )
        )
    reported, ended = (1000 * (one("", f"{each}_timestamp_seconds") or 0.0) for each in ("reported", "batch"))
    return QueryView(
        name,
        "idle" if reported > ended else "running",
        int(one("", "batch") or 0),
        one("", "rows_per_second") or 0.0,
        one("", "batch_seconds") or 0.0,
        tuple(sources),
        reported,
        ended,
        history=history,
    )
