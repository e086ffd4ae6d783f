"""The pages on performance, out of docs/performance.json: what ``./dev bench --publish`` has measured.

``docs/performance.md`` has the figures, ``docs/explanation/performance.md`` what a row costs in each stage. Both are
rendered from the record alone, so a page can be written again without measuring again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "RECORD", "STAGES_PAGE", "Record", "page", "read_record", "stages_page", "write_pages"]

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "performance.json"
PAGE = ROOT / "docs" / "performance.md"
STAGES_PAGE = ROOT / "docs" / "explanation" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
RATIOS, LATENCY, GROWTH = "performance-ratios.svg", "performance-latency.svg", "performance-growth.svg"
MISSING = "not measured"
OURS, THEIRS = "kafka_py", "kafka"
_WHOLE = 100
_STAGES = "stages"


@dataclass(frozen=True)
class Ratio:
    """A ratio as measured.

    Attributes:
        benchmark: what measured it.
        case: its case.
        value: the ratio of the medians.
        rounds: the ratio of each round.
        ours: what ours is.
        theirs: what it is compared with.
    """

    benchmark: str
    case: str
    value: float
    rounds: tuple[float, ...]
    ours: str
    theirs: str

    @property
    def spread(self) -> str:
        """The least and the most of its rounds."""
        return f"{number(min(self.rounds))} to {number(max(self.rounds))}" if self.rounds else "-"


class Record:
    """What was measured.

    Args:
        content: the JSON object: ``machine``, and ``units`` by their keys.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.machine: Mapping[str, str] = content["machine"]
        self.units: Mapping[str, Mapping[str, Any]] = content["units"]

    def all(self, kind: str) -> Iterator[tuple[str, Any]]:
        """What all units have of a kind, each with the name of its benchmark."""
        for unit in self.units.values():
            for found in unit["found"].get(kind, []):
                yield unit["benchmark"], found

    def ratios(self) -> list[Ratio]:
        """All ratios."""
        return [
            Ratio(name, each["case"], each["ratio"], tuple(each["rounds"]), each["ours"], each["theirs"])
            for name, each in self.all("ratios")
        ]

    def ratio(self, benchmark: str, case: str) -> float | None:
        """A ratio, if it was measured."""
        return next((one.value for one in self.ratios() if (one.benchmark, one.case) == (benchmark, case)), None)

    def median(self, benchmark: str, case: str, side: str) -> float | None:
        """The median of a side of a case, if it was measured; the side by the first words of its name."""
        for name, each in self.all("sides"):
            if (name, each["case"]) == (benchmark, case) and f"{each['side']},".startswith(f"{side},"):
                return float(statistics.median(each["values"]))
        return None

    def tables(self, benchmark: str) -> dict[str, list[dict[str, Any]]]:
        """The tables of a benchmark by their titles, those of all its units together."""
        found: dict[str, list[dict[str, Any]]] = {}
        for unit in self.units.values():
            if unit["benchmark"] == benchmark:
                for title, rows in unit["found"].get("tables", {}).items():
                    found.setdefault(title, []).extend(rows)
        return found

    def notes(self, benchmark: str) -> list[str]:
        """The lines that a benchmark had to say on its cases."""
        return [f"{each['case']}: {each['note']}" for name, each in self.all("notes") if name == benchmark]


def read_record() -> Record:
    """Return the committed record."""
    return Record(json.loads(RECORD.read_text(encoding="utf-8")))


def number(value: float) -> str:
    """A figure as pages show it."""
    if value == int(value) or abs(value) >= _WHOLE:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.2g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


@dataclass(frozen=True)
class Asked:
    """A line of what was asked of this pack.

    Attributes:
        work: what is measured.
        peer: what it is compared with.
        asked: the goal.
        benchmark: measures it.
        cases: those that the line has.
        ceilings: their ceilings, if there are any.
        more: what else the line shows.
    """

    work: str
    peer: str
    asked: str
    benchmark: str
    cases: tuple[str, ...]
    ceilings: tuple[str, ...] = ()
    more: Callable[[Record], str] = lambda _record: ""

    def cells(self, record: Record) -> list[str]:
        """Its cells, of which a page can be read without scrolling."""
        now, ceiling = ([record.ratio(self.benchmark, case) for case in some] for some in (self.cases, self.ceilings))
        shares = [a / b if a and b else None for a, b in zip(now, ceiling, strict=False)]
        found = "; ".join(filter(None, (joined(now), self.more(record))))
        share = joined(shares) if ceiling else "-"
        if any(shares):
            share += f" of {joined(ceiling)}"
        return [f"{self.work} (`{self.benchmark}`)", self.peer, self.asked, found, share]


def joined(values: Sequence[float | None]) -> str:
    """Figures in one cell."""
    if not any(value is not None for value in values):
        return MISSING
    return " / ".join(MISSING if value is None else f"{value:.2f}" for value in values)


def _behind(record: Record) -> str:
    found = record.median("kafka_latency", "p50", "behind the ceiling")
    return "" if found is None else f"p50 {abs(found):.0f} ms {'ahead of' if found < 0 else 'behind'} the ceiling"


def _partitions(record: Record) -> str:
    ours, theirs = (record.median("kafka_partitions", "batch-500", name) for name in (OURS, THEIRS))
    if ours is None or theirs is None:
        return ""
    return f"{ours:.1f} s, {abs(ours - theirs):.1f} s {'more' if ours > theirs else 'less'}"


def _pubsub_rows(record: Record) -> str:
    parts = []
    for suffix, words in (("", ""), ("-file-manager", "with [one setting](how-to/latency.md): ")):
        rows = record.median("pubsub_stream", f"rows{suffix}", "ours")
        p50 = record.median("pubsub_stream", f"latency{suffix}", "ours, p50")
        found = ([f"{rows:,.0f} rows/s"] if rows else []) + ([f"p50 {p50:.0f} ms"] if p50 else [])
        parts += [words + ", ".join(found)] if found else []
    return "; ".join(parts)


SIZES = ("100", "200", "1024")
WRITES = ("values-200", "keys-200", "values-1024", "keys-1024")
PEER_CASES = {
    "Kinesis read on Spark 4.1, a backlog of 100 B / 1 KB": ("100", "1024"),
    "the same at the defaults, within the service's limits": ("default-100", "default-1024"),
    "a short query: 40 records, first of a session / 200,000 of 100 B / 60,000 of 1 KB, warm": (
        "few",
        "told-100",
        "told-1024",
    ),
    "Kinesis write on Spark 4.1, 20,000 rows, aggregated / not": ("sink", "sink-plain"),
}
ASKED = (
    Asked(
        "Kafka batch read, 100 B / 200 B / 1 KB",
        "Spark's JVM source",
        ">= 2.5 / 2.2 / 1.7",
        "kafka_read",
        tuple(f"batch-{size}" for size in SIZES),
    ),
    Asked(
        "Kafka stream read, the same sizes",
        "Spark's JVM source",
        ">= 0.92 of the ceiling",
        "kafka_read",
        tuple(f"stream-{size}" for size in SIZES),
        tuple(f"ceiling-{size}" for size in SIZES),
    ),
    Asked(
        "its processor time",
        "Spark's JVM source",
        ">= 0.92 of the ceiling",
        "kafka_read",
        tuple(f"stream-{size}-cpu" for size in SIZES),
        tuple(f"ceiling-{size}-cpu" for size in SIZES),
    ),
    Asked(
        "Kafka write, equal settings: values 200 B / keys 200 B / values 1 KB / keys 1 KB",
        "Spark's JVM sink",
        ">= 1.0, or 0.9 of the ceiling",
        "kafka_write",
        WRITES,
        tuple(f"ceiling-{case}" for case in WRITES),
    ),
    Asked(
        "its processor time",
        "Spark's JVM sink",
        "-",
        "kafka_write",
        tuple(f"{case}-cpu" for case in WRITES),
        tuple(f"ceiling-{case}-cpu" for case in WRITES),
    ),
    Asked(
        "Kafka produce to sink, p50 / p99",
        "Spark's JVM source",
        ">= 0.9, p50 within 15 ms of the ceiling",
        "kafka_latency",
        ("p50", "p99"),
        ("ceiling-p50", "ceiling-p99"),
        _behind,
    ),
    Asked(
        "Kafka batch read of 500 partitions",
        "Spark's JVM source",
        "at most 3 s more",
        "kafka_partitions",
        ("batch-500",),
        more=_partitions,
    ),
    *(
        Asked(
            f"{name}: processor time of a row of a warm stream, 100 B / 1 KB",
            "ready rows that the service's client has fetched before",
            ">= 0.91",
            "limit",
            (f"{case}-100", f"{case}-1024"),
        )
        for name, case in (("Kafka", "kafka"), ("Kinesis", "kinesis"), ("Pub/Sub", "pubsub"))
    ),
    Asked("Kinesis read, 100 B / 1 KB", "a loop of boto3", ">= 12 / 8", "kinesis_read", ("wall-100", "wall-1024")),
    *(
        Asked(words, "awslabs' connector", ">= 1.0", "kinesis_peer", tuple(f"{case}{ending}" for case in cases))
        for name, cases in PEER_CASES.items()
        for words, ending in ((name, ""), ("its processor time", "-cpu"))
    ),
    Asked("Pub/Sub fetch, 100 B / 1 KB", "Google's client", "no less than 40 / 15", "pubsub_fetch", ("100B", "1KB")),
    Asked(
        "Pub/Sub to Spark's noop sink, 1 KB",
        "Google's client alone, no Spark",
        ">= 300,000 rows/s, p50 <= 200 ms",
        "pubsub_stream",
        ("rows",),
        more=_pubsub_rows,
    ),
)
ASKED_HEAD = ("work", "beside", "asked", "now", "share of the ceiling")


def latency_sides(record: Record) -> dict[str, dict[str, dict[str, float]]]:
    """The latencies under load (ms) by case, side, and percentile."""
    cases: dict[str, dict[str, dict[str, float]]] = {}
    for name, each in record.all("sides"):
        if name == "latency_under_load":
            case, _, word = each["case"].rpartition("-")
            cases.setdefault(case, {}).setdefault(each["side"], {})[word] = statistics.median(each["values"])
    return cases


def latency_cells(record: Record) -> list[list[str]]:
    """The rows of the table of latencies under load."""
    rows = []
    for case, sides in latency_sides(record).items():
        theirs = sides.get(THEIRS)
        mine = next(words for name, words in sides.items() if name != THEIRS)
        ratios = [record.ratio("latency_under_load", f"{case}-{word}") for word in ("p50", "p99")]
        shown = [f"{words['p50']:,.0f} / {words['p99']:,.0f}" if words else "-" for words in (mine, theirs)]
        rows.append([f"`{case}`", *shown, joined(ratios) if theirs else "-"])
    return rows


def _section(title: str, *parts: str) -> str:
    return "\n\n".join([f"## {title}", *filter(None, parts)])


def _tables(record: Record, benchmark: str) -> str:
    parts = []
    for title, rows in record.tables(benchmark).items():
        cells = [[each if isinstance(each, str) else number(each) for each in row.values()] for row in rows]
        parts.append(f"{title}:\n\n{table(list(rows[0]), cells)}")
    return "\n\n".join(parts) or f"{MISSING.capitalize()}."


def _notes(record: Record, *benchmarks: str) -> str:
    return "\n".join(f"- {line}" for name in benchmarks for line in record.notes(name))


def _picture(record: Record, words: str, name: str, *benchmarks: str) -> str:
    shown = any(unit["benchmark"] in benchmarks for unit in record.units.values())
    return f"![{words}](pictures/{name})" if shown else ""


REASONS = {
    ("kinesis_peer", "told-"): "the jar is told how many records each shard has, and stops there; ours reads until the "
    "service says that no more are left",
    (
        "kinesis_peer",
        "few",
    ): "in a first query of 40 records, processor time is that of Python's processes, which start",
    ("kinesis_peer", "default-"): "both wait for the service's limits, and ours waits in more processes",
    ("kafka_read", "stream-"): "rows go from a Python worker to the JVM over a socket, as in the ceiling",
    ("kafka_read", "ceiling-"): "rows go from a Python worker to the JVM over a socket",
    ("kafka_write", "keys-"): "rows go from the JVM to a Python worker over a socket",
    (
        "kafka_latency",
        "",
    ): "a batch starts a task with a Python worker; a source whose rows are there, the ceiling, has the same median",
    (
        "latency_under_load",
        "kafka-",
    ): "a batch starts a task with a Python worker, as in the ceiling of `kafka_latency`",
    ("pubsub_stream", "latency"): "Google's client calls a function for each message, without Spark and its batches",
    ("pubsub_stream", "rows-fetcher"): "the fetch process shares two cores with Spark; alone it has both",
    ("limit", "to-"): "the sink beside it drops its rows, and sends nothing",
    ("limit", "pubsub-"): "ours makes columns of the messages, and writes each to the spool",
    ("limit", ""): "the limit drops what it has fetched, and ours makes columns of it",
}
"""Why a ratio may be below 1, by its benchmark and how its case begins."""


def reason(ratio: Ratio) -> str:
    """Return why a ratio is below 1; empty where it is not."""
    if ratio.value >= 1:
        return ""
    found = (why for (name, case), why in REASONS.items() if ratio.benchmark == name and ratio.case.startswith(case))
    return next(found, "")


INTRODUCTION = """# Performance

How fast each connector is compared with the usual alternative, what it costs while work grows, and what it costs
while nothing comes. `./dev bench --publish` has measured this page and written it; nothing here was typed.

A ratio is that of the medians of interleaved rounds: ours and the peer by turns in one run, on one machine, with the
broker or server beside them. More than 1 always means that ours is ahead: for times, theirs is divided by ours. A
*ceiling* is a Python source that hands Spark ready rows, or a Python sink that drops what it gets, in the same rounds:
what any connector in Python can have. [What a row costs in each stage](explanation/performance.md) says where the rest
goes."""

AGAIN = """`./dev bench --publish` runs the public set, each benchmark in a process of its own, and writes this page,
with its pictures, and `docs/performance.json`. It resumes where it was interrupted: what was measured since the last
change of the code it depends on (its connector, its program and what all share) is not measured again, unless `--fresh`
says so. `--cases kafka_read` picks benchmarks, and `--render` writes the pages from the record without measuring. A
single one runs as `./dev bench kafka_read`. Use a machine that does nothing else: the table says how loaded it was when
each run began."""

LATENCY_WORDS = """Milliseconds from publish to sink, p50 / p99, by medians of rounds. Events of 100 B come from a
process of its own at a steady rate, whatever the query does, and carry the time at which they were sent. No trigger
interval, default settings, the sink is foreachBatch with toArrow. `-async` has asynchronous progress tracking,
`-stateful` has dropDuplicatesWithinWatermark in RocksDB."""


def page(record: Record) -> str:
    """Return docs/performance.md."""
    ratios = [
        [f"`{one.benchmark}`", f"`{one.case}`", number(one.value), one.spread, str(len(one.rounds) or "-"), reason(one)]
        for one in record.ratios()
    ]
    units = [
        [
            f"`{key}`",
            f"`{unit['commit']}`",
            unit["date"],
            f"{unit['seconds'] / 60:.1f}",
            unit.get("processors", "not noted"),
            unit["load"],
        ]
        for key, unit in record.units.items()
    ]
    machine = dict(record.machine)
    if any(unit.get("processors") != machine["processors"] for unit in record.units.values()):
        machine["processors"] = "not the same for all runs: the last table has them"
    total = sum(unit["seconds"] for unit in record.units.values()) / 60
    latency_head = ("case", "ours, ms", "Spark's JVM source, ms", "ratio p50 / p99")
    return (
        "\n\n".join(
            [
                INTRODUCTION,
                table(("", ""), [[key, value] for key, value in machine.items()]),
                _section(
                    "Asked, and now",
                    table(ASKED_HEAD, [line.cells(record) for line in ASKED]),
                    _picture(
                        record, "Each ratio with its spread, and the ceilings", RATIOS, "kafka_read", "kafka_write"
                    ),
                ),
                _section(
                    "Latency under load",
                    LATENCY_WORDS,
                    table(latency_head, latency_cells(record)) if latency_cells(record) else f"{MISSING.capitalize()}.",
                    _notes(record, "latency_under_load"),
                    _picture(record, "p50 and p99 under load", LATENCY, "latency_under_load"),
                ),
                _section(
                    "Cost as the work grows",
                    _tables(record, "growth"),
                    _notes(record, "growth"),
                    _picture(record, "Cost by partitions, shards, subscriptions and batches", GROWTH, "growth"),
                ),
                _section("Idle", _tables(record, "idle")),
                _section(
                    "Each ratio",
                    table(("benchmark", "case", "ratio", "of single rounds", "rounds", "below 1 because"), ratios),
                ),
                _section(
                    "How to run it",
                    AGAIN,
                    table(("run", "commit", "on", "minutes", "processors", "load average before it"), units),
                    f"All of it took {total:.0f} minutes.",
                ),
                "",
            ]
        ).rstrip("\n")
        + "\n"
    )


STAGES_WORDS = """# What a row costs, stage by stage

Processor time of a row in each stage of each connector, in microseconds: of all cores together, so stages add up
whatever runs at the same time. `./dev bench stages` measures it, `./dev bench --publish` writes this page
([machine and versions](../performance.md)). The column *whose* says what could be changed: what is Spark's, the cloud
client's or librdkafka's is taken by every source in Python; what is the connector's is ours.

- A **client** fetches, checks and splits what comes over the network.
- **Decoding** and **Arrow columns** turn that into Arrow arrays without a Python object for each row, where possible.
- A worker of Spark writes each Arrow batch to the JVM over a **socket**, and the **JVM** reads it into rows. For Kafka
  both are measured with a source that has one ready batch and yields it again and again, or with a sink that drops what
  it gets (`bench/_ready_rows.py`): the ceilings of [the table](../performance.md#asked-and-now).
- The **rest** is what our whole job takes more than all of that: planning, turning to other partitions, waiting
  threads, and what stages cost each other in caches. A negative rest means that a stage alone was slower than in the
  job."""


LIMIT_WORDS = """What a row, a batch and the start of a query take in a session that has read 5 million rows before. In
a stream that runs for months, rows decide. A run every ten minutes (`availableNow=True`) also pays for the start of its
query and its batches. A job of a minute pays for its session too, and for a first query, while the JVM compiles.

*limit* is a source that has the service's own client fetch as many records, drops them, and gives Spark as many ready
rows: no source in Python can take less. *ready* fetches nothing. For Pub/Sub the limit is a raw stub plus ready rows,
and ours includes the fetchers, which write each message to the spool. *dropped* is a sink in Python that drops its
rows. A query of Kinesis has one batch, which is part of its start. Medians of rounds by turns, by
`./dev bench limit`."""


def stages_page(record: Record) -> str:
    """Return docs/explanation/performance.md."""
    parts = [STAGES_WORDS]
    for title, rows in record.tables(_STAGES).items():
        cells = [[each if isinstance(each, str) else number(each) for each in row.values()] for row in rows]
        sums: dict[str, float] = {}
        for row in rows:
            sums[row["row"]] = sums.get(row["row"], 0.0) + row["us a row"]
        together = ", ".join(f"{number(value)} us for {size}" for size, value in sums.items())
        command = f"`./dev bench stages --cases {_case_of(title)}`"
        parts.append(_section(title, table(list(rows[0]), cells), f"Together {together}. Measured by {command}."))
    if not record.tables(_STAGES):
        parts.append(f"{MISSING.capitalize()}.")
    parts.append(_section("A warm stream, and its limit", LIMIT_WORDS, _tables(record, "limit")))
    return "\n\n".join(parts) + "\n"


def _case_of(title: str) -> str:
    return {"Pub/Sub": "pubsub"}.get(title, title.lower().replace(" ", "-"))


def write_pages(record: Record) -> None:
    """Write both pages and their pictures."""
    from tools.performance_plots import pictures  # noqa: PLC0415 - takes a second to import

    PAGE.write_text(page(record), encoding="utf-8")
    STAGES_PAGE.write_text(stages_page(record), encoding="utf-8")
    for name, text in pictures(record).items():
        (PICTURES / name).write_text(text, encoding="utf-8")
