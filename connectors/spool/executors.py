"""Keeps the fetchers of a stream running beside the executors; `connectors.executors` has the public names.

The driver's side: it looks which fetchers live, and starts those that do not by short Spark jobs.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from connectors.core.errors import ConnectorError, ServiceUnavailableError, error_from_json
from connectors.core.options.kinds import option_texts
from connectors.core.processes.spark import classic_context, executor_hosts
from connectors.core.retry import Backoff, WaitLog
from connectors.spool.fetching.detached import DECLINED, FAILED, STARTED, start_in_task
from connectors.spool.fetching.messages import FetchPlan, encode
from connectors.spool.fetching.placement import Place, Placement, beat_seconds
from connectors.spool.source.connector import SpoolConnector
from connectors.spool.source.start import external_plans
from connectors.spool.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

_HEALTHY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.5
_END_SECONDS: Final = 15.0
"""A fetcher has ended 10 s after it was not wanted any more, which it sees some seconds later."""
_TAG_BYTES: Final = 8
_MOST: Final = 1 << 30
_ALLOCATION: Final = "spark.dynamicAllocation"


@dataclass(frozen=True, slots=True)
class FetcherPlace:
    """Where one of the fetchers runs.

    Attributes:
        number: of the fetcher, from 0.
        host: the name of the machine.
        executor: the id that Spark gives the executor; ``driver`` in local mode; empty if it is not known.
        pid: of the process there.
        starts: how often the fetcher was started.
        healthy: all its streams are open, and nothing is wrong.
    """

    number: int
    host: str
    executor: str
    pid: int
    starts: int
    healthy: bool


class ExecutorFetching:
    """The fetchers of a stream, as `fetch_on_executors` starts them; a context manager that stops them.

    `judge` raises the errors of a fetcher or a job that a restart cannot fix.

    Attributes:
        error: the permanent error that ended it; None while it runs, and after any other end.
    """

    def __init__(
        self,
        spark: SparkSession,
        connector: SpoolConnector[Any],
        options: Mapping[str, Any],
        fetchers: int | None,
        query: StreamingQuery | None,
        judge: Callable[[Exception], None],
    ) -> None:
        self._jobs_of_spark = _Jobs(spark)
        self._connector = connector
        self._options = option_texts(options)
        self._fetchers = fetchers
        self._query = query
        self._judge = judge
        self._stopping = threading.Event()
        self.error: ConnectorError | None = None
        self._places: tuple[FetcherPlace, ...] = ()
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
    def jobs(self) -> int:
        """How many short Spark jobs were run to start fetchers."""
        return self._jobs_of_spark.count

    def status(self) -> tuple[FetcherPlace, ...]:
        """Return where the fetchers run, those that live; from memory, some seconds old."""
        return self._places

    def stop(self) -> None:
        """End it: what the fetchers hold is published or handed back."""
        self._stopping.set()
        while self._thread.is_alive():
            # Repeated, because Spark does not know a job yet that is just being started.
            self._jobs_of_spark.interrupt()
            self._thread.join(_POLL_SECONDS)

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait for the end, and return whether it came.

        Raises:
            ConnectorError: the permanent error that ended it.
        """
        self._thread.join(timeout)
        if self.error is not None:
            raise self.error
        return not self._thread.is_alive()

    def _end_with_query(self) -> None:
        while self._thread.is_alive() and not self._stopping.wait(_POLL_SECONDS):
            if self._query is not None and not _is_active(self._query):
                self.stop()

    def _run(self) -> None:
        try:
            plans = external_plans(self._connector, self._options, self._fetchers)
            self._jobs_of_spark.mark()
            self._keep_running(plans)
        except ConnectorError as error:
            _log.error("fetching on executors ends: %s", error)
            self.error = error

    def _keep_running(self, plans: Sequence[FetchPlan]) -> None:
        count = plans[0].share_of // len(plans)
        if wanted := executors_wanted(self._jobs_of_spark.setting, count):
            _log.warning(
                "[FETCH_FEW_EXECUTORS] Dynamic allocation releases executors that run no task, and with them their "
                "fetchers. Set spark.dynamicAllocation.minExecutors to %d for %d fetchers, or at least to 1.",
                wanted,
                count,
            )
        placement = Placement(open_store(plans[0].root, "", plans[0].store_access), count)
        ended = threading.Event()
        beat = threading.Thread(target=_announce, args=(placement, ended), name="fetch-beat", daemon=True)
        beat.start()
        try:
            _tried(placement.announce)
            _tried(placement.forget_others)
            self._keep_placed(placement, [encode(plan) for plan in plans], count)
        finally:
            ended.set()
            beat.join()
            self._places = ()
            _tried(lambda: placement.end(_END_SECONDS))

    def _keep_placed(self, placement: Placement, plans: Sequence[bytes], count: int) -> None:
        """Look which fetchers live, and start those that do not, until it is time to end."""
        backoff, spread = Backoff(initial_seconds=1.0, cap_seconds=30.0), FetcherSpread(count)
        quiet_since = time.monotonic()
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = beat_seconds(placement.store)
            try:
                places = placement.look()
                missing = placement.missing(places)
            except (OSError, ServiceUnavailableError) as error:
                _log.warning("the spool cannot be read now, and is tried again: %s", error)
                continue
            gone = {number for number, _ in missing}
            self._places = tuple(_public(place) for place in places if place.number not in gone)
            if self._is_over(places):
                return
            if not missing:
                if time.monotonic() - quiet_since > _HEALTHY_SECONDS:
                    backoff.reset()
                continue
            quiet_since = time.monotonic()
            if not _tried(placement.announce):
                continue
            failed = self._start(placement, spread, missing, plans)
            if failed is None:
                return
            pause = backoff.next_delay_seconds() if failed or any(place.ended for place in places) else _POLL_SECONDS

    def _is_over(self, places: Sequence[Place]) -> bool:
        """Return whether there is nothing to fetch for any more; raise what no other start can fix."""
        for place in places:
            if place.error is not None:
                self._judge(place.error)
        if any(place.readerless for place in places):
            if self._query is None:
                _log.warning("no query has written to the ledger for maxReaderAge: fetching on executors ends")
                return True
            # Its reader has written nothing for long. Whether the query has ended is seen to elsewhere.
            _log.warning("the fetchers saw no sign of the query's reader, and are restarted")
        return False

    def _start(
        self, placement: Placement, spread: FetcherSpread, missing: Sequence[tuple[int, int]], plans: Sequence[bytes]
    ) -> bool | None:
        """Run a job that starts what is missing; return whether something failed, None if it is time to end."""
        limits = spread.limits(*self._jobs_of_spark.executors())
        orders = [{"job": placement.job, "number": number, "round": round_, **limits} for number, round_ in missing]
        try:
            answers = self._jobs_of_spark.run(orders, plans)
        except Exception as error:  # noqa: BLE001 - PySpark's and py4j's errors; it is judged by its text
            if self._stopping.is_set() or self._jobs_of_spark.session_is_stopped():
                return None
            self._judge(error)
            return True
        spread.see([answer["outcome"] for answer in answers])
        errors = [error_from_json(answer["error"]) for answer in answers if answer["outcome"] == FAILED]
        for failure in errors:
            self._judge(failure)
        return bool(errors)


class _Jobs:
    """The short jobs that start fetchers, in a session of Spark Classic or Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._is_classic = classic_context(spark) is not None
        self._tag = f"connectors-fetch-{secrets.token_hex(_TAG_BYTES)}"
        self.count = 0

    def mark(self) -> None:
        """Let `interrupt` find the jobs of this thread."""
        if self._is_classic:
            # Not by a tag: in Spark Classic it means another one in each thread.
            self._spark.sparkContext.setJobGroup(self._tag, "start fetchers of a stream")
        else:
            self._spark.addTag(self._tag)

    def interrupt(self) -> None:
        try:
            if self._is_classic:
                self._spark.sparkContext.cancelJobGroup(self._tag)
            else:
                self._spark.interruptTag(self._tag)
        except Exception as error:  # noqa: BLE001 - py4j's and gRPC's errors of a session that is gone
            _log.info("the job of fetchers cannot be interrupted: %s", error)

    def run(self, orders: Sequence[Mapping[str, Any]], plans: Sequence[bytes]) -> list[dict[str, Any]]:
        """Run a task for each order and return the answers. A function on rows needs neither pandas nor an RDD."""
        from pyspark.sql.functions import udf  # noqa: PLC0415 - has to be that of the session, Classic or Connect

        def start(number: int) -> str:
            return start_in_task(orders[number], plans)

        self.count += 1
        work = udf(start, "string", useArrow=False).asNondeterministic()
        rows = self._spark.range(0, len(orders), 1, len(orders))
        ended = threading.Event()
        threading.Thread(target=_log_wait, args=(len(orders), ended), name="fetch-wait", daemon=True).start()
        try:
            return [json.loads(row["answer"]) for row in rows.select(work("id").alias("answer")).collect()]
        finally:
            ended.set()

    def setting(self, name: str, default: str) -> str | None:
        return self._spark.conf.get(name, default)

    def executors(self) -> tuple[int, int]:
        """Return how many executors there are, and on how many hosts; 0 where only Spark Connect could say it."""
        if not self._is_classic:
            return 0, 0
        try:
            hosts = executor_hosts(self._spark.sparkContext)
            # The driver is among them; not by its block manager, since py4j cannot see all its classes.
            driver = self.setting("spark.driver.host", "")
            if len(hosts) > 1 and driver in hosts:
                hosts.remove(driver)
            return len(hosts), len(set(hosts))
        except Exception as error:  # noqa: BLE001 - py4j's errors, of a session that is gone
            _log.info("Spark cannot be asked for its executors: %s", error)
            return 0, 0

    def session_is_stopped(self) -> bool:
        try:
            self._spark.range(1).schema  # noqa: B018 - asked of Spark
        except Exception as error:  # noqa: BLE001 - PySpark's errors, and py4j's of a gateway that is gone
            _log.info("the session has ended: %s", error)
            return True
        return False


class FetcherSpread:
    """How many fetchers may run in one place, so that they spread over hosts and executors.

    Those that are left would be declined for ever where no other place has a slot; so a place may have one more after
    each job that started none.
    """

    def __init__(self, fetchers: int) -> None:
        self._fetchers = fetchers
        self._more = 0

    def limits(self, executors: int, hosts: int) -> dict[str, int]:
        """Return how many fetchers may be beside an executor, and on a machine; counts are 0 if they are not known."""
        return {"at_executor": self._most(executors), "on_machine": self._most(hosts)}

    def see(self, outcomes: Sequence[str]) -> None:
        if STARTED in outcomes:
            self._more = 0
        elif DECLINED in outcomes:
            self._more += 1

    def _most(self, places: int) -> int:
        return -(-self._fetchers // places) + self._more if places else _MOST


def _announce(placement: Placement, ended: threading.Event) -> None:
    while not ended.wait(beat_seconds(placement.store)):
        _tried(placement.announce)


def _log_wait(tasks: int, ended: threading.Event) -> None:
    """Say in the log when a job finds no slot for long."""
    log = WaitLog(lambda: f"short tasks that start {tasks} fetchers; each needs a slot for some seconds")
    while not ended.wait(_POLL_SECONDS):
        log.tick()


def _tried(call: Callable[[], None]) -> bool:
    try:
        call()
    except (OSError, ServiceUnavailableError) as error:
        _log.warning("the spool does not respond now, and is tried again: %s", error)
        return False
    return True


def _public(place: Place) -> FetcherPlace:
    return FetcherPlace(
        place.number, place.holder.host, place.executor, place.holder.pid, place.round + 1, place.healthy
    )


def executors_wanted(setting: Callable[[str, str], str | None], fetchers: int) -> int:
    """Return how many executors dynamic allocation should keep for fetchers, if it may release all; else 0.

    A fetcher is no task: an executor with fetchers and without tasks is idle.
    """
    if setting(f"{_ALLOCATION}.enabled", "false") != "true":
        return 0
    return fetchers if int(setting(f"{_ALLOCATION}.minExecutors", "0") or 0) == 0 else 0


def _is_active(query: StreamingQuery) -> bool:
    try:
        return bool(query.isActive)
    except Exception as error:  # noqa: BLE001 - py4j's and gRPC's errors of a session that is gone
        _log.info("the query can no longer be asked: %s", error)
        return False
