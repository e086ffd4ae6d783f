"""Fetching on the executors, for when the driver's machine is too small.

    from connectors.executors import fetch_on_executors

    options = {"subscriptionId": "orders", "spoolLocation": "s3://bucket/spools/orders", "fetch": "external", ...}
    query = spark.readStream.format("pubsub").options(**options).load().writeStream...start()
    fetching = fetch_on_executors(spark, "pubsub", options, fetchers=8, query=query)

See `fetch_on_executors` and ``docs/how-to/fetch-on-executors.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectors.core.errors import ConnectorError
from connectors.core.formats import extra_imports, spool_connector
from connectors.observe.supervise import judge

with extra_imports("spool", "a spool"):
    from connectors.spool.executors import ExecutorFetching, FetcherPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ExecutorFetching", "FetcherPlace", "fetch_on_executors"]

_log = logging.getLogger(__name__)


def fetch_on_executors(
    spark: SparkSession,
    source: str,
    options: Mapping[str, Any],
    *,
    fetchers: int | None = None,
    query: StreamingQuery | None = None,
) -> ExecutorFetching:
    """Fetch on the executors what a query with ``fetch=external`` reads; returns at once.

    A fetcher is a process beside an executor. A short task starts it, so it holds no slot, and it ends with its
    executor. A lost one is started again elsewhere; what it held is redelivered, and dedup drops the duplicates.

    Args:
        spark: the session, of Spark Classic or Connect.
        source: the format, such as ``pubsub``; or ``MODULE:CLASS`` of another `SpoolConnector`.
        options: those of the query, ``fetch=external`` among them.
        fetchers: how many of each subscription; None for what the option ``fetchers`` says. A subscription with
            message ordering has one.
        query: the query; when it ends, so does fetching. Without it fetching ends with `ExecutorFetching.stop`, with
            the session, and by itself when the ledger had no new record for ``maxReaderAge``.

    Raises:
        OptionError: the format is unknown or has no fetchers.
    """
    return ExecutorFetching(spark, spool_connector(source), options, fetchers, query, _judge)


def _judge(error: Exception) -> None:
    """Log that fetchers are started again; raise what no other start can fix."""
    verdict = judge(str(error))
    if isinstance(error, ConnectorError) and not error.transient:
        raise error
    if not verdict.retryable:
        first_line = str(error).strip().partition("\n")[0]
        raise ConnectorError(
            verdict.code or "FETCH_JOB_FAILED",
            verdict.why if verdict.code else f"The job that starts fetchers failed: {first_line}",
            "fetch_on_executors",
            "Fix it, and call fetch_on_executors again.",
        ) from (None if verdict.code else error)
    _log.warning("fetchers have failed, and are restarted: %s", verdict.why)
