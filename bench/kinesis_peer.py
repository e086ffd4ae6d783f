"""Wall clock and processor time of a query on Kinesis, ours beside awslabs' spark-sql-kinesis-connector.

Each side is a process with a Spark session of its own, local[2], on the oldest Spark that both run on. The peer is
built by Maven from the source of one commit, which comes by git from its public address or from what
`KINESIS_PEER_SOURCE` names. Both read by polling, from four shards of the server of `connectors.testing`, in a process
of its own; theirs reads JSON, since the server has no CBOR. All records are in the stream beforehand, by their times
of arrival within 40 s. Measured is from `start()` to the last row in `foreachBatch`, which sums up `data`; and the
processor time of all that the side consists of (`-cpu`), as theirs / ours: more than 1 means that ours is ahead.

    100, 1024              800,000 records of 100 B, 200,000 of 1 KB; no pauses between calls, no limits of the service
    told-100, told-1024    200,000 of 100 B, 60,000 of 1 KB, likewise; theirs is told how many records a shard has, so
                           that it does not wait at the end for more
    few                    40 records, options at their defaults, the first query of a new session
    default-100, -1024     as 100 and 1024, options at their defaults, and the server keeps the service's limits
    sink, sink-plain       20,000 rows of 200 B from files into a stream, with and without aggregation, both by TLS,
                           which the peer's native KPL always speaks; from `start()` to the end of the query

What cannot be had is skipped: the last line before the ratios counts it.

    ./dev bench kinesis_peer [--cases CASE...] [--portion 0.01]
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from _common import Benchmark, Side, interleaved, parser
from _program import Program

from connectors.testing.kinesis import KinesisControl, KinesisServerProcess, start_server_process
from tests.chaos.rigs.versions import on_spark
from tests.servers.certificates import make_certificates
from tests.support.kinesis_peer import COMMIT, FORMAT, JAVA_OPTIONS, SPARK, Peer, build_peer, peer_options

SHARDS = 4
ARRIVAL_SECONDS = 40
SINK_ROWS = 20_000
SINK_BYTES = 200
SINKS = {"sink": "true", "sink-plain": "false"}
"""Whether records are aggregated."""
OURS, THEIRS = "kinesis", "spark-sql-kinesis-connector"
KINDS = {OURS: "kinesis", THEIRS: FORMAT}
KEYS = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret"}
_SINK_FILES = 8
_PUT_RECORDS = 10_000
_FEW = 1000


@dataclass(frozen=True)
class Case:
    """What is read.

    Attributes:
        rows: records in the stream.
        size: bytes of each.
        ours: options beside those that name the stream.
        theirs: likewise.
        told: theirs is told how many records a shard has.
        cold: each query is the first one of a new session.
        limits: the server keeps the service's limits.
    """

    rows: int
    size: int
    ours: Mapping[str, str] = field(default_factory=lambda: {"minFetchPeriod": "1ms", "maxFetchRate": "1000"})
    theirs: Mapping[str, str] = field(default_factory=lambda: {"kinesis.getRecords.fetchIntervalMs": "0"})
    told: bool = False
    cold: bool = False
    limits: bool = False


CASES = {
    "100": Case(800_000, 100),
    "1024": Case(200_000, 1024),
    "told-100": Case(200_000, 100, told=True),
    "told-1024": Case(60_000, 1024, told=True),
    "few": Case(40, 100, {}, {}, cold=True),
    "default-100": Case(800_000, 100, {}, {}, limits=True),
    "default-1024": Case(200_000, 1024, {}, {}, limits=True),
}


class Sides:
    """Both sides, each with a warm session that is used where no new one is asked for; a context manager.

    Attributes:
        spark: the version of Spark of both.
    """

    def __init__(self, peer: Peer) -> None:
        self._python = on_spark(SPARK).python
        self._arguments = {OURS: ("", ""), THEIRS: (peer.jar, JAVA_OPTIONS)}
        self._warm: dict[str, Program] = {}
        with self.session(OURS, cold=False):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._warm.values():
            program.close()

    @contextlib.contextmanager
    def session(self, side: str, *, cold: bool) -> Iterator[Program]:
        """A session: a new one, which then ends, or the warm one."""
        if not cold and side in self._warm:
            yield self._warm[side]
            return
        program = Program("_kinesis_peer_side.py", *self._arguments[side], python=self._python)
        try:
            self.spark = str(next(program.reports())["spark"])
            if not cold:
                self._warm[side] = program
            yield program
        finally:
            if cold:
                program.close()


def fill(server: KinesisServerProcess, stream: str, case: Case) -> None:
    """Put the records of a case as if they had arrived over 40 s; as many into each shard if it is told or few."""
    done = 0
    for second in range(1, ARRIVAL_SECONDS + 1):
        wanted = case.rows * second // ARRIVAL_SECONDS
        if case.told or case.rows < _FEW:
            put_evenly(server, stream, range(done, wanted), case.size)
        elif wanted > done:
            server.fill(stream, wanted - done, case.size, keys=wanted - done)
        server.jump(1)
        done = wanted


def put_evenly(server: KinesisServerProcess, stream: str, numbers: range, size: int) -> None:
    """Put records, the first into the first shard, the second into the second one."""
    for shard in range(SHARDS):
        own = [
            (f"key-{number}", str(number).rjust(size, ".").encode()) for number in numbers if number % SHARDS == shard
        ]
        for start in range(0, len(own), _PUT_RECORDS):
            hash_key = (2 * shard + 1) * (1 << 128) // (2 * SHARDS)
            server.put(stream, own[start : start + _PUT_RECORDS], explicit_hash_key=hash_key)


def options_of(case: Case, server: KinesisServerProcess, stream: str) -> dict[str, dict[str, str]]:
    """The options of both sides."""
    told = {"kinesis.maxFetchRecordsPerShard": str(case.rows // SHARDS)} if case.told else {}
    return {
        OURS: {"streamName": stream, "endpointUrl": server.url, **KEYS, "initialPosition": "trim_horizon", **case.ours},
        THEIRS: peer_options(stream, server.url) | case.theirs | told,
    }


def compare(
    benchmark: Benchmark, sides: Sides, server: KinesisServerProcess, name: str, case: Case, rounds: int
) -> None:
    """Fill a stream, and read it by both sides in turn."""
    stream = f"peer-{name}"
    server.create_stream(stream, SHARDS)
    fill(server, stream, case)
    server.enforce_limits(on=case.limits)
    options = options_of(case, server, stream)
    firsts: dict[str, list[float]] = {OURS: [], THEIRS: []}

    def read(side: str, program: Program) -> float:
        found = program.ask({"do": "read", "name": KINDS[side], "options": options[side], "rows": case.rows})
        assert found["rows"] == case.rows, f"{side} read {found['rows']} of {case.rows} records"
        firsts[side].append(found["first"])
        return float(found["seconds"])

    measure(benchmark, sides, name, read, rounds, cold=case.cold)
    for side, values in firsts.items():
        benchmark.show(f"{name}-first", Side(side, values[-rounds:]), "s to the first row")
    server.enforce_limits(on=False)
    server.delete_stream(stream)


def measure(
    benchmark: Benchmark, sides: Sides, name: str, run: Callable[[str, Program], float], rounds: int, *, cold: bool
) -> None:
    """Run both sides in turn, after a warm-up unless each session is new; print wall clock and processor time."""
    spent: dict[str, list[float]] = {OURS: [], THEIRS: []}

    def timed(side: str) -> float:
        with sides.session(side, cold=cold) as program:
            before = program.cpu_seconds()
            seconds = run(side, program)
            spent[side].append(program.cpu_seconds() - before)
        return seconds

    runs: dict[str, Callable[[], float]] = {side: partial(timed, side) for side in (OURS, THEIRS)}
    if not cold:
        for warm in runs.values():
            warm()
    mine, other = interleaved(runs, rounds)
    benchmark.compare(name, mine, other, "s", less_is_better=True)
    costs = (Side(side, spent[side][-rounds:]) for side in (OURS, THEIRS))
    benchmark.compare(f"{name}-cpu", *costs, "s of processor time", less_is_better=True)


def compare_sinks(
    benchmark: Benchmark, sides: Sides, certificates: Path, names: list[str], command_line: Namespace
) -> None:
    """Write the same files into new streams by both sides in turn, and count what arrived."""
    rows = int(SINK_ROWS * command_line.portion)
    with (
        Program("_kinesis_tls_server.py", str(certificates), "0") as program,
        tempfile.TemporaryDirectory() as folder,
    ):
        found = next(program.reports())
        write_files(Path(folder) / "rows", rows, SINK_BYTES)
        with KinesisControl(found["endpoint"]) as server:

            def write(side: str, program: Program) -> float:
                server.create_stream("sink", SHARDS)
                to = sink_options(found["url"], aggregation)[side]
                answer = program.ask({"do": "write", "name": KINDS[side], "options": to, "folder": f"{folder}/rows"})
                records = len(server.records("sink"))
                assert records < rows if aggregation == "true" else records == rows, f"{side} wrote {records} records"
                server.delete_stream("sink")
                return float(answer["seconds"])

            for name in names:
                aggregation = SINKS[name]
                measure(benchmark, sides, name, write, command_line.rounds, cold=False)


def sink_options(url: str, aggregation: str) -> dict[str, dict[str, str]]:
    """The options of both sinks."""
    return {
        OURS: {"streamName": "sink", "endpointUrl": url, **KEYS, "aggregation": aggregation},
        THEIRS: peer_options("sink", url) | {"kinesis.sink.aggregationEnabled": aggregation},
    }


def write_files(folder: Path, count: int, size: int) -> None:
    """Write rows as JSON lines, in some files."""
    folder.mkdir()
    for number in range(_SINK_FILES):
        rows = range(number * count // _SINK_FILES, (number + 1) * count // _SINK_FILES)
        lines = [json.dumps({"partitionKey": f"key-{row % 1000}", "data": str(row).rjust(size, ".")}) for row in rows]
        (folder / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--portion", type=float, default=1.0, help="of the records of each case, for a trial")
    command_line = arguments.parse_args()
    benchmark = Benchmark("kinesis_peer")
    wanted = [name for name in (*CASES, *SINKS) if not command_line.cases or name in command_line.cases]
    peer = build_peer()
    if peer.reason:
        for name in wanted:
            benchmark.note(name, f"skipped: {peer.reason}")
    else:
        run(benchmark, peer, wanted, command_line)
    print(f"skipped: {len(wanted) if peer.reason else 0} of {len(wanted)} cases")
    benchmark.finish()


def run(benchmark: Benchmark, peer: Peer, wanted: list[str], command_line: Namespace) -> None:
    """Run the cases."""
    with contextlib.ExitStack() as stack:
        certificates = make_certificates(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tls")
        os.environ["AWS_CA_BUNDLE"] = str(certificates / "ca.pem")  # which ours reads
        server = stack.enter_context(start_server_process(call_limit=0))
        sides = stack.enter_context(Sides(peer))
        name = f"awslabs/{THEIRS} {COMMIT[:7]}, AWS SDK {peer.sdk}"
        benchmark.settings(peer=name, spark=sides.spark, shards=SHARDS, protocol="JSON", portion=command_line.portion)
        for name, case in CASES.items():
            if name in wanted:
                rows = max(SHARDS, int(case.rows * command_line.portion) // SHARDS * SHARDS)
                part = case if command_line.portion == 1 else replace(case, rows=rows)
                compare(benchmark, sides, server, name, part, command_line.rounds)
        if sinks := [name for name in SINKS if name in wanted]:
            compare_sinks(benchmark, sides, certificates, sinks, command_line)


if __name__ == "__main__":
    main()
