"""Wall clock and processor time of a query on Kinesis, ours beside awslabs' spark-sql-kinesis-connector.

Each side is a process with a Spark session of its own, local[2], on the oldest Spark that both run on. The peer is
built by Maven from the source of one commit, which comes by git from its public address or from what
`KINESIS_PEER_SOURCE` names. Both read by polling, from four shards of the server of `connectors.testing`, in a process
of its own; theirs speaks JSON, since the server has no CBOR. All records are in the stream beforehand, by their times
of arrival within 40 s. Measured is from `start()` to the last row in `foreachBatch`, which sums up `data`; and the
processor time of all that the side consists of (`-cpu`), as theirs / ours: more than 1 means that ours is ahead.

    100, 1024              800,000 records of 100 B, 200,000 of 1 KB; no pauses between calls, no limits of the service
    told-100, told-1024    200,000 of 100 B, 60,000 of 1 KB, likewise; theirs is told how many records a shard has, so
                           that it does not wait at the end for more
    few                    40 records, options at their defaults, the first query of a new session
    default-100, -1024     as 100 and 1024, options at their defaults, and the server keeps the service's limits
    sink                   20,000 rows of 200 B into a stream; skipped, and why is printed

What cannot be had is skipped: the last line before the ratios counts it.

    ./dev bench kinesis_peer [--cases CASE...] [--portion 0.01]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from _common import Benchmark, Side, interleaved, parser
from _program import Program

from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.chaos.rigs.versions import on_spark
from tests.support.kinesis_peer import COMMIT, FORMAT, JAVA_OPTIONS, SPARK, Peer, build_peer, peer_options

SHARDS = 4
ARRIVAL_SECONDS = 40
SINK = "sink"
SINK_REASON = (
    "its sink gives the native KPL the region and not kinesis.endpointUrl, so that it writes to the service alone; "
    "what a proxy leads elsewhere is refused, since the KPL checks certificates against those in its own jar"
)
OURS, THEIRS = "kinesis", "spark-sql-kinesis-connector"
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
    keys = {"awsAccessKey": "AKIATEST", "awsSecretKey": "test-secret", "initialPosition": "trim_horizon"}
    told = {"kinesis.maxFetchRecordsPerShard": str(case.rows // SHARDS)} if case.told else {}
    return {
        OURS: {"streamName": stream, "endpointUrl": server.url, **keys, **case.ours},
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
    spent: dict[str, list[float]] = {OURS: [], THEIRS: []}
    firsts: dict[str, list[float]] = {OURS: [], THEIRS: []}

    def run(side: str, options: Mapping[str, str]) -> float:
        kind = {OURS: "kinesis", THEIRS: FORMAT}[side]
        with sides.session(side, cold=case.cold) as program:
            before = program.cpu_seconds()
            found = program.ask({"do": "read", "name": kind, "options": options, "rows": case.rows})
            spent[side].append(program.cpu_seconds() - before)
        assert found["rows"] == case.rows, f"{side} read {found['rows']} of {case.rows} records"
        firsts[side].append(found["first"])
        return float(found["seconds"])

    runs: dict[str, Callable[[], float]] = {
        side: partial(run, side, options) for side, options in options_of(case, server, stream).items()
    }
    if not case.cold:
        for warm in runs.values():
            warm()
        for measured in (spent, firsts):
            measured.update({OURS: [], THEIRS: []})
    mine, other = interleaved(runs, rounds)
    benchmark.compare(name, mine, other, "s", less_is_better=True)
    costs = (Side(side, spent[side]) for side in (OURS, THEIRS))
    benchmark.compare(f"{name}-cpu", *costs, "s of processor time", less_is_better=True)
    for side, values in firsts.items():
        benchmark.show(f"{name}-first", Side(side, values), "s to the first row")
    server.enforce_limits(on=False)
    server.delete_stream(stream)


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--portion", type=float, default=1.0, help="of the records of each case, for a trial")
    told = arguments.parse_args()
    benchmark = Benchmark("kinesis_peer")
    wanted = [name for name in (*CASES, SINK) if not told.cases or name in told.cases]
    skipped = {SINK: SINK_REASON} if SINK in wanted else {}
    peer = build_peer()
    if peer.reason:
        skipped = dict.fromkeys(wanted, peer.reason)
    with contextlib.ExitStack() as stack:
        measured = [name for name in wanted if name not in skipped]
        if measured:
            server = stack.enter_context(start_server_process(call_limit=0))
            sides = stack.enter_context(Sides(peer))
            versions = {"peer": f"awslabs/{THEIRS} {COMMIT[:7]}, AWS SDK {peer.sdk}", "spark": sides.spark}
            benchmark.settings(**versions, shards=SHARDS, protocol="JSON", portion=told.portion)
        for name in measured:
            case = CASES[name]
            rows = max(SHARDS, int(case.rows * told.portion) // SHARDS * SHARDS)
            part = case if told.portion == 1 else Case(**{**vars(case), "rows": rows})
            compare(benchmark, sides, server, name, part, told.rounds)
    for name, reason in skipped.items():
        benchmark.note(name, f"skipped: {reason}")
    print(f"skipped: {len(skipped)} of {len(wanted)} cases")
    benchmark.finish()


if __name__ == "__main__":
    main()
