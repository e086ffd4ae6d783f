"""Metrics over HTTP, in OpenMetrics or Prometheus text, by prometheus-client; the extra ``observe``."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from socketserver import ThreadingMixIn
from typing import Any, Final, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from connectors.bad_records import bad_records_of
from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError
from connectors.core.formats import install_command
from connectors.observe.lag import Measurement, PartitionLag, SpoolMeasurement

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise ConnectorError(
        "OBSERVE_EXTRA_MISSING",
        "Metrics need the package prometheus-client",
        "watch",
        f"Install the extra observe: {install_command('observe')}, or write to a file instead.",
    ) from None

_PREFIX: Final = "connectors_"
_LAST_PORT: Final = 65535
_REMEMBERED: Final = 100
_MOST_CLIENTS: Final = 32
"""Requests that are answered at a time, each in a thread of the driver."""
_CLIENT_SECONDS: Final = 10.0


class _Handler(WSGIRequestHandler):
    """Waits so long for a client that says nothing, or does not take its response."""

    timeout = _CLIENT_SECONDS

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """Serves clients that the driver need not trust: beyond `_MOST_CLIENTS`, the one that came first is cut off."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._clients: dict[Any, None] = {}
        self._clients_lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread of its own."""
        with self._clients_lock:
            self._clients[request] = None
            if len(self._clients) > _MOST_CLIENTS:
                first = next(iter(self._clients))
                del self._clients[first]
                with contextlib.suppress(OSError):  # it may have hung up
                    first.shutdown(socket.SHUT_RDWR)  # which ends what its thread waits for
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._clients_lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over clients that hang up or say nothing; anything else is for standard error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _serve(port: int, address: str, registry: CollectorRegistry) -> _Server:
    family, *_ = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    of_family = type("_ServerOfFamily", (_Server,), {"address_family": family})
    return make_server(address, port, make_wsgi_app(registry), of_family, _Handler)


class Exporter(Collector):
    """Serves the newest measurement of each query on a port, 0 for a free one.

    Raises:
        OptionError: the port is none.
        ServiceUnavailableError: the port is taken, or the address is not one of this machine.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        if not 0 <= port <= _LAST_PORT:
            raise OptionError("OBSERVE_PORT", f"A port is a number from 0 to {_LAST_PORT}", str(port))
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server = _serve(port, address, registry)
        except (OSError, UnicodeError) as error:  # the last one: no name of a host
            raise ServiceUnavailableError(
                "OBSERVE_PORT",
                f"Metrics cannot be served: {getattr(error, 'strerror', None) or error}",
                f"{address}:{port}",
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        """Where the metrics are."""

    def start(self, measurement: Measurement) -> None:
        """Take a query that has started, with no batch yet."""
        with self._lock:
            label = _label(measurement)
            ended = [key for key, other in self._queries.items() if other.ended and other.name == label]
            before = self._queries.get(measurement.query)
            for key in ended:  # another one of that name would be served twice
                del self._queries[key]
            rows, batches = (0, 0) if before is None else (before.rows, before.batches)
            self._queries[measurement.query] = _Query(measurement, measurement.time_ms, rows, batches)

    def update(self, measurement: Measurement) -> None:
        """Take the measurement of a batch."""
        with self._lock:
            before = self._queries.get(measurement.query) or _Query(measurement, measurement.time_ms)
            self._queries[measurement.query] = replace(
                before,
                newest=measurement,
                rows=before.rows + measurement.rows,
                batches=before.batches + 1,
                batch_time_ms=measurement.time_ms,
                ended="",
            )

    def refresh(self, measurement: Measurement) -> None:
        """Take newer figures of a query between two batches: its rows and batches are counted already."""
        with self._lock:
            before = self._queries.get(measurement.query) or _Query(measurement, measurement.time_ms)
            self._queries[measurement.query] = replace(before, newest=measurement)

    def end(self, query: str, *, failed: bool) -> None:
        """Serve of a query that has ended only how it did; of the last hundred such ones."""
        with self._lock:
            if (before := self._queries.pop(query, None)) is None:
                return
            self._queries[query] = replace(before, ended="failed" if failed else "stopped")
            ended = [key for key, query_state in self._queries.items() if query_state.ended]
            for key in ended[:-_REMEMBERED]:
                del self._queries[key]

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus-client asks for them."""
        with self._lock:
            all_queries = list(self._queries.values())
        yield from _metrics(_OF_ALL, ["query"], [([query.name], query) for query in all_queries])
        queries = [query for query in all_queries if not query.ended]
        sources = [(query, number, source) for query in queries for number, source in enumerate(query.newest.sources)]
        yield from _metrics(_OF_QUERIES, ["query"], [([query.name], query) for query in queries])
        partitions = [
            ([query.name, str(number), source.kind, partition], lag)
            for query, number, source in sources
            for partition, lag in source.partitions.items()
        ]
        yield from _metrics(_OF_PARTITIONS, ["query", "source", "kind", "partition"], partitions)
        spools = [
            ([query.name, str(number), source.spool.spool], source.spool)
            for query, number, source in sources
            if source.spool is not None
        ]
        yield from _metrics(_OF_SPOOLS, ["query", "source", "spool"], spools)


@dataclass(frozen=True, slots=True)
class _Query:
    newest: Measurement
    started_ms: int
    rows: int = 0
    batches: int = 0
    batch_time_ms: int | None = None
    ended: str = ""

    @property
    def name(self) -> str:
        return _label(self.newest)

    @property
    def has_batch(self) -> bool:
        return self.newest.batch >= 0


def _label(measurement: Measurement) -> str:
    return measurement.name or measurement.query


T = TypeVar("T")
_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]
_Row = tuple[str, _Family, str, Callable[[T], float | None]]
"""Name, kind and help of a metric, and how it is read; None where there is no value."""


def _metrics(
    rows: Sequence[_Row[T]], labels: Sequence[str], measured: Sequence[tuple[Sequence[str], T]]
) -> Iterator[Metric]:
    for name, kind, text, read in rows:
        family = kind(_PREFIX + name, text, labels=labels)
        for values, measurement in measured:
            value = read(measurement)
            if value is not None:
                # Prometheus takes no text but UTF-8, and one other name would end all metrics.
                family.add_metric(
                    [value_text.encode(errors="backslashreplace").decode() for value_text in values], value
                )
        yield family


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
_OF_ALL: Final[Sequence[_Row[_Query]]] = (
    ("running", _GAUGE, "1 while the query runs, 0 once it has ended.", lambda query: float(not query.ended)),
    (
        "failed",
        _GAUGE,
        "1 once the query has ended with an error, until it is started again.",
        lambda query: float(query.ended == "failed"),
    ),
    (
        "started_timestamp_seconds",
        _GAUGE,
        "When this run of the query started, or was first seen.",
        lambda query: query.started_ms / 1000,
    ),
)
_OF_QUERIES: Final[Sequence[_Row[_Query]]] = (
    ("rows", _COUNTER, "Input rows since it is watched.", lambda query: query.rows),
    ("batches", _COUNTER, "Batches since it is watched.", lambda query: query.batches),
    (
        "bad_records",
        _COUNTER,
        "Records that split_bad_records wrote elsewhere, since the driver started.",
        lambda query: sum(bad_records_of(query.newest.query).values()),
    ),
    (
        "batch_seconds",
        _GAUGE,
        "How long the last batch took.",
        lambda query: query.newest.batch_ms / 1000 if query.has_batch else None,
    ),
    (
        "rows_per_second",
        _GAUGE,
        "Input rows a second in the last batch; 0 while the query is idle.",
        lambda query: query.newest.rows_per_second,
    ),
    ("batch", _GAUGE, "Id of the last batch.", lambda query: query.newest.batch if query.has_batch else None),
    (
        "reported_timestamp_seconds",
        _GAUGE,
        "When Spark last reported the start of the query, a batch or idleness.",
        lambda query: query.newest.time_ms / 1000,
    ),
    (
        "batch_timestamp_seconds",
        _GAUGE,
        "When the last batch ended.",
        lambda query: None if query.batch_time_ms is None else query.batch_time_ms / 1000,
    ),
)
_OF_PARTITIONS: Final[Sequence[_Row[PartitionLag]]] = (
    ("lag_records", _GAUGE, "Offsets between read and newest.", lambda lag: lag.records),
    (
        "lag_seconds",
        _GAUGE,
        "Age of the first record that is not read, which grows until the next batch ends.",
        lambda lag: lag.milliseconds / 1000,
    ),
)
_OF_SPOOLS: Final[Sequence[_Row[SpoolMeasurement]]] = (
    ("spool_bytes", _GAUGE, "Bytes of rows that are not committed.", lambda spool: spool.bytes),
    (
        "spool_oldest_unread_seconds",
        _GAUGE,
        "Age of the oldest message that is not committed; 0 once a query that waits has read all.",
        lambda spool: spool.oldest_unread_ms / 1000,
    ),
    (
        "spool_delivered",
        _COUNTER,
        "Messages admitted, with duplicates, since the spool was created.",
        lambda spool: spool.delivered,
    ),
    ("spool_duplicates", _COUNTER, "Duplicates dropped, since the spool was created.", lambda spool: spool.duplicates),
    ("spool_committed", _COUNTER, "Rows that Spark has committed.", lambda spool: spool.committed),
    (
        "spool_executor_fetchers",
        _GAUGE,
        "Fetchers that run beside executors; 0 where the driver or a program fetches.",
        lambda spool: len(spool.executor_fetchers),
    ),
)
