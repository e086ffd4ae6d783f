"""Messages per second that one task publishes, against Google's high-level publisher client on the same server.

The server is canned: a Go program (bench/servers/canned_pubsub) that counts the messages of each request, refuses what
breaks the limits of the service, and gives each an id. Ours is what a Spark task runs: Arrow batches of 10,000 rows,
each checked, stamped with `spark_uid` and encoded; the other side calls `publish` for each row with the same attribute,
and with requests as large as ours. Both wait for every answer. Each side is a process of its own.

Cases: payloads of 100 B and 1 KB without ordering keys, and of 100 B with 50 of them. At least 4.0 is asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from _canned_pubsub import CannedPubSub
from _common import Benchmark, interleaved, parser

CASES = {
    "100B": (100, 0, 400_000, 30_000),
    "1KB": (1024, 0, 200_000, 30_000),
    "100B-keys": (100, 50, 300_000, 30_000),
}
BATCH_ROWS = 10_000


def publish(endpoint: str, topic: str, size: int, rows: int, keys: int) -> float:
    """Publish as a task does; messages per second."""
    from connectors.pubsub.options.sink import parse_write_options  # noqa: PLC0415 - as above
    from connectors.pubsub.sink.rows import RowStamp, SinkColumns  # noqa: PLC0415 - as above
    from connectors.pubsub.sink.writer import publish_batches  # noqa: PLC0415 - only the process that publishes needs it

    options = parse_write_options({"endpoint": endpoint, "topicId": topic}, {})
    columns = {"payload": pa.array([os.urandom(size)] * BATCH_ROWS, pa.binary())}
    if keys:
        columns["orderingKey"] = pa.array([f"key-{number % keys}" for number in range(BATCH_ROWS)])
    batch = pa.RecordBatch.from_pydict(columns)
    sink = SinkColumns("payload", None, "orderingKey" if keys else None, None, topic, None)
    stamp = RowStamp(options.id_attribute, "query/0/0/", 0)
    publish_batches([batch.slice(0, 1)], sink, options, stamp)
    begin = time.perf_counter()
    assert publish_batches([batch] * (rows // BATCH_ROWS), sink, options, stamp) == rows
    return rows / (time.perf_counter() - begin)


def run(*command: str) -> float:
    """What a process prints: messages per second."""
    done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def side(program: Path, *more: str, size: int, rows: int, keys: int) -> Callable[[], float]:
    """A round of one side."""

    def measure() -> float:
        with CannedPubSub(size=size) as server:
            rate = run(str(program), *more, server.address, server.topic, str(size), str(rows), str(keys))
            assert server.stats()["published"] == rows + 1
            return rate

    return measure


def main() -> None:
    """Run the cases; with arguments of a process of ours, be that."""
    if sys.argv[1:2] == ["--publish"]:
        endpoint, topic, *numbers = sys.argv[2:]
        print(publish(endpoint, topic, *(int(text) for text in numbers)))
        return
    command_line = parser(__doc__ or "").parse_args()
    benchmark = Benchmark("pubsub_write")
    benchmark.settings(
        server="canned, in Go, same machine (bench/servers/canned_pubsub)",
        theirs="google.cloud.pubsub_v1 PublisherClient, 1,000 messages and 9 MB a request",
    )
    here = Path(__file__).resolve()
    for case, (size, keys, our_rows, their_rows) in CASES.items():
        if command_line.cases and case not in command_line.cases:
            continue
        sides = {
            "ours, one task": side(here, "--publish", size=size, rows=our_rows, keys=keys),
            "high-level client": side(
                here.with_name("_high_level_publisher.py"), size=size, rows=their_rows, keys=keys
            ),
        }
        ours, theirs = interleaved(sides, command_line.rounds)
        benchmark.compare(case, ours, theirs, "messages/s")
    benchmark.finish()


if __name__ == "__main__":
    main()
