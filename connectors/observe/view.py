"""What ``connectors watch`` shows, from the JSON lines of an observer or from its metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeGuard

from connectors.core.errors import ConnectorError
from connectors.observe.runs import Runs

__all__ = ["LineViews", "QueryView", "SourceView", "read_lines", "views_of_metrics"]

_NUMBER: Final = (int, float)
_TEXT_OR_NONE: Final = (str, NoneType)
_FIELDS: Final[Mapping[str, Mapping[str, tuple[type, ...]]]] = {
    "started": {"query": (str,), "run": (str,), "name": _TEXT_OR_NONE},
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
_SPOOL: Final = {"bytes": (int,), "oldest_unread_ms": _NUMBER, "duplicates": (int,)}


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source of a query: its lag, and of a spool, where one is watched, what is unread and what was struck out."""

    source: str
    kind: str
    records: int | None
    seconds: float
    unread_bytes: int | None = None
    oldest_seconds: float | None = None
    duplicates: int | None = None


@dataclass(frozen=True, slots=True)
class QueryView:
    """A query after its last batch; `state` is ``running``, ``ended`` or ``failed``."""

    name: str
    state: str
    batch: int
    rows_per_second: float
    batch_seconds: float
    sources: tuple[SourceView, ...] = ()


def read_lines(path: Path, begin: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The events in a file of an observer; a last line that is being written is left for later.

    A line that is no JSON was torn, by a loss of power or a full disk, and is left out, if the file has events too.

    Args:
        path: the file.
        begin: the byte to begin at; a file that is shorter by now was rotated, and is read from its first one.

    Returns:
        The events, and the byte behind the last one.

    Raises:
        ConnectorError: it cannot be read, or is no such file.
    """
    try:
        with path.open("rb") as file:
            begin = begin if begin <= file.seek(0, os.SEEK_END) else 0
            file.seek(begin)
            data = file.read()
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
    """Whether a value is an event with what is read of it; kinds that are not known here may hold anything."""
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return False
    fields = _FIELDS.get(value["event"], {})
    return _has(value, fields) and all(_is_source(each) for each in (value["sources"] if "sources" in fields else ()))


def _is_source(value: object) -> bool:
    return _has(value, _SOURCE) and (value["spool"] is None or _has(value["spool"], _SPOOL))


def _has(value: object, fields: Mapping[str, tuple[type, ...]]) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is an object with these fields, each of one of its types."""
    return isinstance(value, dict) and all(
        name in value and isinstance(value[name], types) for name, types in fields.items()
    )


class LineViews:
    """The newest view of each query in a file of an observer, which may grow.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._runs = Runs()
        self._views: dict[str, QueryView] = {}

    def look(self) -> list[QueryView]:
        """Read what is new in the file, and give the queries in the order of their first event."""
        events, self._read = read_lines(self._path, self._read)
        for event in events:
            self._take(event)
        return list(self._views.values())

    def _take(self, event: Mapping[str, Any]) -> None:
        query = str(event.get("query", ""))
        if event["event"] in _FIELDS and not self._runs.heard(query, event["run"]):
            return  # of a run before the newest
        match event.get("event"):
            case "started":
                self._views[query] = QueryView(event["name"] or query, "running", -1, 0.0, 0.0)
            case "progress":
                self._views[query] = _of_progress(event)
            case "terminated" if query in self._views:
                state = "ended" if event["exception"] is None else "failed"
                self._views[query] = replace(self._views[query], state=state)


def _of_progress(event: Mapping[str, Any]) -> QueryView:
    sources = []
    for number, source in enumerate(event["sources"]):
        view = SourceView(str(number), source["kind"], source["records"], source["milliseconds"] / 1000)
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
    )


def views_of_metrics(text: str) -> list[QueryView]:
    """The queries in the metrics that an observer serves.

    Raises:
        ConnectorError: the text is no metrics, or the extra ``observe`` is not installed.
    """
    try:
        from prometheus_client.openmetrics import parser  # noqa: PLC0415 - an extra

        families: Any = parser.text_string_to_metric_families  # comes without types
        samples = [sample for family in families(text) for sample in family.samples]
    except ImportError:
        raise ConnectorError(
            "OBSERVE_EXTRA_MISSING",
            "Metrics need the package prometheus-client",
            "watch URL",
            "pip install 'pyspark-stream-connectors[observe]', or watch a file.",
        ) from None
    except ValueError as error:
        raise ConnectorError(
            "OBSERVE_METRICS", f"The answer is no OpenMetrics: {error}", "watch URL", "Give the URL of an observer."
        ) from None
    by_query: dict[str, dict[str, dict[str, list[float]]]] = {}
    for sample in samples:
        labels = sample.labels
        source = f"{labels['source']} {labels.get('kind', 'spool')}" if "source" in labels else ""
        names = by_query.setdefault(labels.get("query", ""), {}).setdefault(source, {})
        names.setdefault(sample.name.removeprefix("connectors_"), []).append(sample.value)
    return [_of_samples(name, found) for name, found in by_query.items()]


def _records(samples: Mapping[str, list[float]]) -> int | None:
    """The lag in records of a source; None if it is not known of each partition."""
    known = samples.get("lag_records", [])
    return int(sum(known)) if len(known) == len(samples["lag_seconds"]) else None


def _of_samples(name: str, found: Mapping[str, Mapping[str, list[float]]]) -> QueryView:
    def one(source: str, sample: str) -> float | None:
        return next(iter(found.get(source, {}).get(sample, [])), None)

    sources = []
    for source in sorted(each for each in found if each and "lag_seconds" in found[each]):
        number, _, kind = source.partition(" ")
        spool = f"{number} spool"
        unread, duplicates = one(spool, "spool_bytes"), one(spool, "spool_duplicates_total")
        sources.append(
            SourceView(
                number,
                kind,
                _records(found[source]),
                max(found[source]["lag_seconds"]),
                None if unread is None else int(unread),
                one(spool, "spool_oldest_unread_seconds"),
                None if duplicates is None else int(duplicates),
            )
        )
    return QueryView(
        name,
        "running",
        int(one("", "batch") or 0),
        one("", "rows_per_second") or 0.0,
        one("", "batch_seconds") or 0.0,
        tuple(sources),
    )
