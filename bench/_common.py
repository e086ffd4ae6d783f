"""What the benchmarks share: settings, interleaved runs, medians, ratios, and what the disk gives.

A benchmark is `bench/NAME.py`, run by `./dev bench NAME`. It prints its settings, then for each case the median of each
side, and last, for each case, a line `ratio NAME CASE: X`. Where the variable `BENCH_RECORD` names a file, all of it
goes there as JSON too: that is how `./dev bench --publish` collects it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEAST_ROUNDS = 5
RECORD = "BENCH_RECORD"
_PROBE_BYTES = 64 << 20
_WRITE_BYTES = 4 << 20
_WHOLE = 100
_PLAIN_RATIO = 0.1
_PACKAGES = (
    "pyspark-stream-connectors",
    "boto3",
    "confluent-kafka",
    "deltalake",
    "google-cloud-pubsub",
    "grpcio",
    "msgspec",
    "protobuf",
    "ptars",
    "protarrow",
    "pyarrow",
    "numpy",
    "pyspark",
)


def parser(description: str) -> argparse.ArgumentParser:
    """An argument parser with the options that all benchmarks have: ``--rounds``, ``--cases``."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--rounds", type=rounds, default=LEAST_ROUNDS, help=f"runs of each side, {LEAST_ROUNDS} or more")
    made.add_argument("--cases", nargs="*", default=[], metavar="CASE", help="only these cases")
    return made


def rounds(text: str) -> int:
    """A number of rounds as given on the command line."""
    number = int(text)
    if number < LEAST_ROUNDS:
        raise argparse.ArgumentTypeError(f"a median needs {LEAST_ROUNDS} rounds or more")
    return number


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        name: what it is, with enough words to run it again.
        values: what each round gave.
    """

    name: str
    values: Sequence[float]

    @property
    def median(self) -> float:
        """The median of its rounds."""
        return statistics.median(self.values)


@dataclass
class Benchmark:
    """One run of one benchmark; prints as it goes.

    Attributes:
        name: the name of its file.
    """

    name: str
    _ratios: list[str] = field(default_factory=list)
    _record: dict[str, Any] = field(default_factory=dict)

    def settings(self, **more: object) -> None:
        """Print what the numbers depend on: versions, machine, load, and what the benchmark adds."""
        print(f"# {self.name}")
        print(f"python {platform.python_version()}, {platform.system()} {platform.release()} {platform.machine()}")
        print(", ".join(f"{package} {version(package)}" for package in _PACKAGES))
        load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
        print(f"{len(os.sched_getaffinity(0))} cores usable, {memory_gib():.0f} GiB of memory, load average {load}")
        for key, value in more.items():
            print(f"{key.replace('_', ' ')}: {value}")
        print(flush=True)
        self._keep("settings", {key: str(value) for key, value in more.items()})

    def compare(self, case: str, ours: Side, theirs: Side, unit: str, *, less_is_better: bool = False) -> float:
        """Print both sides of a case, and keep its ratio for the end.

        Returns:
            The median of `ours` divided by that of `theirs`; the other way round where less is better, so that more
            than 1 always means that ours is ahead.
        """
        upper, lower = (theirs, ours) if less_is_better else (ours, theirs)
        ratio = upper.median / lower.median
        self.show(case, ours, unit)
        self.show(case, theirs, unit)
        paired = len(ours.values) == len(theirs.values)
        rounds = [one / other for one, other in zip(upper.values, lower.values, strict=True)] if paired else []
        self._add("ratios", {"case": case, "ratio": ratio, "rounds": rounds, "ours": ours.name, "theirs": theirs.name})
        self._ratios.append(f"ratio {self.name} {case}: {ratio:.2{'f' if ratio >= _PLAIN_RATIO else 'g'}}")
        return ratio

    def show(self, case: str, side: Side, unit: str) -> None:
        """Print one side of a case."""
        spread = f"{_number(min(side.values))} to {_number(max(side.values))}"
        print(
            f"{case:16} {side.name:44} {_number(side.median):>14} {unit}  (median of {len(side.values)}, {spread})",
            flush=True,
        )
        self._add("sides", {"case": case, "side": side.name, "unit": unit, "values": list(side.values)})

    def row(self, table: str, cells: Mapping[str, str | float]) -> None:
        """Print a row of a table, as Markdown; the first one with the head of its table."""
        rows = self._record.setdefault("tables", {}).setdefault(table, [])
        if not rows:
            print(f"\n{table}\n\n| {' | '.join(cells)} |\n|{'---|' * len(cells)}")
        shown = (value if isinstance(value, str) else _number(value) for value in cells.values())
        print(f"| {' | '.join(shown)} |", flush=True)
        rows.append(dict(cells))
        self._keep("tables", self._record["tables"])

    def note(self, case: str, text: str) -> None:
        """Print a line on a case that goes with its figures."""
        print(f"{case}: {text}", flush=True)
        self._add("notes", {"case": case, "note": text})

    def _add(self, kind: str, found: Mapping[str, Any]) -> None:
        self._keep(kind, [*self._record.get(kind, []), found])

    def _keep(self, kind: str, found: Any) -> None:
        self._record[kind] = found
        if path := os.environ.get(RECORD):
            Path(path).write_text(json.dumps(self._record), encoding="utf-8")

    def finish(self) -> None:
        """Print the ratios."""
        print()
        for line in self._ratios:
            print(line)


def _number(value: float) -> str:
    if value >= _WHOLE or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def interleaved(sides: Mapping[str, Callable[[], float]], count: int) -> list[Side]:
    """Run the sides in turn, `count` times each, so that what changes on the machine hits all of them.

    Every second round goes backwards: none is always the one after the other.

    Returns:
        The sides in the order in which they were given.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(count):
        names = list(sides)
        for name in reversed(names) if number % 2 else names:
            values[name].append(sides[name]())
    return [Side(name, each) for name, each in values.items()]


def per_cpu_second(work: Callable[[], int], least_seconds: float = 0.5) -> float:
    """How many units of work are done in a second of this process's CPU time, repeated for at least so long."""
    done = 0
    begin = time.process_time()
    while (spent := time.process_time() - begin) < least_seconds:
        done += work()
    return done / spent


def version(package: str) -> str:
    """The installed version of a package, or "absent"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def memory_gib() -> float:
    """The memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)


def disk_rate(folder: Path, count: int = LEAST_ROUNDS) -> Side:
    """What a folder's disk takes in MB a second: files of 64 MB, each written, fsynced, and removed.

    A fetcher writes segments in this way, so nothing durable can be faster.
    """
    block = os.urandom(_WRITE_BYTES)
    values = []
    for _ in range(count):
        with tempfile.NamedTemporaryFile(dir=folder, prefix="probe-") as file:
            begin = time.perf_counter()
            for _ in range(_PROBE_BYTES // _WRITE_BYTES):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            values.append(_PROBE_BYTES / 1e6 / (time.perf_counter() - begin))
    return Side("write and fsync of 64 MB files", values)


def fsync_milliseconds(folder: Path, count: int = 50) -> Side:
    """How long a small write and its fsync take in a folder: the floor of the time to a durable segment."""
    values = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix="probe-") as file:
        for _ in range(count):
            begin = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            values.append((time.perf_counter() - begin) * 1e3)
    return Side("write and fsync of 4 KB", values)


def file_system_of(path: Path) -> str:
    """The type of the file system that a path is on, for example ext4 or tmpfs."""
    best, kind = "", "unknown"
    resolved = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mounted, found, *_ = line.split()
        inside = resolved == mounted or resolved.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, found
    return kind


def memory_folder() -> Path | None:
    """A folder in memory (tmpfs) that can be written to; None where there is none."""
    shared = Path("/dev/shm")  # noqa: S108 - it is asked for because it is memory
    return shared if shared.is_dir() and os.access(shared, os.W_OK) and file_system_of(shared) == "tmpfs" else None
