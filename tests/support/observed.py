"""Progress of queries, spools and sessions, as observers see them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from connectors.kafka.lag import source_lag
from connectors.observe.lag import (
    Measurement,
    SpoolMeasurement,
    measure,
    spool_lag,
)
from connectors.observe.prometheus import Exporter
from connectors.observe.spool_probe import SpoolWatch
from connectors.observe.watch import Observer

KINDS = {"spool": spool_lag, "kafka_py": source_lag}


def progress(*sources: dict[str, Any], batch: int = 7) -> dict[str, Any]:
    """A progress report as Spark gives it."""
    return {
        "id": "q",
        "runId": "r",
        "name": "orders",
        "batchId": batch,
        "durationMs": {"triggerExecution": 500},
        "sources": list(sources),
    }


def kafka(end: int, latest: int) -> dict[str, Any]:
    return {
        "numInputRows": 10,
        "endOffset": json.dumps({"orders": {"0": end, "1": 4}, "v": 1}),
        "latestOffset": json.dumps({"orders": {"0": latest, "1": 4}, "v": 1}),
    }


def spooled(spool: str, end: int, latest: int) -> dict[str, Any]:
    offset = {"epoch": "e", "spool": spool, "v": 1}
    return {"numInputRows": 3, "endOffset": {**offset, "position": end}, "latestOffset": {**offset, "position": latest}}


def of(*sources: dict[str, Any], now: int = 0, histories: Any = None, spools: Any = None) -> Measurement:
    return measure(progress(*sources), now, KINDS, {} if histories is None else histories, spools or {})


def heard(tmp_path: Path, act: Callable[[Observer], None], **arguments: Any) -> list[dict[str, Any]]:
    """The lines that an observer writes about what it is told."""
    with Observer(file=tmp_path / "lines.jsonl", **arguments) as observer:
        act(observer)
    return [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]


class Spool(SpoolWatch):
    """A spool that is looked at in a way of the test's."""

    def __init__(self, look: Callable[[], SpoolMeasurement]) -> None:
        self.path = "s3://spools/orders"
        self.looks = 0
        self._look = look

    def look(self) -> SpoolMeasurement:
        self.looks += 1
        return self._look()


class Session:
    """What an observer needs of a session; `error` is raised where it is left, or, with `first`, entered."""

    def __init__(self, error: Exception | None = None, *, first: bool = False) -> None:
        self.error = error
        self.first = first
        self.active: list[Any] = []

    @property
    def streams(self) -> Any:
        return self

    def addListener(self, _: object) -> None:  # noqa: N802 - Spark's name
        if self.error is not None and self.first:
            raise self.error

    def removeListener(self, _: object) -> None:  # noqa: N802
        if self.error is not None:
            raise self.error


def session(error: Exception | None = None, *, first: bool = False) -> Any:
    return Session(error, first=first)


def labelled(exporter: Exporter) -> dict[tuple[str, str, str], float]:
    """The samples by query, name and partition."""
    request = urllib.request.Request(exporter.url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request) as answer:
        assert "openmetrics-text" in answer.headers["Content-Type"]
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    keys = [(each.labels["query"], each.name, each.labels.get("partition", "")) for each in samples]
    assert len(set(keys)) == len(keys), "Prometheus refuses a page that has a sample twice"
    return {key: each.value for key, each in zip(keys, samples, strict=True)}


def scrape(exporter: Exporter, query: str = "orders") -> dict[tuple[str, str], float]:
    return {(name, part): value for (of_query, name, part), value in labelled(exporter).items() if of_query == query}


def scraped(exporter: Exporter, query: str) -> dict[str, float]:
    return {name: value for (name, _), value in scrape(exporter, query).items()}
