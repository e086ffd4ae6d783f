"""A session in bench/many_streams.py that starts streams, and says when each had its row, and what that time went into.

A process and a Spark session of its own, which takes commands as `_kafka_side.py` does. The sink of each stream is
foreachBatch with toArrow.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from _kafka_side import end_with_group, serve, session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

_PATIENCE_SECONDS = 240.0
_LOOK_SECONDS = 0.1


class Streams:
    """The streams of a session.

    Args:
        spark: the session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._seen: dict[int, float] = {}
        self._lock = threading.Lock()

    def start(self, name: str, options: Sequence[Mapping[str, str]], checkpoints: str, at_once: int) -> dict[str, Any]:
        """Start a stream for each of some options, and wait until each has a row or has ended.

        Args:
            name: the format.
            options: of each source.
            checkpoints: the folder of their checkpoints.
            at_once: so many are started before their rows are waited for.
        """
        begin = time.monotonic()
        queries: list[StreamingQuery] = []
        for number, each in enumerate(options):
            queries.append(self._started(number, name, each, checkpoints))
            if len(queries) % at_once == 0 or len(queries) == len(options):
                self._wait_for_rows(queries)
        with self._lock:
            rows_after = [self._seen[number] - begin for number in sorted(self._seen)]
        ended = [str(query.exception())[:500] for query in queries if not query.isActive]
        return {"rows_after": rows_after, "ended": ended}

    def first(self, name: str, options: Mapping[str, str], checkpoint: str) -> dict[str, float]:
        """Seconds that a stream takes from `load()` to its first rows, by stages; it is stopped then.

        Args:
            name: the format.
            options: of the source.
            checkpoint: the folder of its checkpoint.
        """
        at: dict[str, float] = {}
        came = threading.Event()

        def sink(rows: DataFrame, _batch: int) -> None:
            called = time.time()
            if not came.is_set() and rows.toArrow().num_rows:
                at.update(called=called, rows=time.time())
                came.set()

        before = time.time()
        frame = self._spark.readStream.format(name).options(**options).load()
        began = time.time()
        query = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint).start()
        if not came.wait(_PATIENCE_SECONDS):
            raise RuntimeError(f"no row came; {query.exception()}")
        while not (batches := [each for each in query.recentProgress if each.numInputRows]):
            time.sleep(_LOOK_SECONDS)
        query.stop()
        trigger = dt.datetime.fromisoformat(batches[0].timestamp).timestamp()
        planned = trigger + batches[0].durationMs["latestOffset"] / 1000
        return {
            "load()": began - before,
            "start() to the trigger with rows": trigger - began,
            "latestOffset": planned - trigger,
            "to foreachBatch": at["called"] - planned,
            "in it to the rows": at["rows"] - at["called"],
            "start() to the rows": at["rows"] - began,
        }

    def _wait_for_rows(self, queries: Sequence[StreamingQuery]) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            with self._lock:
                waiting = [query for number, query in enumerate(queries) if number not in self._seen]
            if not any(query.isActive for query in waiting):
                break
            time.sleep(_LOOK_SECONDS)

    def _started(self, number: int, name: str, options: Mapping[str, str], checkpoints: str) -> StreamingQuery:
        def sink(rows: DataFrame, _batch: int) -> None:
            if rows.toArrow().num_rows:
                with self._lock:
                    self._seen.setdefault(number, time.monotonic())

        frame = self._spark.readStream.format(name).options(**options).load()
        writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", f"{checkpoints}/{number}")
        return writer.start()


def main() -> None:
    """Serve commands until the input ends."""
    streams = Streams(session())
    serve({"start": streams.start, "first": streams.first})


if __name__ == "__main__":
    end_with_group(main)
