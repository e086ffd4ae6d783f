"""The newest state of each query in the file of an observer, for ``connectors watch``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from connectors.core.errors import ConnectorError
from connectors.observe.failure import last_line
from connectors.observe.lag import Measurement
from connectors.observe.watch import Runs

_LARGEST: Final = 1 << 63
_MEASUREMENT: Final = TypeAdapter(Measurement)


@dataclass(frozen=True, slots=True)
class QueryView:
    """A query as Spark last reported it.

    Attributes:
        state: ``running``, ``idle``, ``ended`` or ``failed``.
        newest: the last report; its batch is -1 before the first one.
        batch_ended_ms: when its last batch ended, or before the first one when it started, in milliseconds since 1970.
        error: the last line of its error; empty if it has none.
    """

    state: str
    newest: Measurement
    batch_ended_ms: float
    error: str = ""


class LineViews:
    """The newest view of each query in a file of an observer, which may grow, or be rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._file: int | None = None
        self._runs = Runs()
        self._views: dict[str, QueryView] = {}

    def refresh(self) -> list[QueryView]:
        """Read what is new in the file, and return the queries in the order of their first event.

        Raises:
            ConnectorError: the file is not there, cannot be read, or is not that of an observer.
        """
        for event in self._new_events():
            try:
                self._take(event)
            except (ValueError, LookupError, TypeError) as error:
                raise self._no_file_of_ours(f"a line is not an event of a query: {error}") from None
        now_ms = time.time_ns() // 1_000_000
        return [
            replace(view, newest=view.newest.at(now_ms, {})) if view.state in {"running", "idle"} else view
            for view in self._views.values()
        ]

    def _new_events(self) -> Iterator[Mapping[str, Any]]:
        """Yield the events after those that were read. A line that a loss of power or a full disk tore is left out."""
        try:
            with self._path.open("rb") as file:
                inode, size = os.fstat(file.fileno()).st_ino, os.fstat(file.fileno()).st_size
                if inode != self._file or size < self._read:  # another file of this name, or a truncated one
                    self._file, self._read = inode, 0
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            self._file, self._read = None, 0
            raise ConnectorError("OBSERVE_FILE_MISSING", "There is no such file", str(self._path)) from None
        except OSError as error:
            raise self._no_file_of_ours(str(error)) from None
        whole, is_ours = data[: data.rfind(b"\n") + 1], self._read > 0
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except RecursionError:
                event = None
            except ValueError:
                continue
            if not isinstance(event, dict) or "event" not in event or not _is_in_range(event):
                raise self._no_file_of_ours("a line is not an event")
            is_ours = True
            yield event
        if whole and not is_ours:
            raise self._no_file_of_ours("no line is an event")

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, time_ms = event["event"], int(event["time_ms"])
        if kind not in {"started", "progress", "idle", "terminated"}:
            return
        if time_ms < 0:
            raise ValueError("its time is before 1970")
        query, run = str(event["query"]), str(event["run"])
        if not self._runs.heard(query, run):
            return
        # The start of a query may stand in a file that was rotated.
        start = QueryView("", Measurement.started(time_ms, query, run, str(event.get("name") or "")), time_ms)
        before = self._views.get(query, start)
        if kind == "progress":
            self._views[query] = QueryView("running", _MEASUREMENT.validate_python(event), time_ms)
        elif kind == "started":
            self._views[query] = replace(start, state="running")
        elif kind == "idle":
            self._views[query] = replace(before, state="idle", newest=before.newest.idle(time_ms))
        elif event["exception"] is None:
            self._views[query] = replace(before, state="ended", newest=before.newest.idle(time_ms))
        else:
            newest = replace(before.newest, time_ms=time_ms)
            self._views[query] = QueryView("failed", newest, before.batch_ended_ms, last_line(event["exception"]))

    def _no_file_of_ours(self, why: str) -> ConnectorError:
        what = f"This is not an observer's file: {why}"
        return ConnectorError("OBSERVE_FILE", what, str(self._path))


def _is_in_range(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_in_range, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or -_LARGEST <= value <= _LARGEST
