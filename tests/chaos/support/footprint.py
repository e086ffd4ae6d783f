"""What a query holds while it runs, sample after sample, and whether that is more in the end than in the beginning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.chaos.support import processes

PARTS = 6
"""The first and the last of so many parts of a run are compared: ten minutes each of an hour."""


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment.

    Attributes:
        second: since the beginning.
        python_mb: memory of the driver, the source process, fetchers and workers (PSS: what they share counts once).
        jvm_mb: memory of the JVM (PSS).
        python_threads: of the former.
        jvm_threads: of the JVM.
        descriptors: which these processes have open.
        spool_files: the fewest files or objects that the spool had since the sample before; 0 without a spool.
        latency: median seconds from publish to sink of what arrived since the sample before; None if nothing did.
    """

    second: float
    python_mb: int
    jvm_mb: int
    python_threads: int
    jvm_threads: int
    descriptors: int
    spool_files: int
    latency: float | None


@dataclass(frozen=True)
class Tolerance:
    """How much more the last part may have than the first.

    Attributes:
        factor: times the first.
        more: beside that: a worker or a batch more is no growth.
        statistic: of a part's samples; a name in `STATISTICS`.
    """

    factor: float
    more: float
    statistic: str = "median"


STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {"median": median, "least": min}

TOLERANCES = {
    "python_mb": Tolerance(1.25, 50),
    "jvm_mb": Tolerance(1.5, 300),  # a new JVM fills its heap, of 1 GB, before it collects garbage
    "python_threads": Tolerance(1.25, 20),
    "jvm_threads": Tolerance(1.25, 20),
    "descriptors": Tolerance(1.25, 30),
    # The spool is cleaned in rounds, so the number rises and falls: what stays after a round must not grow. The first
    # sample does not count: a spool that has just begun holds less than the batches that it keeps.
    "spool_files": Tolerance(1.25, 20, "least"),
    "latency": Tolerance(1.5, 3.0),
}


def verdict(samples: Sequence[Sample], seconds: float) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Compare the first and the last part of a run.

    Args:
        samples: of the run.
        seconds: how long it took.

    Returns:
        By what was measured: the first part, the last, and what is allowed; and what grew beyond that.
    """
    measured: dict[str, dict[str, float]] = {}
    faults = []
    for name, tolerance in TOLERANCES.items():
        values = [(sample.second, asdict(sample)[name]) for sample in samples]
        first = [value for second, value in values if second < seconds / PARTS and value is not None]
        last = [value for second, value in values if second >= seconds * (PARTS - 1) / PARTS and value is not None]
        if not first or not last:
            faults.append(f"{name} was not measured in the {'last' if first else 'first'} part")
            continue
        statistic = STATISTICS[tolerance.statistic]
        if statistic is min:
            first = first[1:] or first
        early, late = statistic(first), statistic(last)
        allowed = early * tolerance.factor + tolerance.more
        measured[name] = {"first": round(early, 3), "last": round(late, 3), "allowed": round(allowed, 3)}
        if late > allowed:
            faults.append(f"{name} grew from {early:g} to {late:g}, {allowed:g} is allowed")
    return measured, faults


def of_processes(pids: Iterable[int]) -> dict[str, int]:
    """What processes hold together, as `Sample` names it; those that end meanwhile hold nothing."""
    answer = dict.fromkeys(("python_mb", "jvm_mb", "python_threads", "jvm_threads", "descriptors"), 0)
    for pid in pids:
        with contextlib.suppress(OSError):
            kind = "jvm" if processes.VICTIMS["jvm"](pid) else "python"
            folder = Path(f"/proc/{pid}")
            answer[f"{kind}_mb"] += _kilobytes((folder / "smaps_rollup").read_text(), "Pss")
            answer[f"{kind}_threads"] += sum(1 for _ in (folder / "task").iterdir())
            answer["descriptors"] += sum(1 for _ in (folder / "fd").iterdir())
    return {name: value >> 10 if name.endswith("_mb") else value for name, value in answer.items()}


def _kilobytes(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:")), 0)


def as_record(samples: Iterable[Sample]) -> dict[str, list[Any]]:
    """Samples as columns, one line of JSON values each."""
    rows = [asdict(sample) for sample in samples]
    return {name: [row[name] for row in rows] for name in Sample.__dataclass_fields__}
