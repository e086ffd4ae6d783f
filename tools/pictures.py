"""Makes docs/pictures anew: what the doctor says of planted faults, and a stream in `connectors watch`.

Run by ``python -m tools.pictures``. The stream is real up to Spark: a server, fetchers, a spool, a reader; the protocol
driver of `connectors.testing` plays Spark's part, so no Java is needed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from connectors.observe.lag import LagHistory, measure, spool_lag
from connectors.observe.spool_probe import SpoolWatch
from connectors.pubsub.datasource import PubSubDataSource
from connectors.testing.pubsub import PubSubServer
from tests.support.spark_protocol.driver import FolderSink, StreamingQuery

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "pictures"
TOPIC, SUBSCRIPTION = "projects/shop/topics/orders", "projects/shop/subscriptions/orders"
_COLUMNS = "110"
_USUAL, _BURST, _BURST_AT, _COPIES_EVERY, _BATCHES = 400, 9000, 15, 7, 45


def command(words: str, folder: Path, **changes: str) -> str:
    """The prompt and what a command of the pack prints in a folder of a user, with the paths of this machine cut."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYTHON"))}
    environ |= {"PYSPARK_PYTHON": sys.executable, "COLUMNS": _COLUMNS, "PYTHONPATH": str(folder), **changes}
    called = [sys.executable, "-m", "connectors.cli", *words.replace("FOLDER", str(folder)).split()]
    done = subprocess.run(called, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    text = f"$ connectors {words}\n{done.stdout}{done.stderr}(exit code {done.returncode})\n"
    for path, name in ((folder, "FOLDER"), (Path(sys.prefix), "VENV"), (ROOT, "CLONE"), (Path.home(), "~")):
        text = text.replace(str(path), name)
    return text


def doctor(folder: Path) -> str:
    """Faults that were planted on purpose, and what the doctor says of them."""
    (folder / "pyspark_broken.py").write_text("raise RuntimeError('no licence found')\n")
    (folder / "file").touch()
    with PubSubServer() as server:
        machine = command("doctor", folder, JAVA_HOME=str(folder / "jdk"))
        words = "doctor --format pubsub -o projectId=shop -o subscriptionId=order -o spoolLocation=FOLDER/file"
        source = command(f"{words} -o endpoint={server.endpoint}", folder)
    source = re.sub(r"(127\.0\.0\.1:|on port )\d{4,5}", r"\g<1>8085", source)
    # What is ok on this machine is in the first transcript already.
    head, _, rest = source.partition("\npubsub\n")
    return f"{machine}\n{head.partition(chr(10))[0]}\n...\npubsub\n{rest}"


def stream(folder: Path) -> Path:
    """A file as an observer writes it: copies on purpose, a burst that takes a while, and an end without error."""
    lines = folder / "orders.jsonl"
    histories: dict[tuple[str, int], LagHistory] = {}
    options = {"subscriptionId": SUBSCRIPTION, "spoolLocation": str(folder / "spool"), "maxRecordsPerTrigger": "1500"}
    same = {"v": 1, "query": "6f0c", "run": "91d2"}
    with PubSubServer() as server, lines.open("w") as file:
        server.create_subscription(SUBSCRIPTION, TOPIC)
        write = _writer(file.write)
        write({**same, "event": "started", "time_ms": _now(), "name": "orders"})
        sink = FolderSink(folder / "sink")
        options["endpoint"] = server.endpoint
        with StreamingQuery(PubSubDataSource, options, checkpoint=folder / "checkpoint", sink=sink) as query:
            watcher = SpoolWatch(options["spoolLocation"])
            for step in range(_BATCHES):
                server.publish(TOPIC, [b"order" * 40] * (_BURST if step == _BURST_AT else _USUAL))
                if step % _COPIES_EVERY == 0:
                    server.redeliver(SUBSCRIPTION, fraction=0.1)
                began = time.monotonic()
                batch = query.run_batch()
                spool = watcher.look()
                latest = {**batch.end, "position": spool.rows}
                source = {"numInputRows": batch.rows, "endOffset": batch.end, "latestOffset": latest}
                took = int(1000 * (time.monotonic() - began))
                progress = {"id": same["query"], "runId": same["run"], "name": "orders", "batchId": batch.batch_id}
                progress |= {"durationMs": {"triggerExecution": took}, "sources": [source]}
                found = measure(progress, _now(), {"spool": spool_lag}, histories, {spool.spool: spool})
                write(found.to_json())
                time.sleep(0.25)
        write({**same, "event": "terminated", "time_ms": _now(), "exception": None})
    return lines


def _writer(write: Callable[[str], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda event: (write(json.dumps(event) + "\n"), None)[1]


def _now() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    """Make all of them."""
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (TARGET / "doctor.txt").write_text(doctor(folder))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = stream(folder)
        head = "".join(lines.read_text().splitlines(keepends=True)[:25])
        running = folder / "running.jsonl"
        running.write_text(head)
        text = (
            command("watch --once FOLDER/running.jsonl", folder)
            + "\n"
            + command("watch --once FOLDER/orders.jsonl", folder)
        )
        (TARGET / "watch.txt").write_text(text)


if __name__ == "__main__":
    main()
