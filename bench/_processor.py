"""Processor time by kind of process: on a machine that others use too it tells more than the wall clock does.

The kinds are told by the command lines of the processes below this one: Spark's JVM, its Python processes, our fetchers
and the servers of the benchmarks. A process that ends within a measurement is counted with what its parent gathered for
it (proc(5), cutime and cstime), as `children of` its parent's kind.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.support.spark_protocol.driver import descendants

__all__ = ["ProcessorMeter", "shares"]

_LEAST_SHOWN = 0.005
_TICKS = os.sysconf("SC_CLK_TCK")
_KINDS = (
    ("canned_pubsub", "server"),
    ("connectors.testing.pubsub", "server"),
    ("connectors.testing.kafka", "server"),
    ("tests.servers", "server"),
    ("kafka.Kafka", "server"),
    ("connectors.testing.kinesis", "server"),
    ("emulator", "server"),
    ("connectors.spool.fetching.process", "fetchers"),
    ("source_runner", "source process"),
    ("pyspark.daemon", "workers"),
    ("pyspark/daemon", "workers"),
    ("_pubsub_latency.py", "publisher"),
    ("_pubsub_query.py", "query's Python"),
    ("_kafka_side.py", "query's Python"),
    ("org.apache.spark", "JVM"),
)
"""What a command line has in it, and what such a process is; the first that fits."""


class ProcessorMeter:
    """Processor time of the processes below this one, since `begin`."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[str, float, float]] = {}

    def begin(self) -> None:
        """Begin to measure."""
        self._before = _sample()

    def seconds(self) -> dict[str, float]:
        """Seconds by kind of process, the most first."""
        spent: Counter[str] = Counter()
        for pid, (kind, own, gathered) in _sample().items():
            _, own_before, gathered_before = self._before.get(pid, (kind, 0.0, 0.0))
            spent[kind] += own - own_before
            spent[f"children of {kind}"] += gathered - gathered_before
        return {kind: seconds for kind, seconds in spent.most_common() if seconds > 0}


def shares(seconds: Mapping[str, float], *, each: float, unit: str) -> str:
    """Seconds by kind as a line of text, each divided by `each` and in this unit, with their sum."""
    parts = [f"{kind} {value / each:.2f}" for kind, value in seconds.items() if value / each >= _LEAST_SHOWN]
    return f"{sum(seconds.values()) / each:.2f} {unit}: {', '.join(parts)}"


def _sample() -> dict[int, tuple[str, float, float]]:
    """Kind, own seconds and those of ended children of each process below this one."""
    found = {}
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        kind = next((kind for part, kind in _KINDS if part in command), "others")
        user, system, children_user, children_system = (int(field) / _TICKS for field in fields[11:15])
        found[pid] = (kind, user + system, children_user + children_system)
    return found
