"""A side of bench/limit.py: a query into the noop sink whose triggers have an interval.

``_paced_side.py FORMAT``: a process and a Spark session of its own, which takes commands as `_kafka_side.py` does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from _kafka_side import end_with_group, serve, session
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

_LOOK_SECONDS = 1.0
_LONGEST_SECONDS = 120.0


class Query:
    """The query, and what it has read.

    Args:
        spark: the session.
        name: the format.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark, self._name = spark, name
        self._query: StreamingQuery | None = None
        self._batches: dict[int, int] = {}

    def start(self, options: Mapping[str, str], checkpoint: str, seconds: float) -> dict[str, Any]:
        """Start the query, with a trigger each so many seconds."""
        rows = self._spark.readStream.format(self._name).options(**options).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        self._query = writer.trigger(processingTime=f"{seconds:g} seconds").start()
        return {}

    def read(self, rows: int) -> dict[str, Any]:
        """Wait until batches have had so many rows since the last call; how many batches that were."""
        assert self._query is not None
        before, begin = dict(self._batches), time.monotonic()
        while sum(self._batches.values()) - sum(before.values()) < rows:
            time.sleep(_LOOK_SECONDS)
            if not self._query.isActive or time.monotonic() - begin > _LONGEST_SECONDS:
                raise RuntimeError(f"{self._batches} batches: {self._query.exception()}")
            # A report of an idle query has the number of the batch to come.
            reports = [each for each in self._query.recentProgress if each["numInputRows"]]
            self._batches |= {each["batchId"]: each["numInputRows"] for each in reports}
        return {"rows": sum(self._batches.values()) - sum(before.values()), "batches": len(self._batches) - len(before)}


def main(name: str) -> None:
    """Serve commands until the input ends."""
    query = Query(session(**{"spark.sql.shuffle.partitions": "2"}), name)
    serve({"start": query.start, "read": query.read})


if __name__ == "__main__":
    end_with_group(lambda: main(sys.argv[1]))
