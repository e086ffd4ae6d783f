"""``./dev chaos report``: docs/faults/report.md and its picture, from the records of the fault runs beside them.

It runs no fault; a test holds that both say what the records say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.support.record import ROOT, upper_bound
from tests.chaos.support.report_sections import SECTIONS, table

FOLDER = ROOT / "docs" / "faults"
REPORT = FOLDER / "report.md"
PICTURE = ROOT / "docs" / "pictures" / "faults.svg"

CONNECTORS = {"kafka": "Kafka", "kinesis": "Kinesis", "pubsub": "Pub/Sub", "registry": "Schema registry"}
SOURCES = ("kafka", "kinesis", "pubsub")

NOT_FAULTS = ("docs", "packaging")
"""Records of runs in which nothing is broken."""

OWN_TABLES = ("avro", "hostile")
"""What they do breaks nothing, and has a table of its own."""

ONE_CONNECTOR = {"stores": "pubsub", "peers": "kinesis"}
"""Runs about one connector whose name they do not have."""

VICTIMS = {
    "jvm": "JVM of the driver killed",
    "driver": "all processes of the driver killed at once",
    "source_runner": "source process killed",
    "fetcher": "fetcher killed",
    "worker": "Python worker killed",
}
NETWORK = {
    "latency": "network: 500 ms more for each response",
    "resets": "network: 5 % of connections reset",
    "bandwidth": "network: 50 kB/s each way",
    "half_open": "network: half-open connections",
    "outage_5_s": "network: outage of 5 s",
    "outage_60_s": "network: outage of 60 s",
    "outage_10_min": "network: outage of 10 min by the server's clock",
    "asymmetric_kill": "network: responses lost while a process is killed",
    "asymmetric_jvm_kill": "network: responses lost while the JVM is killed",
}
CLUSTER = {
    "executor": "cluster: executor killed",
    "fetching_executor": "cluster: executor that fetches killed",
    "machine": "cluster: machine lost, another joins",
    "driver": "cluster: driver killed",
    "allocation": "cluster: executor released by dynamic allocation",
    "decommission": "cluster: executor decommissioned",
}
HAS_NONE = {(VICTIMS["fetcher"], "kafka"): "has none"}
HAS_NONE |= {(CLUSTER["fetching_executor"], key): "has none" for key in ("kafka", "kinesis")}
HAS_NONE |= {(fault, "registry"): "in no flow" for fault in CLUSTER.values()}
NAMED = {"network": NETWORK, "cluster": CLUSTER}
"""The faults of a run that has one in each trial."""

AT_A_STEP = "killed at a durable step, before or after it"
CLIENTS = "records of other clients"
BROKE_OFF = "trials that broke off before their fault"
UPGRADED = "an earlier version killed within a batch, which this one finishes"
MOVED = "killed within a batch, which another version of Spark finishes"
SUMS = ("messages", "lost", "doubled", "replays_compared", "replays_differing")

BY_TESTS = (
    ("disk full, read-only, failing at any call", "tests/unit/spool/store/test_disk.py"),
    ("a ledger or spool file torn at any byte, a bit flipped", "tests/unit/spool/ledger/test_recovery.py"),
    ("power loss: what was not synced is gone", "tests/chaos/power_loss.py"),
    ("clocks that jump", "tests/unit/spool/store/test_object_store_pauses.py"),
    ("duplicates, redelivery after the ack, lost acks", "tests/integration/pubsub"),
    ("files of a spool deleted, swapped, linked, foreign", "tests/unit/spool/ledger/test_recovery.py"),
    ("every pair of old, new, copied and foreign checkpoint and spool", "tests/unit/spool/stream/test_mixes.py"),
    ("two queries on one spool", "tests/unit/spool/ledger/test_records.py"),
    ("task retries, a zombie after an abort", "tests/contract"),
    ("throttling and expired credentials", "tests/integration/kinesis"),
)
"""Faults that are not random: each is made in `./dev test` or `./dev chaos power_loss`, so no record counts them."""

NOT_RUN = (
    "the clouds themselves: every service here is an emulator, a server of ours, or a real broker on one machine",
    "more than one machine",
    "a mixed run of 10,000 random actions for 30 minutes",
)


@dataclass
class Cell:
    """What one fault did to one connector.

    Attributes:
        faults: how many there were.
        failed: in how many trials something was wrong.
    """

    faults: int = 0
    failed: int = 0

    def text(self, *, random: bool) -> str:
        """Return the cell; faults at random moments have a bound, others are at the same place each time."""
        if not self.faults:
            return "not run"
        if self.failed:
            return f"**{self.faults}, wrong in {self.failed} trial{'s' if self.failed > 1 else ''}**"
        return f"{self.faults}, none wrong" + (f"; < {upper_bound(self.faults):.1%}" if random else "")


@dataclass
class Report:
    """The records of all runs, as one matrix.

    Attributes:
        records: as in their files, by name.
        cells: by fault and connector.
    """

    records: Mapping[str, Mapping[str, Any]]
    cells: dict[str, dict[str, Cell]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Cell)))

    def __post_init__(self) -> None:
        for record in self.records.values():
            for trial in record["trials"]:
                for connector, fault, count in faults_of(record["what"], trial):
                    cell = self.cells[fault][connector]
                    cell.faults += count
                    cell.failed += not trial["ok"]

    def sums(self) -> Counter[str]:
        """Return the faults of the matrix, and what was counted in all trials."""
        answer = Counter(dict.fromkeys(("faults", *SUMS), 0))
        answer["faults"] = sum(cell.faults for row in self.cells.values() for cell in row.values())
        for record in self.records.values():
            answer.update(_sums(record))
        return answer


def read_records(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Read the records of a folder that are about faults."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: record for name, record in records.items() if name not in NOT_FAULTS and "trials" in record}


def faults_of(what: str, trial: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Return what was done in a trial: connector, fault, how often."""
    if what in OWN_TABLES:
        return
    connector = _connector(what, trial)
    killed = Counter(trial.get("killed", ()))
    if trial["part"] == "paused":
        yield connector, f"paused for 60 s: {trial['fault'].replace('_', ' ')}", 1
    elif what in NAMED:
        # A trial that broke off has nothing but its name.
        fault = trial.get("fault") or next(name for name in NAMED[what] if name in trial["trial"])
        yield connector, NAMED[what].get(fault, f"{what}: {fault}"), 1
    elif trial["part"].endswith("-moves"):
        yield connector, MOVED, len(trial.get("moves", ())) or 1
    elif what == "upgrade":
        yield connector, UPGRADED, 1
    elif "killed_at" in trial or "crashed_at" in trial:
        yield connector, AT_A_STEP, trial.get("counts", {}).get("kills", 1)
    elif what == "clients":
        yield connector, CLIENTS, 1
    elif not killed and not trial["ok"]:
        yield connector, BROKE_OFF, 1
    else:
        for victim, count in killed.items():
            yield connector, VICTIMS.get(victim, f"{victim} killed"), count


def _connector(what: str, trial: Mapping[str, Any]) -> str:
    if what in ONE_CONNECTOR:
        return ONE_CONNECTOR[what]
    names = (str(trial.get("connector", "")), str(trial.get("flow", "")), trial["trial"], trial["part"], what)
    return next(one for name in names for one in CONNECTORS if name.startswith(one))


def _sums(record: Mapping[str, Any]) -> Counter[str]:
    counts = [trial.get("counts", {}) for trial in record["trials"]]
    return Counter({name: sum(each.get(name, 0) for each in counts) for name in SUMS})


def page(report: Report) -> str:
    """Return the report as Markdown."""
    sums = report.sums()
    lines = [
        "# What each connector does under each fault",
        "",
        (
            f"**{sums['faults']:,} faults; of {sums['messages']:,} messages {sums['lost']:,} lost, {sums['doubled']:,} "
            f"doubled; {sums['replays_compared']:,} replays compared, {sums['replays_differing']:,} differ.**"
        ),
        "",
        (
            "Each number is counted from the records in this folder, which have the seed of every trial; "
            "`./dev chaos report` makes this page from them. A cell says how many such faults there were, and in how "
            "many trials a message was lost or doubled, a row was out of order, a replay differed, or a query ended "
            "without a named error; for kills at random moments also the rate of failure that so many exclude with "
            "95 % confidence, 1 - 0.05^(1/n), about 3/n, if they are independent. A trial that failed and ran again "
            "after a fix stays in its record, and the table of records counts it."
        ),
    ]
    order = [*VICTIMS.values(), AT_A_STEP, *NETWORK.values(), *CLUSTER.values()]
    order += sorted(set(report.cells) - set(order))
    rows = []
    for fault in order:
        random = fault in VICTIMS.values()
        texts = (HAS_NONE.get((fault, key)) or report.cells[fault][key].text(random=random) for key in CONNECTORS)
        rows.append((fault, *texts))
    lines += table(("fault", *CONNECTORS.values()), rows)
    titles = ("run", "trials", "failed", "messages", "lost", "doubled", "replays", "of", "code")
    lines += ["", "## The records", *table(titles, (_record_cells(*each) for each in report.records.items()))]
    for name, record in report.records.items():
        lines += ["", *SECTIONS[name](record)] if name in SECTIONS else []
    by_tests = table(("fault", "tests"), ((fault, f"`{path}`") for fault, path in BY_TESTS))
    lines += ["", "## Faults that are made in every test run", *by_tests]
    lines += ["", "## What was not run", ""]
    lines += [f"- {what}" for what in NOT_RUN]
    lines += ["", "[What was tested](../explanation/tested.md) says against which servers.", ""]
    return "\n".join(lines)


def _record_cells(name: str, record: Mapping[str, Any]) -> tuple[object, ...]:
    sums = _sums(record)
    failed = sum(not trial["ok"] for trial in record["trials"])
    before = len(record.get("before", ()))
    versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    return (
        f"[`./dev chaos {record['what']}`]({name}.json)",
        len(record["trials"]),
        f"{failed}; {before} before a fix" if before else failed,
        f"{sums['messages']:,}",
        f"{sums['lost']:,}",
        f"{sums['doubled']:,}",
        f"{sums['replays_compared']:,}, {sums['replays_differing']:,} differ",
        f"{record['ended']}, {versions}",
        f"`{record['commit'][:7]}`" + (f" to `{last[:7]}`" if (last := _last_commit(record)) else ""),
    )


def _last_commit(record: Mapping[str, Any]) -> str | None:
    """Return the commit of the newest trial, if it is another one than that of the first."""
    return next((trial["commit"] for trial in reversed(record["trials"]) if "commit" in trial), None)


def picture(report: Report) -> str:
    """Return a picture of the sums, as SVG for light and dark pages."""
    sums = report.sums()
    per_connector = {key: sum(row[key].faults for row in report.cells.values() if key in row) for key in SOURCES}
    tiles = [
        *((f"{count:,}", f"faults, {CONNECTORS[key]}") for key, count in per_connector.items()),
        (f"{sums['lost']:,}", f"of {sums['messages']:,} lost"),
        (f"{sums['doubled']:,}", "doubled"),
        (f"{sums['replays_differing']:,}", f"of {sums['replays_compared']:,} replays differ"),
    ]
    width, gap = 150, 10
    shapes = []
    for number, (value, words) in enumerate(tiles):
        left = gap + number * (width + gap)
        shapes += [
            f'<rect class="tile" x="{left}" y="10" width="{width}" height="76" rx="6"/>',
            f'<text class="value" x="{left + width // 2}" y="46">{value}</text>',
            f'<text class="words" x="{left + width // 2}" y="70">{words}</text>',
        ]
    total = gap + len(tiles) * (width + gap)
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} 96" role="img" '
                'font-family="Helvetica, Arial, sans-serif" text-anchor="middle">'
            ),
            f"<title>{'; '.join(f'{value} {words}' for value, words in tiles)}</title>",
            (
                "<style>.tile{fill:#f4f6fa;stroke:#5b6b8c}.value{font-size:26px;font-weight:bold;fill:#1c2333}"
                ".words{font-size:12px;fill:#3d475c}@media(prefers-color-scheme:dark){.tile{fill:#1f2636;stroke:#8b9bc0}"
                ".value{fill:#eef2fb}.words{fill:#c3cce0}}</style>"
            ),
            *shapes,
            "</svg>",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report and its picture; the status is 1 if a record has a failed trial."""
    argparse.ArgumentParser(prog="./dev chaos report", description=__doc__).parse_args(arguments)
    report = Report(read_records())
    REPORT.write_text(page(report))
    PICTURE.write_text(picture(report))
    print(f"{REPORT.relative_to(ROOT)}: {dict(report.sums())}")
    return int(any(not trial["ok"] for record in report.records.values() for trial in record["trials"]))


if __name__ == "__main__":
    sys.exit(main())
