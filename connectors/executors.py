"""Fetching on the executors, where the one machine of the driver is too small.

    from connectors.executors import fetch_on_executors

    options = {"subscriptionId": "orders", "spoolLocation": "s3://bucket/spools/orders", "fetch": "external", ...}
    query = spark.readStream.format("pubsub").options(**options).load().writeStream...start()
    fetching = fetch_on_executors(spark, "pubsub", options, fetchers=8, query=query)

A job of Spark with one task for each fetcher, which lasts as long as the query. It runs the fetchers that the reader
would run on the driver; the reader only admits what they publish. See ``docs/how-to/fetch-on-executors.md``.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from connectors.core.errors import ConnectorError
from connectors.core.extras import extra_imports
from connectors.core.formats import spool_connector
from connectors.core.options.kinds import option_texts
from connectors.core.retry import Backoff, RetryPolicy
from connectors.observe.supervise import judge

with extra_imports("spool", "a spool"):
    from connectors.spool.fetching.external import fetch_in_task
    from connectors.spool.fetching.messages import FetchPlan, encode
    from connectors.spool.source.connector import SpoolConnector
    from connectors.spool.source.start import external_plans
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ExecutorFetching", "fetch_on_executors"]

_log = logging.getLogger(__name__)

_RESTARTS: Final = RetryPolicy(initial_seconds=1.0, cap_seconds=30.0, deadline_seconds=None)
_HEALTHY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.5
_TAG_BYTES: Final = 8
_ALLOCATION: Final = "spark.dynamicAllocation"


def fetch_on_executors(
    spark: SparkSession,
    source: str,
    options: Mapping[str, Any],
    *,
    fetchers: int | None = None,
    query: StreamingQuery | None = None,
) -> ExecutorFetching:
    """Fetch on the executors what a query with ``fetch=external`` reads; returns at once.

    Each fetcher takes a task slot for as long as it runs. A task or an executor that is lost is replaced, by Spark or
    by another job; what its fetcher held is redelivered, and dedup drops the duplicates.

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
    return ExecutorFetching(spark, spool_connector(source), options, fetchers, query)


class ExecutorFetching:
    """A job of fetchers, as `fetch_on_executors` starts it; a context manager that stops it."""

    def __init__(
        self,
        spark: SparkSession,
        connector: SpoolConnector[Any],
        options: Mapping[str, Any],
        fetchers: int | None,
        query: StreamingQuery | None,
    ) -> None:
        self._spark = spark
        self._is_classic = hasattr(spark, "_jsparkSession")
        self._connector = connector
        self._options = option_texts(options)
        self._fetchers = fetchers
        self._query = query
        self._tag = f"connectors-fetch-{secrets.token_hex(_TAG_BYTES)}"
        self._stopping = threading.Event()
        self._error: ConnectorError | None = None
        self._jobs = 0
        self._thread = threading.Thread(target=self._run, name="fetch-on-executors", daemon=True)
        self._thread.start()
        threading.Thread(target=self._end_with_query, name="fetch-until-end", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def error(self) -> ConnectorError | None:
        """Return the permanent error that ended it; None while it runs, and after any other end."""
        return self._error

    @property
    def jobs(self) -> int:
        """How many Spark jobs were started: more than one when Spark gave one up."""
        return self._jobs

    def stop(self) -> None:
        """End it: what the fetchers hold is published or handed back."""
        self._stopping.set()
        while self._thread.is_alive():
            # Repeated, because Spark does not know a job yet that is just being started.
            self._interrupt()
            self._thread.join(_POLL_SECONDS)

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait for the end, and return whether it came.

        Raises:
            ConnectorError: the permanent error that ended it.
        """
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def _end_with_query(self) -> None:
        while self._thread.is_alive() and not self._stopping.wait(_POLL_SECONDS):
            if self._query is not None and not _is_active(self._query):
                self.stop()

    def _interrupt(self) -> None:
        try:
            if self._is_classic:
                self._spark.sparkContext.cancelJobGroup(self._tag)
            else:
                self._spark.interruptTag(self._tag)
        except Exception as error:  # noqa: BLE001 - py4j's and gRPC's errors of a session that is gone
            _log.info("the job of fetchers cannot be interrupted: %s", error)

    def _run(self) -> None:
        try:
            plans = external_plans(self._connector, self._options, self._fetchers)
            if self._is_classic:
                # Not by a tag: in Spark Classic it means another one in each thread.
                self._spark.sparkContext.setJobGroup(self._tag, "fetchers of a stream")
            else:
                self._spark.addTag(self._tag)
            self._run_jobs(plans)
        except ConnectorError as error:
            _log.error("fetching on executors ends: %s", error)
            self._error = error

    def _run_jobs(self, plans: list[FetchPlan]) -> None:
        """Run a job, and another one when Spark gives it up or its fetchers saw no reader while the query runs."""
        tasks = plans[0].share_of // len(plans)
        if wanted := executors_wanted(self._spark.conf.get, tasks):
            _log.warning(
                "[FETCH_FEW_SLOTS] %d fetchers hold as many slots as dynamic allocation may leave, so batches may wait "
                "for an executor to start. Set spark.dynamicAllocation.minExecutors to %d or more, and one more if "
                "they are not to wait when an executor is lost.",
                tasks,
                wanted,
            )
        job = self._job(tasks, [encode(plan) for plan in plans])
        backoff = Backoff(_RESTARTS)
        while not self._stopping.is_set():
            began = time.monotonic()
            self._jobs += 1
            try:
                job.collect()
            except Exception as error:  # noqa: BLE001 - PySpark's and py4j's errors; it is judged by its text
                if self._stopping.is_set() or _is_stopped(self._spark):
                    return
                self._judge(error)
                if time.monotonic() - began > _HEALTHY_SECONDS:
                    backoff.reset()
            else:
                if self._query is None:
                    _log.warning("no query has written to the ledger for maxReaderAge: fetching on executors ends")
                    return
                # Its reader has written nothing for long. Whether the query has ended is seen to elsewhere.
                _log.warning("the fetchers saw no sign of the query's reader; they are started again")
            self._stopping.wait(backoff.next_delay_seconds())

    def _job(self, tasks: int, plans: list[bytes]) -> DataFrame:
        """Return a job with so many tasks, as a function on rows: that needs neither pandas nor an RDD."""
        from pyspark.sql.functions import udf  # noqa: PLC0415 - has to be that of the session, Classic or Connect

        def fetch(number: int) -> int:
            return fetch_in_task(number, plans)

        work = udf(fetch, "long", useArrow=False).asNondeterministic()
        rows = self._spark.range(0, tasks, 1, tasks)
        return rows.select(work("id").alias("done"))

    def _judge(self, error: Exception) -> None:
        """Log that another job is started; raise what no other job can fix."""
        verdict = judge(str(error))
        if not verdict.retryable:
            raise ConnectorError(
                verdict.code or "FETCH_JOB_FAILED",
                verdict.why if verdict.code else f"The job of fetchers failed: {_first_line(error)}",
                "fetch_on_executors",
                "Fix it, and call fetch_on_executors again.",
            ) from (None if verdict.code else error)
        _log.warning("Spark gave up the job of fetchers, and another one is started: %s", verdict.why)


def executors_wanted(setting: Callable[[str, str], str | None], fetchers: int) -> int:
    """Return how many executors dynamic allocation should keep, if it may keep only such as fetchers fill; else 0.

    Fetchers hold their slots, and executors that only short batches use are released: each batch would wait for a JVM.
    """
    cores = setting("spark.executor.cores", "")
    if setting(f"{_ALLOCATION}.enabled", "false") != "true" or not cores:
        return 0
    slots = max(int(cores) // int(setting("spark.task.cpus", "1") or 1), 1)
    least = int(setting(f"{_ALLOCATION}.minExecutors", "0") or 0)
    return fetchers // slots + 1 if least * slots <= fetchers else 0


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _is_active(query: StreamingQuery) -> bool:
    try:
        return bool(query.isActive)
    except Exception as error:  # noqa: BLE001 - py4j's and gRPC's errors of a session that is gone
        _log.info("the query cannot be asked any more: %s", error)
        return False


def _is_stopped(spark: SparkSession) -> bool:
    try:
        spark.range(1).schema  # noqa: B018 - asked of Spark
    except Exception as error:  # noqa: BLE001 - PySpark's errors, and py4j's of a gateway that is gone
        _log.info("the session has ended: %s", error)
        return True
    return False
