"""`supervise` keeps a query running: after failures that pass by themselves it starts it again, others it explains.

    from connectors.observe import supervise

    supervise(lambda: writer.option("checkpointLocation", "...").start())  # writer: events.writeStream.format(...)

A restart goes on from the checkpoint, so it loses and doubles nothing that the sources and the sink do not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from connectors.core.errors import ConnectorError
from connectors.core.retry import Backoff
from connectors.observe.failure import add_last_note, full_text, own_error

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_LOST: Final = {
    "ExecutorLostFailure": "an executor was lost",
    "FetchFailed": "an executor was lost",
    "Python worker exited unexpectedly": "a Python process of Spark ended",
    "Python worker failed to connect back": "a Python process of Spark did not start in time",
    "java.io.EOFException": "a Python process of Spark ended",
    "java.net.SocketException": "a connection to a Python process broke",
}
"""The errors of Spark and Java, by their own names, for a process that was lost; a restart has a new one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a restart can help without a change by the user, the code of an error of this pack, and a sentence."""

    retryable: bool
    code: str
    why: str


def judge(text: str) -> Verdict:
    """Tell from the text of a failure, tracebacks included, whether a restart can help.

    An error of this pack decides, if there is one; else whether Spark lost a process. Everything else, such as an error
    of the user's own code, would come again.
    """
    if (own := own_error(text)) is not None:
        why = f"{own.code} {'passes by itself' if own.transient else 'needs a change'}: {own.said}"
        return Verdict(own.transient, own.code, why)
    for name, what in _LOST.items():
        if name in text:
            return Verdict(True, "", f"{what}; the checkpoint says where to go on")
    return Verdict(False, "", "the failure is none that is known to pass by itself, so a restart would meet it again")


def supervise(
    query_factory: Callable[[], StreamingQuery],
    *,
    max_restarts: int = 10,
    max_delay_seconds: float = 60.0,
    sleep: Callable[[float], object] = time.sleep,
) -> StreamingQuery:
    """Run a query until it ends without an error: it is stopped, or has read everything (AvailableNow).

    Args:
        query_factory: loads and starts the query, each time with the same checkpoint.
        max_restarts: give up after this many restarts in a row without reading a row. Rows, or a later batch than in
            the run before, reset the count.
        max_delay_seconds: the longest wait before a restart. The first wait is up to 1 s, and the bound doubles each
            time.
        sleep: waits.

    Returns:
        The query that has ended.

    Raises:
        PySparkException: what a restart cannot fix, with notes that say why and, last, what failed in one line; or
        ConnectorError: with the code ``SUPERVISE_GAVE_UP``, after `max_restarts`.
    """
    backoff = Backoff(initial_seconds=1.0, cap_seconds=max_delay_seconds)
    reached = -1
    while True:
        query: StreamingQuery | None = None
        try:
            query = query_factory()
            query.awaitTermination()
        except (PySparkException, ConnectorError) as error:
            verdict = judge(full_text(error))
            if not verdict.retryable:
                error.add_note(f"Not restarted: {verdict.why}")
                add_last_note(error)
                _log.error("[SUPERVISE_NOT_RESTARTED] %s", verdict.why)
                raise
            if query is not None:
                has_read, reached = _look(query, reached)
                if has_read:
                    backoff.reset()
            if backoff.failures >= max_restarts:
                raise ConnectorError(
                    "SUPERVISE_GAVE_UP",
                    f"The query failed {backoff.failures + 1} times and read no row in between; at last {verdict.why}",
                    f"max_restarts={max_restarts}",
                ) from error
        else:
            return query
        delay = backoff.next_delay_seconds()
        _log.warning("[SUPERVISE_RESTART] Restart %d in %.1f s: %s", backoff.failures, delay, verdict.why)
        sleep(delay)


def _look(query: StreamingQuery, before: int) -> tuple[bool, int]:
    """Return whether a run that has failed has read rows, and the id of its last batch or that of the runs before.

    Spark keeps its last 100 reports, and a query that waits for rows makes one every ten seconds: after a quarter of an
    hour its rows are in none of them. So a batch id above that of the runs before counts, too.
    """
    try:
        # Over Spark Connect a report holds no sum as an item; its attribute makes one.
        has_rows = any(progress.numInputRows for progress in query.recentProgress)
        last = query.lastProgress
    except Exception as error:  # noqa: BLE001 - py4j's and gRPC's errors of a server that is gone, which the verdict knows
        _log.warning("[SUPERVISE_NO_PROGRESS] It is unknown whether the query has read rows: %s", error)
        return False, before
    if last is None:
        return has_rows, before
    return has_rows or last.batchId > before, max(before, last.batchId)
