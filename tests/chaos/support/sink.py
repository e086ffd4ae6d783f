"""What a sink keyed on batch id holds, against what was published: nothing lost, doubled or invented, replays equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.chaos.support.spark_job import LOG_NAME, SINK_NAME, entries


@dataclass(frozen=True)
class Findings:
    """What was counted; all but the first three must be 0.

    Attributes:
        batches: batches in the sink.
        replayed_batches: batches that ran more than once.
        replays_compared: runs of a batch beside its first; each was compared with that one bit for bit.
        replays_differing: those that held other rows, in another order, or in other partitions.
        lost: published, and not in the sink.
        doubled: rows too many of an id.
        phantom: rows with an id that was never published.
        altered: rows with another content than was published.
        misplaced: rows whose position is not the number of rows before them.
    """

    batches: int
    replayed_batches: int
    replays_compared: int
    replays_differing: int
    lost: int
    doubled: int
    phantom: int
    altered: int
    misplaced: int

    @property
    def faults(self) -> dict[str, int]:
        """What was counted and must not be."""
        good = ("batches", "replayed_batches", "replays_compared")
        return {name: count for name, count in asdict(self).items() if count and name not in good}


def attempts(folder: Path) -> list[dict[str, Any]]:
    """Every run of a batch, in order: ``batch``, ``rows``, ``digest``."""
    return entries(folder / LOG_NAME)


def rows_in_sink(folder: Path) -> int:
    """The number of rows in the sink, cheaply: from the log of the batches whose files are there."""
    rows = {attempt["batch"]: attempt["rows"] for attempt in attempts(folder)}
    sink = folder / SINK_NAME
    there = {int(path.stem) for path in sink.glob("*.arrow")} if sink.exists() else set()
    return sum(count for batch, count in rows.items() if batch in there)


def rows_run(folder: Path) -> int:
    """The number of rows of all batches that have run, whether they are in the sink yet or not."""
    return sum({attempt["batch"]: attempt["rows"] for attempt in attempts(folder)}.values())


def sink_rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of the sink, by batch id, then in the order of the batch."""
    answer: list[dict[str, Any]] = []
    for path in sorted((folder / SINK_NAME).glob("*.arrow"), key=lambda path: int(path.stem)):
        with pa.ipc.open_file(path) as reader:
            answer += reader.read_all().to_pylist(maps_as_pydicts="strict")
    return answer


def examine(
    rows: Iterable[Mapping[str, Any]],
    runs: Iterable[Mapping[str, Any]],
    published: Mapping[Any, Mapping[str, Any]],
    key: str,
    position: str | None = None,
) -> Findings:
    """Compare a sink with what was published.

    Args:
        rows: all rows of the sink in order.
        runs: every run of a batch, as `attempts` gives them.
        published: by id, the columns that its row must have.
        key: name of the column with the id.
        position: name of the column with the position; None for a source whose rows have none.
    """
    rows = list(rows)
    found = Counter(row[key] for row in rows)
    digests: dict[int, list[str]] = defaultdict(list)
    for run in runs:
        digests[run["batch"]].append(run["digest"])
    replayed = [each for each in digests.values() if len(each) > 1]
    return Findings(
        batches=len(digests),
        replayed_batches=len(replayed),
        replays_compared=sum(len(each) - 1 for each in replayed),
        replays_differing=sum(digest != each[0] for each in replayed for digest in each),
        lost=len(published.keys() - found.keys()),
        doubled=sum(count - 1 for identity, count in found.items() if identity in published),
        phantom=sum(count for identity, count in found.items() if identity not in published),
        altered=sum(_differs(row, published.get(row[key])) for row in rows),
        misplaced=0 if position is None else sum(row[position] != number for number, row in enumerate(rows)),
    )


def groups_out_of_order(rows: Iterable[Mapping[str, Any]], group: str, position: str) -> int:
    """Count the partitions or shards, by their column, whose rows do not stand in the order of a column of numbers."""
    by_group: dict[Any, list[int]] = defaultdict(list)
    for row in rows:
        by_group[row[group]].append(int(row[position]))
    return sum(positions != sorted(positions) for positions in by_group.values())


def _differs(row: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return wanted is not None and any(row[column] != value for column, value in wanted.items())
