"""The reference page of the metrics, and of the lines in an observer's file, from what `connectors.observe` makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from connectors.observe.lag import Measurement, PartitionLag, SourceMeasurement, SpoolMeasurement
from connectors.observe.prometheus import Exporter

__all__ = ["metrics_page"]

_HEAD: Final = """\
# Metrics

Generated from the code by `./dev docs`. What they mean for each source, and how to switch them on:
[see how far a stream is behind](../how-to/observe.md). [Alerts](../how-to/alerts.md) and a dashboard come with the
repository.

## In Prometheus

`watch(spark, port=9464)` serves them in OpenMetrics. A metric that has no value, such as the lag in records of Kinesis,
is absent, as is all that a first batch gives before there is one. A query that has ended keeps the first three, as long
as its driver runs."""
_LABELS: Final = {
    "query": "the name of the query, or its id if it has no name",
    "source": "the number of the source in the query, from 0",
    "kind": "`kafka_py`, `kinesis`, `spool` for a source that reads a spool, or `unknown`",
    "partition": "topic and partition of Kafka, stream and shard of Kinesis; empty for a spool",
    "spool": "the id of the spool",
}
_UNITS: Final = {
    "running": "none",
    "failed": "none",
    "started_timestamp_seconds": "seconds since 1970",
    "rows": "rows",
    "batches": "batches",
    "bad_records": "records",
    "batch_seconds": "seconds",
    "rows_per_second": "rows per second",
    "batch": "none",
    "reported_timestamp_seconds": "seconds since 1970",
    "batch_timestamp_seconds": "seconds since 1970",
    "lag_records": "records",
    "lag_seconds": "seconds",
    "spool_bytes": "bytes",
    "spool_oldest_unread_seconds": "seconds",
    "spool_delivered": "messages",
    "spool_duplicates": "messages",
    "spool_committed": "rows",
    "spool_executor_fetchers": "fetchers",
}
_FILE: Final = """\
## In the file

`watch(spark, file="orders.jsonl")` writes one JSON object a line. All have `v`, which is 1, `event` and `time_ms`, the
time in milliseconds since 1970.

| event | when | further fields |
|---|---|---|
| `started` | a query has started, or ran already when `watch` was called | `query`, `run`, `name` |
| `progress` | a batch is over | those below |
| `idle` | the query waits for data; about every 10 seconds | `query`, `run` |
| `terminated` | the query has ended | `query`, `run`, `exception`: null, or the whole error |
| `subscription_deleted`, `subscription_kept` | with `deleteSubscriptions`, at the end of a query | `subscription` |"""
_FIELDS: Final[dict[type, tuple[str, dict[str, str]]]] = {
    Measurement: (
        "Of `progress`",
        {
            "time_ms": "when Spark reported the batch, in milliseconds since 1970",
            "query": "the id of the query, which a restart does not change",
            "run": "the id of this run of the query",
            "name": "the name of the query; empty if it has none",
            "batch": "the id of the batch",
            "rows": "input rows of the batch",
            "batch_ms": "how long the batch took, in milliseconds",
            "rows_per_second": "input rows per second of the batch",
            "sources": "an object for each source",
        },
    ),
    SourceMeasurement: (
        "Of each of its `sources`",
        {
            "kind": "as the label `kind`",
            "rows": "input rows of the batch from this source",
            "records": "lag of all partitions in records; null if unknown",
            "milliseconds": "the largest lag in time, in milliseconds",
            "partitions": "the lag of each partition or shard",
            "spool": "the spool, if it is watched; else null",
            "metrics": "for Kafka, [the metrics of Spark's own source](../how-to/observe.md), as texts; else empty",
        },
    ),
    PartitionLag: (
        "Of each of its `partitions`",
        {
            "records": "lag in records; null if unknown",
            "milliseconds": "lag in time: the age of the first unread record, in milliseconds",
        },
    ),
    SpoolMeasurement: (
        "Of its `spool`",
        {
            "spool": "the id of the spool",
            "sources": "the subscriptions that fill it",
            "delivered": "messages admitted since the spool was created, with duplicates",
            "duplicates": "of these, duplicates that were dropped",
            "rows": "rows in the spool since it was created",
            "committed": "of these, rows that Spark has committed",
            "bytes": "bytes of rows that are not committed",
            "oldest_unread_ms": "age of the oldest message that is not committed, in milliseconds; 0 if there is none",
            "fetched_per_second": "messages fetched per second since the last reading; null at the first",
            "admitted_per_second": "messages admitted per second",
            "kept_per_second": "of these, messages that were no duplicates",
            "committed_per_second": "rows committed per second",
            "executor_fetchers": "where each fetcher of `fetch_on_executors` runs: number, host, executor, pid",
        },
    ),
}


def metrics_page() -> str:
    """Return the page.

    Raises:
        ValueError: a metric has no unit here, or a field no meaning.
    """
    return "\n\n".join([_HEAD, "\n".join(_metrics()), _FILE, *_objects()]) + "\n"


def _metrics() -> Iterator[str]:
    """Yield the rows of both tables, from what an exporter serves of a query with all there is."""
    spool = SpoolMeasurement("s", (), 2, 1, 1, 0, 1, 1)
    source = SourceMeasurement("spool", 1, 1, 1, {"": PartitionLag(1, 1)}, spool)
    exporter = Exporter(0)
    try:
        exporter.update(Measurement(1, "q", "r", "", 1, 1, 1, 1.0, (source,)))
        families = list(exporter.collect())
    finally:
        exporter.close()
    names = {family.name.removeprefix("connectors_") for family in families}
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    if names != set(_UNITS) or labels != set(_LABELS):
        raise ValueError(f"tools/reference_metrics.py: {sorted(names ^ set(_UNITS) | labels ^ set(_LABELS))}")
    yield "| metric | type | labels | unit | meaning |"
    yield "|---|---|---|---|---|"
    for family in families:
        [sample] = family.samples
        shown = ", ".join(f"`{label}`" for label in sample.labels)
        unit = _UNITS[family.name.removeprefix("connectors_")]
        yield f"| `{sample.name}` | {family.type} | {shown} | {unit} | {family.documentation} |"
    yield ""
    yield "| label | |"
    yield "|---|---|"
    yield from (f"| `{label}` | {text} |" for label, text in _LABELS.items())


def _objects() -> Iterator[str]:
    for kind, (title, meanings) in _FIELDS.items():
        declared = {field.name: str(field.type) for field in fields(kind)}
        if set(declared) != set(meanings):
            raise ValueError(f"tools/reference_metrics.py: {kind.__name__}: {sorted(set(declared) ^ set(meanings))}")
        rows = [f"| `{name}` | {_json_type(declared[name])} | {text} |" for name, text in meanings.items()]
        yield "\n".join([f"{title}:", "", "| field | type | |", "|---|---|---|", *rows])


def _json_type(annotation: str) -> str:
    """Return what JSON calls a type; all annotations are texts, as postponed ones are."""
    nullable = annotation.endswith(" | None")
    name = annotation.removesuffix(" | None").partition("[")[0]
    known = {"int": "integer", "float": "number", "str": "string", "tuple": "array", "dict": "object"}
    return known.get(name, "object") + (" or null" if nullable else "")
