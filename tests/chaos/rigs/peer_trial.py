"""A Kinesis stream, read by ours and by awslabs' connector, each through the same faults of the same seed."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from connectors.cli.demo.job import QUICK_JAVA
from connectors.testing.kinesis import KinesisControl
from tests.chaos.rigs.kinesis_load import Load
from tests.chaos.support.sink import attempts, examine, rows_in_sink, rows_run, sink_rows
from tests.chaos.support.spark import SparkJobs, first_line
from tests.support.kinesis_peer import FORMAT, JAVA_OPTIONS, peer_options

OURS, THEIRS = "ours", "theirs"
SIDES = (OURS, THEIRS)
QUIET_SECONDS = 60.0
"""When no row has come for so long, none will come; theirs takes up to 20 s for a batch."""

_SHARDS = 2
_PORTION = 400
_MOST_ROWS = 1500
_LATEST_SECONDS = 1.0
_SINK_PAUSE = 1.0
"""Between a batch's digest and its file: some kills come then, so that the batch is repeated and compared."""
_BATCH_SECONDS = 10
"""The least that theirs can be told: a batch of it does not end while records come."""
_VICTIMS = ("jvm", "driver")
_POLL_SECONDS = 0.1


def peer_settings(jar: str) -> dict[str, str]:
    """Return the settings of a session with the peer's jar."""
    return {"spark.jars": jar, "spark.driver.extraJavaOptions": f"{QUICK_JAVA} {JAVA_OPTIONS}"}


@dataclass(frozen=True)
class PeerPlan:
    """What a trial does to both sides.

    Attributes:
        seed: of all that is random.
        part: one of `PARTS`.
        kills: how many, at random moments, in the parts with kills.
    """

    seed: int
    part: str
    kills: int = 0


class PeerTrial:
    """One side of a trial.

    Args:
        side: of `SIDES`.
        plan: what to do.
        folder: for checkpoint and sink; it is made.
        endpoint: of the server.
        jobs: Spark processes of this side.
    """

    def __init__(self, side: str, plan: PeerPlan, folder: Path, endpoint: str, jobs: SparkJobs) -> None:
        folder.mkdir(parents=True)
        self._side, self._plan, self._folder, self._endpoint, self._jobs = side, plan, folder, endpoint, jobs
        self._stream = f"{folder.parent.name}-{side}"
        self._choose = random.Random(f"{plan.seed} moments")
        self._sink_pause = _SINK_PAUSE if plan.kills else 0.0
        self._published: dict[str, dict[str, Any]] = {}
        self._killed: list[str] = []
        self._errors: list[str] = []
        self._errors_seen = 0
        self._load: Load | None = None

    def run(self) -> dict[str, Any]:
        """Run it; what was counted.

        Raises:
            AssertionError: Spark itself did not start, or ended unbidden.
        """
        with KinesisControl(self._endpoint) as server:
            server.create_stream(self._stream, 1 if self._plan.part == "empty_data" else _SHARDS)
            PARTS[self._plan.part](self, server)
            self._wait_for_rows(len(self._published), in_sink=True)
            self._jobs.current.stop_query()
            self._note_errors()
            server.delete_stream(self._stream)
        return self._outcome()

    def split_while_read(self, server: KinesisControl) -> None:
        """Read records, split a shard, and put more."""
        self._put(server, range(_PORTION))
        self._start()
        self._wait_for_rows(_PORTION)
        server.split(self._stream, server.shards(self._stream)[0])
        self._put(server, range(_PORTION, 2 * _PORTION))

    def split_before(self, server: KinesisControl) -> None:
        """Read a stream from its oldest record on, one shard of which was split before."""
        self._put(server, range(_PORTION))
        server.split(self._stream, server.shards(self._stream)[0])
        self._put(server, range(_PORTION, 2 * _PORTION))
        self._start()

    def empty_data(self, server: KinesisControl) -> None:
        """Read seven records of one shard, the third of which has no data."""
        records = [("key", b"" if number == 2 else b"record %d" % number) for number in range(7)]
        self._note(server, records)
        self._start()

    def kill(self, _server: KinesisControl) -> None:
        """Kill the driver again and again, while records come."""
        self._kill_under(Load(self._endpoint, self._stream, self._plan.seed, failing_calls=False, reshard_seconds=None))

    def kill_and_split(self, _server: KinesisControl) -> None:
        """Kill the driver again and again, while records come and shards are split and merged."""
        self._kill_under(Load(self._endpoint, self._stream, self._plan.seed, failing_calls=False))

    def _kill_under(self, made: Load) -> None:
        with made as load:
            self._load = load
            self._start()
            for _ in range(self._plan.kills):
                self._wait_for_rows(rows_run(self._folder) + self._choose.randrange(1, _MOST_ROWS))
                time.sleep(self._choose.uniform(0, _LATEST_SECONDS))
                self._note_errors()
                victim = self._choose.choice(_VICTIMS)
                self._jobs.strike(victim, self._choose, QUIET_SECONDS)
                self._killed.append(victim)
                self._start()
            for data, row in load.finish().items():
                self._published[row["sequenceNumber"]] = {"data": data, "partitionKey": row["partitionKey"]}

    def _put(self, server: KinesisControl, numbers: range) -> None:
        self._note(server, [(f"key-{number}", b"record %d" % number) for number in numbers])

    def _note(self, server: KinesisControl, records: list[tuple[str, bytes]]) -> None:
        """Put records, and note what their rows must have."""
        for (key, data), (_, number) in zip(records, server.put(self._stream, records), strict=True):
            self._published[str(number)] = {"data": data, "partitionKey": key}

    def _start(self) -> None:
        job = self._jobs.current
        self._errors_seen = len(job.query_errors())
        job.run({"folder": str(self._folder), "sink_pause": self._sink_pause, **self._query()})

    def _query(self) -> dict[str, Any]:
        url, limit = f"http://{self._endpoint}", str(random.Random(self._plan.seed).choice((2000, 8000)))
        if self._side == THEIRS:
            limits = {"kinesis.maxFetchRecordsPerShard": limit, "kinesis.maxFetchTimePerShardSec": str(_BATCH_SECONDS)}
            return {"format": FORMAT, "options": peer_options(self._stream, url) | limits}
        keys = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret", "initialPosition": "trim_horizon"}
        options = {"streamName": self._stream, "endpointUrl": url, "maxRecordsPerTrigger": limit, **keys}
        return {"format": "kinesis", "options": options | {"shardFetchInterval": "1s"}}

    def _wait_for_rows(self, count: int, *, in_sink: bool = False) -> None:
        """Wait for so many rows, or until no more come."""
        counted = rows_in_sink if in_sink else rows_run
        most, changed = counted(self._folder), time.monotonic()
        while most < count and time.monotonic() - changed < QUIET_SECONDS:
            assert self._jobs.current.alive, "the Spark process ended"
            time.sleep(_POLL_SECONDS)
            if (now := counted(self._folder)) > most:
                most, changed = now, time.monotonic()

    def _note_errors(self) -> None:
        found = self._jobs.current.query_errors()
        self._errors += found[self._errors_seen :]
        self._errors_seen = len(found)

    def _outcome(self) -> dict[str, Any]:
        findings = examine(sink_rows(self._folder), attempts(self._folder), self._published, key="sequenceNumber")
        resharded = {} if self._load is None else {"splits": self._load.splits, "merges": self._load.merges}
        return {
            "faults": [f"{count} {name}" for name, count in findings.faults.items()],
            "killed": self._killed,
            "counts": {"messages": len(self._published), "kills": len(self._killed), **resharded, **asdict(findings)},
            "query_errors": [first_line(error) for error in self._errors],
        }


PARTS = {
    "split_before": PeerTrial.split_before,
    "split_while_read": PeerTrial.split_while_read,
    "empty_data": PeerTrial.empty_data,
    "kills": PeerTrial.kill,
    "kills_and_splits": PeerTrial.kill_and_split,
}


def together(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the outcome of a trial for its record: it is about ours, and has what was counted of theirs beside it."""
    ours = sides[OURS]
    killed = {"killed": ours["killed"]} if ours["killed"] else {}
    return {
        "ok": not ours["faults"],
        **killed,
        **{name: ours[name] for name in ("faults", "counts", "query_errors")},
        "theirs": sides[THEIRS],
    }
