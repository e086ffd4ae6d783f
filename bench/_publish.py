"""Runs the public set of benchmarks, and writes docs/performance.md with what they found.

Each part runs in a process of its own and goes into docs/performance.json when it is done; the pages are written again
after each. A part that was measured since the last change of what it depends on is not run again. So an interrupted run
goes on where it was, and so does one that begins no further part because its minutes are over: all parts take some
hours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from _common import RECORD as VARIABLE
from _common import memory_gib, version

from tests.servers.java import find_java

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from tools.performance import RECORD, Record, write_pages  # noqa: E402 - a script sees its own folder only

ROUNDS = 7
GIT = ("git", "-C", str(ROOT))
MEASURED = ("connectors", "bench", "pyproject.toml", "requirements.lock")
"""What the results depend on: tests and pages change none."""
OF_ONE_SYSTEM = {
    "kafka": ("connectors/kafka",),
    "kinesis": ("connectors/kinesis", "connectors/testing/kinesis"),
    "pubsub": ("connectors/pubsub", "connectors/testing/pubsub", "bench/servers"),
    "protobuf": ("connectors/protobuf", "connectors/registry"),
    "": ("connectors/avro", "connectors/json", "connectors/mixed", "connectors/bad_records.py"),
}
"""What only the parts of that system measure; what stands under no name, no part measures."""
PACKAGES = ("pyspark", "pyarrow", "confluent-kafka", "boto3", "google-cloud-pubsub", "grpcio", "ptars", "protobuf")


@dataclass(frozen=True)
class Part:
    """A part of the set.

    Attributes:
        benchmark: its name.
        cases: which of its cases; none means all.
        arguments: further ones.
        rounds: 0 where it has none.
        systems: those it measures.
    """

    benchmark: str
    cases: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    rounds: int = ROUNDS
    systems: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What it is called in the record."""
        return " ".join((self.benchmark, *self.cases))

    @property
    def command(self) -> list[str]:
        """What runs it."""
        cases = ["--cases", *self.cases] if self.cases else []
        rounds = ["--rounds", str(self.rounds)] if self.rounds else []
        return [sys.executable, str(HERE / f"{self.benchmark}.py"), *rounds, *self.arguments, *cases]

    @property
    def paths(self) -> list[str]:
        """What it depends on of `MEASURED`, as pathspecs of git: neither other programs nor other systems."""
        systems = self.systems or [name for name in OF_ONE_SYSTEM if name and name in self.key]
        others = [path for name, paths in OF_ONE_SYSTEM.items() if name not in systems for path in paths]
        others += [f"bench/{path.name}" for path in sorted(HERE.glob("*.py")) if path.stem not in used(self.benchmark)]
        return [*MEASURED, *(f":(exclude){path}" for path in others)]

    def is_measured_at(self, commit: str) -> bool:
        """Return whether nothing that it depends on has changed since a commit, in this tree either."""
        command = [*GIT, "diff", "--quiet", commit, "--", *self.paths]
        return bool(commit) and subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


@cache
def used(program: str) -> frozenset[str]:
    """Return a program of bench/ with all that it imports or starts, by their names."""
    found, waiting = set[str](), [program]
    while waiting:
        name = waiting.pop()
        found.add(name)
        text = (HERE / f"{name}.py").read_text(encoding="utf-8")
        names = {*re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE), *re.findall(r'"(\w+)\.py"', text)}
        waiting += [name for name in names - found if (HERE / f"{name}.py").exists()]
    return frozenset(found)


def under_load(kind: str, systems: dict[str, tuple[int, ...]]) -> list[Part]:
    """Latency under load of a kind of query."""
    arguments = ("--seconds", "2", "--warm-up", "30")
    return [
        Part("latency_under_load", tuple(f"{system}-{rate}k{kind}" for rate in rates), arguments)
        for system, rates in systems.items()
    ]


PARTS = (  # first what is asked for, and of that the breadth
    Part("kinesis_read"),
    *(
        Part("kinesis_peer", tuple(cases.split()), rounds=5)
        for cases in ("100 1024 told-100 told-1024 few", "sink sink-plain", "default-100", "default-1024")
    ),
    Part("pubsub_fetch", ("100B", "1KB")),
    Part("kafka_read", ("batch-200", "stream-200")),
    Part("kafka_latency"),
    Part("kafka_partitions", ("batch-500",)),
    *(Part("pubsub_stream", (case,), ("--latency-warm-up", "30")) for case in ("latency", "latency-file-manager")),
    Part("pubsub_stream", ("rows",)),
    *(Part("kafka_write", (f"{kind}-200",)) for kind in ("values", "keys")),
    *(Part("kafka_read", (f"batch-{size}", f"stream-{size}")) for size in (100, 1024)),
    *(Part("kafka_write", (f"{kind}-1024",)) for kind in ("values", "keys")),
    *(
        Part("stages", (case,), rounds=5)
        for case in ("kafka-read", "kafka-write", "kinesis-read", "pubsub", "protobuf")
    ),
    *(
        Part("limit", tuple(cases.split()), rounds=5)
        for cases in (
            "session",
            *(f"{name}-{size}" for name in ("kafka", "kinesis", "pubsub") for size in (100, 1024)),
            *(f"to-{name}" for name in ("kafka", "kinesis", "pubsub")),
        )
    ),
    Part("idle", rounds=5, systems=("kafka", "kinesis", "pubsub")),
    *under_load("", {"kafka": (10, 50, 100), "pubsub": (10, 50), "kinesis": (10, 50)}),
    *under_load("-async", {"kafka": (10, 50, 100), "pubsub": (50,)}),
    *under_load("-stateful", {"kafka": (10, 50, 100), "pubsub": (10,)}),
    *(
        Part("growth", (what,), rounds=0, systems=systems)
        for what, systems in {
            "partitions": ("kafka",),
            "shards": ("kinesis",),
            "subscriptions": ("pubsub",),
            "batches": ("kafka", "kinesis", "pubsub"),
            "spool": ("pubsub",),
        }.items()
    ),
)


def machine() -> dict[str, str]:
    """What a reader must know of the machine: nothing that names it."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    found = find_java(os.environ)
    said = subprocess.run([str(found), "-version"], capture_output=True, text=True, check=False).stderr if found else ""
    release = re.match(r"[\d.]+", platform.release())
    return {
        "processors": f"{len(os.sched_getaffinity(0))} cores, {model[1] if model else platform.machine()}",
        "memory": f"{memory_gib():.0f} GiB",
        "system": f"{platform.system()} {release[0] if release else ''}",
        "Python, Java": f"{platform.python_version()}, {said.splitlines()[0] if said else 'none'}".replace('"', ""),
        "packages": ", ".join(f"{package} {version(package)}" for package in PACKAGES),
        "Spark's own source and sink": "spark-sql-kafka-0-10 4.2.0, kafka-clients 3.9.1",
    }


def commit() -> str:
    """The last commit that changes what is measured; with a plus if something of that is changed in this tree."""
    log = [*GIT, "log", "-1", "--format=%h", "--abbrev=10", "--", *MEASURED]
    head = subprocess.run(log, check=True, capture_output=True, text=True).stdout
    status = [*GIT, "status", "--porcelain", "--", *MEASURED]
    changed = subprocess.run(status, check=True, capture_output=True, text=True).stdout
    return head.strip() + "+" * bool(changed)


def run(part: Part, of: str) -> dict[str, Any]:
    """Run a part; what the record keeps of it.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    load, begin = ", ".join(f"{value:.1f}" for value in os.getloadavg()), time.monotonic()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(part.command, check=True, cwd=ROOT, env={**os.environ, VARIABLE: file.name})
        found = json.loads(Path(file.name).read_text(encoding="utf-8"))
    return {
        "benchmark": part.benchmark,
        "commit": of,
        "date": datetime.now(UTC).date().isoformat(),
        "processors": machine()["processors"],
        "load": load,
        "seconds": round(time.monotonic() - begin),
        # Settings may name folders of the machine.
        "found": {kind: value for kind, value in found.items() if kind != "settings"},
    }


def main() -> int:
    """Run what is not measured yet, and write the pages."""
    parser = argparse.ArgumentParser(prog="./dev bench --publish", description=__doc__)
    parser.add_argument(
        "--cases", nargs="*", default=[], metavar="NAME", help="only these benchmarks, or parts of them"
    )
    parser.add_argument("--minutes", type=float, default=50.0, help="begin no part after so many (default: 50)")
    parser.add_argument("--fresh", action="store_true", help="measure all again")
    parser.add_argument("--render", action="store_true", help="write the pages out of the record, and measure nothing")
    parser.add_argument("--list", action="store_true", help="print the parts")
    command_line = parser.parse_args()
    parts = [part for part in PARTS if not command_line.cases or {part.key, part.benchmark} & {*command_line.cases}]
    if command_line.list:
        print("\n".join(part.key for part in parts))
        return 0
    units: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))["units"] if RECORD.exists() else {}
    of, failed, end = commit(), [], time.monotonic() + command_line.minutes * 60
    for number, part in enumerate([] if command_line.render else parts):
        if not command_line.fresh and part.is_measured_at(units.get(part.key, {}).get("commit", "")):
            continue
        if time.monotonic() > end:
            print(f"\n{command_line.minutes:g} minutes are over: the next run goes on with {part.key}", flush=True)
            break
        print(f"\n=== {number + 1} of {len(parts)}: {part.key}", flush=True)
        try:
            units[part.key] = run(part, of)
        except subprocess.CalledProcessError as error:
            failed.append(f"{part.key}: {error}")
            continue
        order = [one.key for one in PARTS if one.key in units]
        content = {"machine": machine(), "units": {key: units[key] for key in order}}
        RECORD.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        write_pages(Record(content))
    if command_line.render:
        write_pages(Record(json.loads(RECORD.read_text(encoding="utf-8"))))
    print("\n".join(["", *failed]))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
