"""A worker that reads ranges and keeps nothing; it takes a `Reading` as JSON on standard input.

Prints its highest resident size in bytes, and how many records it has read. It imports what Spark's worker has.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyspark.sql.worker.plan_data_source_read  # noqa: F401 - part of a worker's size

from connectors.kafka.datasource import KafkaPartition, KafkaStreamReader
from connectors.kafka.options.source import parse_read_options
from connectors.kafka.source.planning import OffsetRange


@dataclass(frozen=True)
class Reading:
    """What is read: ranges, again and again for so many seconds, but each once at least."""

    options: dict[str, str]
    ranges: list[tuple[str, int, int, int]]
    seconds: float


def peak_bytes() -> int:
    """The highest resident size of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def run(reading: Reading) -> tuple[int, int]:
    """Read; returns the highest resident size, and the number of records."""
    options = parse_read_options(reading.options, {}, streaming=True)
    parts = [KafkaPartition((OffsetRange(*ends),), options.for_tasks(), "run") for ends in reading.ranges]
    end = time.monotonic() + reading.seconds
    records = 0
    while True:
        for part in parts:
            reader = KafkaStreamReader(reading.options)
            records += sum(batch.num_rows for batch in reader.read(part))
        if time.monotonic() > end:
            return peak_bytes(), records


def run_process(reading: Reading) -> tuple[int, int]:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=json.dumps(asdict(reading)), capture_output=True, text=True, check=True
    )
    peak, records = json.loads(done.stdout.splitlines()[-1])
    return peak, records


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Reading(**json.load(sys.stdin)))) + "\n")
