"""A checkpoint that moves from one version of Spark to another, with a kill within a batch at each move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.chaos.rigs.upgrades import PORTION, Flow, KafkaFlow, RowFlow, Verdict
from tests.chaos.rigs.versions import Version
from tests.chaos.support import processes
from tests.chaos.support.sink import groups_out_of_order, rows_in_sink, rows_run, sink_rows
from tests.chaos.support.spark import SparkJob, first_line
from tests.support.kafka_rig import KafkaRig

_PATIENCE = 120.0
_PAUSE = 0.5
"""Seconds within a batch, in which it is killed."""
_PARTITIONS = 3
_ORDERED = {"kafka_py": ("partition", "offset"), "kinesis": ("shardId", "sequenceNumber")}
"""What is ordered within what; positions of Pub/Sub are checked for each row."""


class KafkaRowsFlow(RowFlow):
    """From Kafka to files.

    Args:
        folder: as for `Flow`.
        kafka: the broker.
    """

    format, key = "kafka_py", "value"

    def __init__(self, folder: Path, kafka: KafkaRig) -> None:
        super().__init__(folder)
        self._kafka, self._topic = kafka, kafka.topic(_PARTITIONS)

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the source."""
        return self._kafka.options(self._topic, maxOffsetsPerTrigger="150")

    def publish(self) -> None:
        """Send a portion."""
        first = len(self.published)
        values = [str(number).encode() for number in range(first, first + PORTION)]
        for partition in range(_PARTITIONS):
            self._kafka.send(self._topic, values[partition::_PARTITIONS], partition)
        self.published |= {value: {"topic": self._topic} for value in values}


def move(flow: Flow, folder: Path, stations: Sequence[Version]) -> dict[str, Any]:
    """Run a query by one version of Spark after the other, each but the last killed within a batch.

    Each one finishes the batch that the one before it left, and all that comes before it is killed.

    Returns:
        The outcome for the record, with the versions that ran.

    Raises:
        AssertionError: something that had to come did not come.
    """
    sparks: list[str] = []
    errors: list[str] = []
    for number, station in enumerate(stations):
        flow.publish()
        held = flow.failpoints.partition("=")[0]
        job = station.start(
            folder / f"spark-{number}", {"CONNECTORS_FAILPOINTS": f"{held}=sleep:{_PAUSE}"} if held else {}
        )
        try:
            sparks.append(job.version())
            job.run({**flow.plan(is_held=False), "sink_pause": _PAUSE, "task_column": "task"})
            job.wait_for("all is in the sink", flow.is_done, _PATIENCE)
            if number + 1 < len(stations):
                _kill_within_batch(flow, job)
            else:
                job.stop_query()
            errors += job.query_errors()
        finally:
            job.kill()
    return outcome(flow, sparks, errors)


def _kill_within_batch(flow: Flow, job: SparkJob) -> None:
    """Publish, and kill the driver with all below it while the first batch of that is half done."""
    flow.publish()
    job.wait_for("a batch that is half done", lambda: _is_half_done(flow), _PATIENCE)
    everyone = job.processes()
    job.kill()
    assert not processes.still_running(everyone, 10.0)
    newest = {log: _newest(flow.folder / "checkpoint" / log) for log in ("offsets", "commits")}
    assert newest["offsets"] > newest["commits"], f"the kill came between two batches: {newest}"
    flow.after_kill()


def _is_half_done(flow: Flow) -> bool:
    if isinstance(flow, KafkaFlow):
        return flow.is_open()
    return rows_run(flow.folder) > rows_in_sink(flow.folder)


def _newest(log: Path) -> int:
    return max((int(path.name) for path in log.iterdir() if path.name.isdigit()), default=-1)


def outcome(flow: Flow, sparks: Sequence[str], errors: Sequence[str]) -> dict[str, Any]:
    """Judge what a flow has left.

    Args:
        flow: has ended.
        sparks: the versions that ran, in order; the batch that was open at each move has to be repeated.
        errors: of its queries.

    Returns:
        The outcome for the record.
    """
    verdict: Verdict = flow.verdict()
    counts, faults = dict(verdict.counts), list(verdict.faults)
    moves = [f"{before} to {after}" for before, after in pairwise(sparks)]
    if isinstance(flow, RowFlow):
        if counts["replayed_batches"] < len(moves):
            faults.append(f"only {counts['replayed_batches']} of {len(moves)} unfinished batches were repeated")
        if flow.format in _ORDERED:
            counts["out_of_order"] = groups_out_of_order(sink_rows(flow.folder), *_ORDERED[flow.format])
            faults += [f"{counts['out_of_order']} out of order"] if counts["out_of_order"] else []
    faults += [f"the query ended: {first_line(error)}" for error in errors]
    return {"ok": not faults, "faults": faults, "moves": moves, "counts": {"kills": len(moves), **counts}}
