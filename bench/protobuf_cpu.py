"""Processor time for each message of from_protobuf and to_protobuf, in the JVM and in Python, on one version of Spark.

``./dev --spark 4.0 bench protobuf_cpu``, and the same on 4.3, compare the ways without and with Arrow functions. The
message is that of bench/protobuf.py, in batches of 10,000; reading the cached rows is a part of it.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from _common import Benchmark, interleaved, parser
from protobuf import BATCH, detached, events, frame_of, session
from pyspark.sql import DataFrame

from connectors.protobuf import from_protobuf, to_protobuf
from tests.support.spark_protocol.driver import descendants
from tools.protos import SOURCES, compile_set

_TICK = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> float:
    """Return what this process and all below it have used."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in _processes())
    return sum(int(found[11]) + int(found[12]) for found in fields) / _TICK


def _processes() -> list[int]:
    return [os.getpid(), *descendants(os.getpid())]


def cost(frame: DataFrame, column: Any, count: int) -> float:
    """Return microseconds for a message, to a sink that drops them."""
    begin = processor_seconds()
    frame.select(column.alias("out")).write.format("noop").mode("overwrite").save()
    return (processor_seconds() - begin) / count * 1e6


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__ or "")
    made.add_argument("--messages", type=int, default=400_000)
    options = made.parse_args()
    bench = Benchmark("protobuf_cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "event.desc")
        compile_set(SOURCES / "event.proto", Path(path), SOURCES)
        spark = session()
        bench.settings(rounds=options.rounds, messages=options.messages, spark=spark.version)
        frame = frame_of(spark, events(BATCH, path), options.messages // BATCH)
        decode, encode = from_protobuf("value", "Event", path), to_protobuf("event", "Event", path)
        structs = detached(spark, frame.select(decode.alias("event")))
        sides = {"decode": (frame, decode), "encode": (structs, encode)}
        for case, (rows, column) in sides.items():
            cost(rows, column, frame.count())  # starts the workers, and has the JVM compile
            [side] = interleaved({spark.version: partial(cost, rows, column, frame.count())}, options.rounds)
            bench.show(case, side, "us of processor time a message")
        spark.stop()
    bench.finish()


if __name__ == "__main__":
    main()
