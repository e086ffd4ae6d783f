"""Metrics over HTTP, in OpenMetrics or Prometheus text, by prometheus-client; the extra ``observe``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

from connectors.core.errors import ConnectorError, OptionError, ServiceUnavailableError
from connectors.core.extras import install_command
from connectors.observe.lag import Measurement, SpoolMeasurement

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise ConnectorError(
        "OBSERVE_EXTRA_MISSING",
        "Metrics need the package prometheus-client",
        "port",
        f"Install the extra observe: {install_command('observe')}, or leave port out.",
    ) from None

__all__ = ["Exporter"]

_PREFIX: Final = "connectors_"
_LAST_PORT: Final = 65535


class Exporter(Collector):
    """Serves the newest measurement of each query.

    Args:
        port: to listen on; 0 for a free one.
        address: to listen on.

    Raises:
        OptionError: the port is none.
        ServiceUnavailableError: the port is taken, or the address is not one of this machine.
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        if not 0 <= port <= _LAST_PORT:
            raise OptionError(
                "OBSERVE_PORT",
                f"A port is from 0 to {_LAST_PORT}",
                str(port),
                "Choose another port, or 0 for a free one.",
            )
        self._lock = threading.Lock()
        self._newest: dict[str, Measurement] = {}
        self._rows: dict[str, int] = {}
        self._batches: dict[str, int] = {}
        self._batch_times: dict[str, int] = {}
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except (OSError, UnicodeError) as error:  # the last one: no name of a host
            raise ServiceUnavailableError(
                "OBSERVE_PORT",
                f"Metrics cannot be served: {getattr(error, 'strerror', None) or error}",
                f"{address}:{port}",
                "Choose another port, or 0 for a free one.",
            ) from None
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        """Where the metrics are."""

    def update(self, measurement: Measurement) -> None:
        """Take the measurement of a batch."""
        with self._lock:
            query = measurement.query
            self._newest[query] = measurement
            self._batch_times[query] = measurement.time_ms
            self._rows[query] = self._rows.get(query, 0) + measurement.rows
            self._batches[query] = self._batches.get(query, 0) + 1

    def idle(self, measurement: Measurement) -> None:
        """Take the measurement of a query that waits for data: its rows and batches are counted already."""
        with self._lock:
            self._newest[measurement.query] = measurement

    def forget(self, query: str) -> None:
        """A query has ended: what it was is served no more."""
        with self._lock:
            for each in (self._newest, self._rows, self._batches, self._batch_times):
                each.pop(query, None)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """The metrics, as prometheus-client asks for them."""
        with self._lock:
            newest = list(self._newest.values())
            rows, batches, times = dict(self._rows), dict(self._batches), dict(self._batch_times)
        yield from _of_queries(newest, rows, batches, times)
        yield from _of_sources(newest)
        yield from _of_spools(newest)


def _name(measurement: Measurement) -> str:
    return measurement.name or measurement.query


def _of_queries(
    newest: list[Measurement], rows: dict[str, int], batches: dict[str, int], batch_times: dict[str, int]
) -> Iterator[Metric]:
    rows_total = CounterMetricFamily(f"{_PREFIX}rows", "Input rows since it is watched.", labels=["query"])
    batches_total = CounterMetricFamily(f"{_PREFIX}batches", "Batches since it is watched.", labels=["query"])
    duration = GaugeMetricFamily(f"{_PREFIX}batch_seconds", "How long the last batch took.", labels=["query"])
    speed = GaugeMetricFamily(
        f"{_PREFIX}rows_per_second",
        "Input rows a second in the last batch; 0 while the query is idle.",
        labels=["query"],
    )
    number = GaugeMetricFamily(f"{_PREFIX}batch", "Id of the last batch.", labels=["query"])
    reported = GaugeMetricFamily(
        f"{_PREFIX}reported_timestamp_seconds", "When Spark last reported a batch or idleness.", labels=["query"]
    )
    ended = GaugeMetricFamily(f"{_PREFIX}batch_timestamp_seconds", "When the last batch ended.", labels=["query"])
    for each in newest:
        rows_total.add_metric([_name(each)], rows[each.query])
        batches_total.add_metric([_name(each)], batches[each.query])
        duration.add_metric([_name(each)], each.batch_ms / 1000)
        speed.add_metric([_name(each)], each.rows_per_second)
        number.add_metric([_name(each)], each.batch)
        reported.add_metric([_name(each)], each.time_ms / 1000)
        ended.add_metric([_name(each)], batch_times[each.query] / 1000)
    yield from (rows_total, batches_total, duration, speed, number, reported, ended)


def _of_sources(newest: list[Measurement]) -> Iterator[Metric]:
    labels = ["query", "source", "kind", "partition"]
    records = GaugeMetricFamily(f"{_PREFIX}lag_records", "Offsets between read and newest.", labels=labels)
    seconds = GaugeMetricFamily(
        f"{_PREFIX}lag_seconds", "Age, at least, of the first record that is not read.", labels=labels
    )
    for each in newest:
        for number, source in enumerate(each.sources):
            for partition, lag in source.partitions.items():
                values = [_name(each), str(number), source.kind, partition]
                if lag.records is not None:
                    records.add_metric(values, lag.records)
                seconds.add_metric(values, lag.milliseconds / 1000)
    yield from (records, seconds)


def _of_spools(newest: list[Measurement]) -> Iterator[Metric]:
    labels = ["query", "source", "spool"]
    found = [
        ([_name(each), str(number), source.spool.spool], source.spool)
        for each in newest
        for number, source in enumerate(each.sources)
        if source.spool is not None
    ]
    for name, (text, gauge_of) in _SPOOL_GAUGES.items():
        gauge = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
        for values, spool in found:
            gauge.add_metric(values, gauge_of(spool))
        yield gauge
    for name, (text, count_of) in _SPOOL_COUNTERS.items():
        counter = CounterMetricFamily(_PREFIX + name, text, labels=labels)
        for values, spool in found:
            counter.add_metric(values, count_of(spool))
        yield counter


_Reading = tuple[str, Callable[[SpoolMeasurement], float]]
_SPOOL_GAUGES: Final[dict[str, _Reading]] = {
    "spool_bytes": ("Bytes of rows that are not committed.", lambda spool: spool.bytes),
    "spool_oldest_unread_seconds": (
        "Age of the oldest message that is not committed.",
        lambda spool: spool.oldest_unread_ms / 1000,
    ),
}
_SPOOL_COUNTERS: Final[dict[str, _Reading]] = {
    "spool_delivered": (
        "Messages admitted, with duplicates, since the spool was created.",
        lambda spool: spool.delivered,
    ),
    "spool_duplicates": ("Duplicates dropped, since the spool was created.", lambda spool: spool.duplicates),
    "spool_committed": ("Rows that Spark has committed.", lambda spool: spool.committed),
}
