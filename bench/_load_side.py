"""A side of bench/latency_under_load.py: a query whose rows begin with the time at which they were sent.

``_load_side.py FORMAT KIND``: a process and a Spark session of its own, which takes commands as `_kafka_side.py` does.
``KIND`` is ``plain``, ``async`` (asynchronous progress tracking) or ``stateful`` (``dropDuplicatesWithinWatermark`` by
the number that each row has, in RocksDB). The sink is foreachBatch with toArrow.

Spark allows asynchronous progress tracking for a few sinks only, and foreachBatch is none of them: it does not repeat a
batch under its old number after a restart. A setting inside of Spark lets it be measured nevertheless.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from _kafka_side import end_with_group, serve, session, steps_of
from _ready_rows import stamps
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery

PLAIN, ASYNC, STATEFUL = "plain", "async", "stateful"
_WATERMARK = "10 seconds"
_FIRST_ROWS_SECONDS = 120.0
_LOOK_SECONDS = 0.05
_ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_ASYNC = {"asyncProgressTrackingEnabled": "true", "_asyncProgressTrackingOverrideSinkSupportCheck": "true"}


class Query:
    """The query, and when its rows came.

    Args:
        spark: the session.
        name: the format.
        kind: what of the kinds above.
    """

    def __init__(self, spark: SparkSession, name: str, kind: str) -> None:
        self._spark, self._name, self._kind = spark, name, kind
        self._found: list[tuple[int, np.ndarray]] = []
        self._arrived = threading.Condition()
        self._query: StreamingQuery | None = None
        self._column = ""

    def _sink(self, rows: DataFrame, _batch: int) -> None:
        values = rows.select(self._column).toArrow().column(0)
        now = time.time_ns()
        with self._arrived:
            self._found.append((now, stamps(values)))
            self._arrived.notify_all()

    def start(self, options: Mapping[str, str], checkpoint: str, column: str, event_time: str) -> dict[str, Any]:
        """Start the query.

        Args:
            options: of the source.
            checkpoint: its folder.
            column: the one with the payload.
            event_time: the one that the watermark follows.
        """
        self._column = column
        frame = self._spark.readStream.format(self._name).options(**options).load()
        if self._kind == STATEFUL:
            numbered = frame.select(column, event_time, sf.substring(column, 9, 8).alias("number"))
            frame = numbered.withWatermark(event_time, _WATERMARK).dropDuplicatesWithinWatermark(["number"])
        writer = frame.writeStream.foreachBatch(self._sink).option("checkpointLocation", checkpoint)
        self._query = writer.options(**(_ASYNC if self._kind == ASYNC else {})).start()
        return {}

    def first(self) -> dict[str, Any]:
        """Wait for the first rows."""
        self._wait(lambda: bool(self._found), _FIRST_ROWS_SECONDS)
        if not self._found:
            raise RuntimeError(f"no row came in {_FIRST_ROWS_SECONDS:g} s")
        return {}

    def arrivals(self, begin: int, end: int, count: int, patience: float) -> dict[str, Any]:
        """The latencies (ms) of the rows that were sent in this span; waits for `count` of them, or so many seconds."""
        self._wait(lambda: sum(map(len, self._late(begin, end))) >= count, patience)
        late = np.concatenate([np.empty(0), *self._late(begin, end)]) / 1e6
        with self._arrived:
            del self._found[:]
        if not len(late):
            raise RuntimeError("no row of the span came")
        assert self._query is not None
        progress = [each for each in self._query.recentProgress[-50:] if each["numInputRows"]]
        p50, p99 = np.percentile(late, (50, 99))
        return {"rows": len(late), "p50": float(p50), "p99": float(p99), "steps": steps_of(progress[-10:])}

    def _late(self, begin: int, end: int) -> list[np.ndarray]:
        with self._arrived:
            return [now - sent[(sent >= begin) & (sent < end)] for now, sent in self._found]

    def _wait(self, condition: Any, seconds: float) -> None:
        assert self._query is not None
        give_up_at = time.monotonic() + seconds
        while not condition() and time.monotonic() < give_up_at:
            with self._arrived:
                self._arrived.wait(_LOOK_SECONDS)
            if not self._query.isActive:
                raise RuntimeError(f"the query ended: {self._query.exception()}")


def main(name: str, kind: str) -> None:
    """Serve commands until the input ends."""
    stateful = {"spark.sql.streaming.stateStore.providerClass": _ROCKS_DB} if kind == STATEFUL else {}
    query = Query(session(**{"spark.sql.shuffle.partitions": "2", **stateful}), name, kind)
    serve({"start": query.start, "first": query.first, "arrivals": query.arrivals})


if __name__ == "__main__":
    end_with_group(lambda: main(*sys.argv[1:]))
