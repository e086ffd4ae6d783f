"""Files of observers, and the command that watches them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from connectors.cli.main import app
from connectors.observe.lag import Measurement, PartitionLag, SourceMeasurement, SpoolMeasurement

START = 1_700_000_000_000


def measurement(batch: int, *, rows: int = 100, lag: int = 5, query: str = "q1", name: str = "orders") -> Measurement:
    spool = SpoolMeasurement("s1", ("projects/p/subscriptions/s",), 300, 17, 250, 200, 4096, 2500)
    sources = (
        SourceMeasurement("kafka_py", rows, lag, 1500, {"orders-0": PartitionLag(lag, 1500 if lag else 0)}),
        SourceMeasurement("spool", rows, lag, 2500, {"s1": PartitionLag(lag, 2500 if lag else 0)}, spool),
    )
    return Measurement(START + batch * 1000, query, "r", name, batch, 2 * rows, 250, 8.0 * rows, sources)


def started(query: str = "q1", name: str = "orders", run: str = "r") -> dict[str, Any]:
    return {"v": 1, "event": "started", "time_ms": START, "query": query, "run": run, "name": name}


def terminated(exception: str | None, query: str = "q1", run: str = "r") -> dict[str, Any]:
    return {"v": 1, "event": "terminated", "time_ms": START, "query": query, "run": run, "exception": exception}


def write(path: Path, *events: Mapping[str, Any]) -> None:
    with path.open("a") as lines:
        lines.writelines(json.dumps(event) + "\n" for event in events)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def of_now(measured: Measurement, ago: float) -> dict[str, Any]:
    """The line of a batch that ended so many seconds ago."""
    return measured.to_json() | {"time_ms": time.time_ns() // 1_000_000 - int(ago * 1000)}
