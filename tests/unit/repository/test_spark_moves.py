"""The judge of ``./dev chaos versions`` finds what is wrong with a checkpoint that has moved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.chaos.rigs.spark_moves import outcome
from tests.chaos.rigs.upgrades import RowFlow
from tests.chaos.support.spark_job import LOG_NAME, SINK_NAME

SPARKS = ("4.0.5", "4.1.4", "4.0.5")
BATCHES = ((0, 1), (2, 3), (4, 5))
"""The numbers of the records in each batch of the sink."""
RUNS = ((0, "a"), (0, "a"), (1, "b"), (1, "b"), (2, "c"))
"""Batch and digest: the two that were open at a move are there twice."""


class RecordedFlow(RowFlow):
    """A flow whose query has ended."""

    format, key = "kafka_py", "value"

    @property
    def options(self) -> dict[str, str]:
        return {}

    def publish(self) -> None:
        first = len(self.published)
        self.published |= {str(number).encode(): {"topic": "t"} for number in range(first, first + 6)}


@dataclass(frozen=True)
class Run:
    """What a run has left."""

    batches: Sequence[Sequence[int]] = BATCHES
    runs: Sequence[tuple[int, str]] = RUNS
    errors: Sequence[str] = ()

    def outcome(self, folder: Path) -> dict[str, Any]:
        flow = RecordedFlow(folder / "flow")
        flow.publish()
        (flow.folder / SINK_NAME).mkdir()
        for batch, numbers in enumerate(self.batches):
            rows = [
                {"value": str(number).encode(), "topic": "t", "partition": number % 2, "offset": number // 2}
                for number in numbers
            ]
            table = pa.Table.from_pylist(rows)
            with pa.ipc.new_file(flow.folder / SINK_NAME / f"{batch}.arrow", table.schema) as writer:
                writer.write_table(table)
        lines = [json.dumps({"batch": batch, "rows": 2, "digest": digest}) for batch, digest in self.runs]
        (flow.folder / LOG_NAME).write_text("".join(f"{line}\n" for line in lines))
        return outcome(flow, SPARKS, self.errors)


RIGHT = Run()


def test_a_run_whose_open_batches_were_repeated_equally_is_ok(tmp_path: Path) -> None:
    found = RIGHT.outcome(tmp_path)
    assert (found["ok"], found["faults"]) == (True, [])
    assert found["moves"] == ["4.0.5 to 4.1.4", "4.1.4 to 4.0.5"]
    assert found["counts"]["replays_compared"] == found["counts"]["kills"] == 2


@pytest.mark.parametrize(
    ("run", "faults"),
    [
        (replace(RIGHT, runs=(*RUNS[:3], (1, "x"), RUNS[4])), ["1 replays_differing"]),
        (replace(RIGHT, runs=(*RUNS[:1], (0, "x"), *RUNS[2:])), ["1 replays_differing"]),
        (replace(RIGHT, runs=(*RUNS[:3], RUNS[4])), ["only 1 of 2 unfinished batches were repeated"]),
        (
            replace(RIGHT, runs=(RUNS[0], RUNS[2], RUNS[4])),
            ["the unfinished batch was not repeated", "only 0 of 2 unfinished batches were repeated"],
        ),
        (replace(RIGHT, batches=((0, 1), (2, 3), (4,))), ["1 lost"]),
        (replace(RIGHT, batches=((0, 1), (2, 3), (4, 5, 5))), ["1 doubled"]),
        (replace(RIGHT, batches=((0, 1), (2, 3), (4, 5, 6))), ["1 phantom"]),
        (replace(RIGHT, batches=((0, 1), (4, 3), (2, 5))), ["1 out of order"]),
        (replace(RIGHT, errors=("first line\nsecond line",)), ["the query ended: first line"]),
    ],
    ids=["last", "first", "once", "never", "lost", "doubled", "phantom", "order", "error"],
)
def test_a_run_that_went_wrong_fails_and_says_how(run: Run, faults: list[str], tmp_path: Path) -> None:
    found = run.outcome(tmp_path)
    assert (found["ok"], found["faults"]) == (False, faults)
