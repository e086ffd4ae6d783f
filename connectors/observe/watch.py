"""`watch` adds a listener to a session: one line per batch in the log, JSON lines, metrics, and what ends with a query.

Spark calls a listener from threads of its own, and a slow or failing one holds up or hides the others. So the listener
only puts what it hears into a queue; a thread of the observer does the rest, and no error of it reaches Spark.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from connectors.core.errors import ConnectorError, OptionError
from connectors.core.formats import CONNECTORS
from connectors.core.processes.spark import StreamPlan, classic_context, stream_plan
from connectors.observe.jsonl import LineFile
from connectors.observe.lag import LagHistory, Measurement, SourceLag, measure, spool_lag
from connectors.observe.lineage import Lineage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from connectors.observe.prometheus import Exporter
    from connectors.observe.spool_probe import SpoolWatches

_REMEMBERED: Final = 8


class Runs:
    """The last runs of each query, in the order in which they were first seen.

    Spark can tell of the end of a run after the start of the next one.
    """

    def __init__(self) -> None:
        self._runs: dict[str, deque[str]] = {}

    def heard(self, query: str, run: str) -> bool:
        """Note an event of a run, and return whether it is of the newest run of its query."""
        runs = self._runs.setdefault(query, deque(maxlen=_REMEMBERED))
        if run not in runs:
            runs.append(run)
        return runs[-1] == run


_log = logging.getLogger(__name__)
_STOP: Final = (0, "stop", None)
_END_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.02
_REFRESH_SECONDS: Final = 5.0


def watch(
    spark: SparkSession,
    *,
    spools: Sequence[str | Path] | str | Path = (),
    file: str | Path | None = None,
    port: int | None = None,
    address: str = "127.0.0.1",
    lineage: str | Path | None = None,
    deleteSubscriptions: Sequence[str] = (),  # noqa: N803 - as the option of other products
    subscriptionOptions: Mapping[str, str] | None = None,  # noqa: N803 - goes with it
) -> Observer:
    """Watch all streaming queries of a session, from now on.

    Args:
        spark: the session.
        spools: the ``spoolLocation`` of each query that has one, or a single one. Without it, only their lag in records
            is known.
        file: a file to which one JSON object a line is appended, for ``connectors watch``.
        port: serve metrics over HTTP on this port, 0 for a free one; needs the extra ``observe``.
        address: the address to serve them on.
        lineage: a file, or the ``http://`` or ``https://`` URL of a service, for OpenLineage events of each query:
            what it reads and writes. Not for Spark Connect.
        deleteSubscriptions: full paths of Pub/Sub subscriptions. Each is deleted when the query that reads it ends
            without an error: after `stop`, or at the end of an AvailableNow. The spool tells which query that is, so
            give `spools` too. A query that fails, or whose driver is killed, deletes nothing.
        subscriptionOptions: how to reach the service for that: ``endpoint``, ``credentialsFile``, ``allowInsecure``.

    Returns:
        The observer; `Observer.close` ends it.

    Raises:
        OptionError: a subscription is not a full path, or `spools` is missing; or a location, the port or the URL for
            lineage is not valid; or the session, of Spark Connect, shows no lineage.
        ConnectorError: the file cannot be opened, or metrics cannot be served on the port. Nothing is left open then.
    """
    for name in deleteSubscriptions:
        if not name.startswith("projects/") or "/subscriptions/" not in name or not spools:
            raise OptionError(
                "OBSERVE_DELETE_SUBSCRIPTIONS",
                "It is unknown which query reads the subscription that is to be deleted",
                name,
            )
    if lineage is not None and classic_context(spark) is None:
        what = "Spark Connect does not show what a query reads and writes"
        raise OptionError("OBSERVE_LINEAGE", what, "watch", "Leave lineage out, or watch on the driver.")
    watches: SpoolWatches | None = None
    if spools:
        from connectors.observe.spool_probe import SpoolWatch, SpoolWatches  # noqa: PLC0415 - needs what comes with spools

        watches = SpoolWatches(
            [SpoolWatch(location) for location in ([spools] if isinstance(spools, str | Path) else spools)]
        )
    with contextlib.ExitStack() as opened:
        exporter = None
        if port is not None:
            from connectors.observe.prometheus import Exporter  # noqa: PLC0415 - needs an extra

            exporter = Exporter(port, address)
            opened.callback(exporter.close)
        log = None if lineage is None else opened.enter_context(contextlib.closing(Lineage(lineage, os.environ)))
        observer = Observer(
            watches, file, exporter, tuple(deleteSubscriptions), dict(subscriptionOptions or {}), lineage=log
        )
        opened.pop_all()  # the observer has it now
        opened.callback(observer.close)
        observer.attach(spark)
        opened.pop_all()
    return observer


class Observer:
    """What `watch` returns; a context manager that ends it."""

    def __init__(
        self,
        spools: SpoolWatches | None = None,
        file: str | Path | None = None,
        exporter: Exporter | None = None,
        deletions: tuple[str, ...] = (),
        deletion_options: Mapping[str, str] | None = None,
        refresh_seconds: float = _REFRESH_SECONDS,
        *,
        lineage: Lineage | None = None,
    ) -> None:
        self.exporter = exporter
        """Serves metrics; None without ``port``."""
        self.latest: dict[str, Measurement] = {}
        """The newest measurement of each running query, by its id; of an idle one, as `Measurement.idle` gives it.

        Before its first batch it is that of `Measurement.started`."""
        self._spools = spools
        self._file = None if file is None else LineFile(Path(file))
        self._lineage = lineage
        self._refresh_seconds = refresh_seconds
        self._refresh_at = 0.0
        self._deletions = deletions
        self._deletion_options = dict(deletion_options or {})
        self._kinds: dict[str, SourceLag] = {"spool": spool_lag}
        self._kinds |= {connector.format: connector.load(connector.lag) for connector in CONNECTORS if connector.lag}
        self._histories: dict[tuple[str, int], LagHistory] = {}
        self._read_by: dict[str, set[str]] = {}
        self._running: set[str] = set()
        self._runs = Runs()
        self._is_closed = False
        self._events: queue.Queue[tuple[int, str, Any]] = queue.Queue()
        # The time is that at which Spark tells of it: to look at a spool may take a while.
        self._listener = _Listener(lambda event: self._events.put((_now_ms(), *event)))
        self._spark: SparkSession | None = None
        self._thread = threading.Thread(target=self._run, name="connectors-observer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def attach(self, spark: SparkSession) -> None:
        """Start listening to a session."""
        if self._lineage is not None:
            self._listener.plan_of = partial(stream_plan, spark)
        spark.streams.addListener(self._listener)
        self._spark = spark
        for query in spark.streams.active:  # one that started since the line above is known by then
            self._listener.put_started(query)

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Stop listening, and return when all events received are processed. A second call does nothing.

        After ``timeout`` seconds the rest is left, with a warning: a store may not answer. A session that is gone does
        not hinder it.
        """
        spark, self._spark = self._spark, None
        try:
            if spark is not None:
                self._leave(spark)
        finally:
            self._end(timeout)

    def _end(self, timeout: float) -> None:
        if self._thread.is_alive():
            self._events.put(_STOP)
            self._thread.join(timeout)
            self._is_closed = True
            if self._thread.is_alive():
                _log.warning(
                    "[OBSERVE_LEFT] A store or service does not respond. The observer ends with %d unprocessed events",
                    self._events.qsize(),
                )
        if self._file is not None:
            self._file.close()
        if self._lineage is not None:
            self._lineage.close()
        if self.exporter is not None:
            self.exporter.close()

    def _leave(self, spark: SparkSession) -> None:
        # Spark reports that a query has ended a little after ``stop()``.
        deadline = time.monotonic() + _END_SECONDS
        try:
            while time.monotonic() < deadline and self._running - {str(query.runId) for query in spark.streams.active}:
                time.sleep(_LOOK_SECONDS)
            spark.streams.removeListener(self._listener)
        except Exception as error:  # noqa: BLE001 - py4j's and gRPC's errors of a session that is gone
            _log.warning("[OBSERVE_SESSION] The observer can no longer see how queries end: %s", error)

    def _run(self) -> None:
        while not self._is_closed and (event := self._next()) != _STOP:
            try:
                if event is not None:
                    self._receive(*event)
                self._refresh()
            except Exception:  # noqa: BLE001 - logged; an observer never ends because of what it observes
                _log.exception("[OBSERVE_FAILED] The observer failed on an event of a query, and continues")

    def _next(self) -> tuple[int, str, Any] | None:
        """Return the next event; None if none comes for a while."""
        try:
            return self._events.get(timeout=None if self.exporter is None else self._refresh_seconds)
        except queue.Empty:
            return None

    def _refresh(self) -> None:
        """Have the metrics age: while a batch runs or hangs, no event tells of what waits behind it."""
        if self.exporter is None or time.monotonic() < self._refresh_at:
            return
        spools = {} if self._spools is None else self._spools.look()
        now_ms = _now_ms()
        for measurement in self.latest.values():
            self.exporter.refresh(measurement.at(now_ms, spools))
        self._refresh_at = time.monotonic() + self._refresh_seconds

    def _receive(self, time_ms: int, kind: str, value: Mapping[str, Any]) -> None:
        if kind == "plan":
            if self._lineage is not None:
                self._lineage.start(time_ms, value["query"], value["plan"])
            return
        if kind == "progress":
            self._progress(time_ms, value)
            return
        if kind == "started" and value["run"] in self._running:
            return
        self._write({"v": 1, "event": kind, "time_ms": time_ms, **value})
        if kind == "idle":
            self._idle(time_ms, value)
        elif kind == "started":
            self._started(Measurement.started(time_ms, value["query"], value["run"], value["name"]))
        elif kind == "terminated":
            if self._lineage is not None:
                self._lineage.end(time_ms, value["run"], failed=value["exception"] is not None)
            self._terminated(value)
            self._running.discard(value["run"])

    def _progress(self, time_ms: int, progress: Mapping[str, Any]) -> None:
        spools = {} if self._spools is None else self._spools.look()
        measurement = measure(progress, time_ms, self._kinds, self._histories, spools)
        self._running.add(measurement.run)
        self._runs.heard(measurement.query, measurement.run)
        self.latest[measurement.query] = measurement
        for source in measurement.sources:
            if source.spool is not None:
                self._read_by.setdefault(measurement.query, set()).update(source.spool.sources)
        _log.info("%s", measurement.line())
        self._write(measurement.to_json())
        if self.exporter is not None:
            self.exporter.update(measurement)
        if self._lineage is not None:
            self._lineage.progress(time_ms, progress)

    def _started(self, query: Measurement) -> None:
        self._running.add(query.run)
        if self._runs.heard(query.query, query.run):
            self.latest[query.query] = query
            if self.exporter is not None:
                self.exporter.start(query)

    def _idle(self, time_ms: int, event: Mapping[str, Any]) -> None:
        query = str(event["query"])
        if self._runs.heard(query, str(event["run"])) and query in self.latest:
            self.latest[query] = self.latest[query].idle(time_ms)
            if self.exporter is not None:
                self.exporter.refresh(self.latest[query])

    def _terminated(self, event: Mapping[str, Any]) -> None:
        query = str(event["query"])
        self._histories = {key: history for key, history in self._histories.items() if key[0] != event["run"]}
        if not self._runs.heard(query, str(event["run"])):
            return  # it was started again by now
        self.latest.pop(query, None)
        if self.exporter is not None:
            self.exporter.end(query, failed=event["exception"] is not None)
        read = self._read_by.pop(query, set())
        for name in self._deletions:
            if name not in read:
                continue
            if event["exception"] is None:
                self._delete(name)
            else:
                _log.warning("[OBSERVE_SUBSCRIPTION_KEPT] %s was not deleted, because its query failed", name)

    def _delete(self, subscription: str) -> None:
        try:
            for connector in CONNECTORS:
                if connector.deletion:
                    connector.load(connector.deletion)(subscription, self._deletion_options)
        except ConnectorError as error:
            _log.warning("[OBSERVE_SUBSCRIPTION_KEPT] %s", error)
            event = "subscription_kept"
        else:
            _log.warning(
                "[OBSERVE_SUBSCRIPTION_DELETED] %s was deleted: its query ended without an error", subscription
            )
            event = "subscription_deleted"
        self._write({"v": 1, "event": event, "time_ms": _now_ms(), "subscription": subscription})

    def _write(self, value: Mapping[str, Any]) -> None:
        if self._file is not None and not self._is_closed:
            self._file.write(value)


class _Listener(StreamingQueryListener):
    """Puts Spark's events into a queue, as plain values; Spark calls it from its own threads."""

    def __init__(self, put: Callable[[tuple[str, Any]], None]) -> None:
        self._put = put
        self.plan_of: Callable[[str], StreamPlan | None] | None = None
        """Returns the plan of a query by its id; None if no plan is wanted."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        self.put_started(event)

    def put_started(self, query: QueryStartedEvent | StreamingQuery) -> None:
        """Put the start of a query, or a query that runs."""
        value = {"query": str(query.id), "run": str(query.runId), "name": query.name or ""}
        self._put(("started", value))
        if self.plan_of is not None:  # asked for now: later, a short query may have ended
            self._put(("plan", {"query": value, "plan": self.plan_of(value["query"])}))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._put(("progress", json.loads(event.progress.json)))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._put(("idle", {"query": str(event.id), "run": str(event.runId)}))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        value = {"query": str(event.id), "run": str(event.runId), "exception": event.exception}
        self._put(("terminated", value))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
