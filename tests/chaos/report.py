"""``./dev chaos report``: docs/faults/report.md, from the findings and the records of the fault runs beside it.

It begins with what was found, then the weakest cells, then the matrix. It runs no fault; a test holds that the page
says what findings and records say. How old each record is, it says as of the last commit that changed the product.
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

from tests.chaos.support.age import Age, age, product_commit
from tests.chaos.support.findings import Finding, Rerun, findings_sections, read_findings
from tests.chaos.support.record import ROOT, upper_bound
from tests.chaos.support.report_sections import SECTIONS, table

FOLDER = ROOT / "docs" / "faults"
REPORT = FOLDER / "report.md"

CONNECTORS = {"kafka": "Kafka", "kinesis": "Kinesis", "pubsub": "Pub/Sub", "registry": "Schema registry"}

FEW = 3
"""A cell with fewer trials is a weak one."""

NOT_FAULTS = ("docs", "packaging")
"""Records of runs in which nothing is broken."""

OWN_TABLES = ("avro", "histories", "hostile")
"""What they do breaks nothing, and has a table of its own."""

ONE_CONNECTOR = {"stores": "pubsub", "peers": "kinesis", "late_commits": "kafka"}
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
BROKE_OFF = "trials that broke off before their fault"
ONE_FAULT = {
    "clients": "records of other clients",
    "late_commits": "a request of a transaction that arrives late",
    "upgrade": "an earlier version killed within a batch, which this one finishes",
}
"""The fault of each trial, by the name of its run."""
MOVED = "killed within a batch, which another version of Spark finishes"
OF_OTHERS = (" reused", " client")
"""Parts of the run of late requests that are about other sinks than ours."""
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
    (
        "Kafka with replicas: each real broker was the only one of its cluster. Failover of a leader or a transaction "
        "coordinator, a shrinking ISR, unclean elections and partitions between brokers were not run"
    ),
    "faults at production rates: the hour-long runs publish 20 records a second",
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


def read_records(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Read the records of a folder that are about faults."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: record for name, record in records.items() if name not in NOT_FAULTS and "trials" in record}


def faults_of(what: str, trial: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Return what was done in a trial: connector, fault, how often."""
    if what in OWN_TABLES or trial["part"].endswith(OF_OTHERS):
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
    elif what in ONE_FAULT:
        yield connector, ONE_FAULT[what], 1
    elif "killed_at" in trial or "crashed_at" in trial:
        yield connector, AT_A_STEP, trial.get("counts", {}).get("kills", 1)
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


def page(
    report: Report, findings: Sequence[Finding], reruns: Sequence[Rerun], ages: Mapping[str, Age], commit: str
) -> str:
    """Return the report as Markdown; the ages are those of the records as of the commit."""
    lines = [
        "# What was found, and what each connector does under each fault",
        "",
        "## The findings",
        "",
        *findings_sections(findings, reruns, report.records),
        *_weakest(report),
        *_matrix(report),
        *_yourself(),
        *_questions(),
    ]
    titles = ("run", "trials", "failed", "messages", "lost", "doubled", "replays", "of", "code", "its code since")
    rows = (_record_cells(name, record, ages[name]) for name, record in report.records.items())
    lines += [
        "",
        "## The records",
        "",
        (
            f"The last column counts the commits that changed the packages a record is about, up to `{commit}`, since "
            "its newest and its oldest trial. A record that is behind speaks of other code than the present one."
        ),
        *table(titles, rows),
    ]
    for name, record in report.records.items():
        lines += ["", *SECTIONS[name](record)] if name in SECTIONS else []
    by_tests = table(("fault", "tests"), ((fault, f"`{path}`") for fault, path in BY_TESTS))
    lines += ["", "## Faults that are made in every test run", *by_tests]
    lines += ["", "## What was not run", ""]
    lines += [f"- {what}" for what in NOT_RUN]
    lines += ["", "[What was tested](../explanation/tested.md) says against which servers.", ""]
    return "\n".join(lines)


def weak_cells(records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the cells of each record with fewer than `FEW` trials, and how many: a flow and a fault, or a part."""
    weak: dict[str, dict[str, int]] = {}
    for name, record in records.items():
        if record["what"] in OWN_TABLES:
            continue
        trials = Counter(_cell(trial) for trial in record["trials"])
        if few := {cell: count for cell, count in sorted(trials.items()) if count < FEW}:
            weak[name] = few
    return weak


def _cell(trial: Mapping[str, Any]) -> str:
    if trial["part"] == "paused" or "fault" in trial:
        return f"{trial.get('flow', trial['part'])}: {trial['fault'].replace('_', ' ')}"
    return str(trial["part"]).replace("_", " ")


def _weakest(report: Report) -> list[str]:
    rows = []
    weak = weak_cells(report.records)
    for name, few in sorted(weak.items(), key=lambda each: -len(each[1])):
        grouped: dict[str, list[str]] = defaultdict(list)
        for cell, count in few.items():
            flow, _, fault = cell.rpartition(": ")
            grouped[flow].append(fault if count == 1 else f"{fault} ({count})")
        texts = (f"`{flow}`: {', '.join(faults)}" if flow else ", ".join(faults) for flow, faults in grouped.items())
        rows.append((f"`{name}`", len(few), "; ".join(texts)))
    kills = [
        (upper_bound(cell.faults), fault, CONNECTORS[key], cell.faults)
        for fault in VICTIMS.values()
        for key, cell in report.cells[fault].items()
        if cell.faults and not cell.failed
    ]
    bounds = ((fault, where, count, f"< {bound:.1%}") for bound, fault, where, count in sorted(kills, reverse=True)[:6])
    return [
        "",
        "## The weakest cells",
        "",
        (
            f"Cells with fewer than {FEW} trials: one, or as many as the number behind the cell. One good trial says "
            "that the fault can be survived, not that it always is. The matrix also says what was not run."
        ),
        *table(("record", "cells", "which"), rows),
        "",
        "The loosest bounds of kills at random moments: with 95 % confidence, fewer than this share of such kills",
        "cause a failure, if kills are independent.",
        *table(("fault", "connector", "faults", "bound"), bounds),
    ]


def _matrix(report: Report) -> list[str]:
    order = [*VICTIMS.values(), AT_A_STEP, *NETWORK.values(), *CLUSTER.values()]
    order += sorted(set(report.cells) - set(order))
    rows = []
    for fault in order:
        random = fault in VICTIMS.values()
        texts = (HAS_NONE.get((fault, key)) or report.cells[fault][key].text(random=random) for key in CONNECTORS)
        rows.append((fault, *texts))
    return [
        "",
        "## The matrix",
        "",
        (
            "A cell counts the faults of one kind in the records of this folder, which have the seed of every trial, "
            "and the trials in which something was wrong: a message lost, or doubled where the format promises that "
            "it is not, a row out of order, a replay that differed, or a query that ended without a named error. For "
            "kills at random moments it also has the upper bound of the rate of failure with 95 % confidence, "
            "1 - 0.05^(1/n), about 3/n, if kills are independent. The cells are not summed up: unlike faults make no "
            "common rate."
        ),
        *table(("fault", *CONNECTORS.values()), rows),
    ]


def _questions() -> list[str]:
    """Return what a reader who had not seen the page still asked, with the answers."""
    return [
        "",
        "## Five questions of a sceptic",
        "",
        "**Which promise are the trials judged by?** By [that of each format](../explanation/guarantees.md).",
        "Sources, and the Kafka sink with `deliveryGuarantee=exactly_once`, may neither lose nor double a",
        "row. The other sinks promise at least once, so a repeated row is no failure there: Kafka to Kinesis",
        "repeated 333 in the cluster runs.",
        "",
        "**Would these runs notice a bug?** We plant bugs to see that the checks notice them: in",
        "[tests/planted](../../tests/planted), each with the test that must fail, and for the simulated",
        "histories. The comparison of Avro and the late requests of Kafka have planted faults too. The kill,",
        "network and cluster runs have none, and no bug is planted in Kinesis. Those runs found hangs; most",
        "faults of severity 1 came from reviews.",
        "",
        "**Does it hold for the code that I would install?** [The records](#the-records) say how many commits",
        "the code has moved on since; some were made at commits that are no longer in the history. Records",
        "are renewed by hand, and faults are still being found: look at the dates above. Run them again",
        "before you rely on them.",
        "",
        "**Were interleavings tried, or only kills?** One seed decides a [simulated",
        "history](../explanation/tested.md#simulated-histories): the spool's own code under a scheduler, with",
        "kills, pauses, jumping clocks and requests that are lost, late or repeated. A [separate",
        "checker](../reference/testing.md#connectorstestinghistory) judges it. Kafka, Kinesis and power loss",
        "are not simulated.",
        "",
        "**Were replicated brokers or real clouds tried?** No: see [what was not run](#what-was-not-run).",
        "[Nobody has sent a run on a cloud account yet](accounts.md); `connectors demo` makes one.",
    ]


def _yourself() -> list[str]:
    return [
        "",
        "## Run it yourself",
        "",
        "In a clone, without an account. `connectors demo` streams, kills and counts for two minutes; with `kafka` or",
        "`kinesis` it does so for these, and `./dev broker` starts a real Kafka broker for exactly-once writes.",
        "`./dev chaos` lists the runs, each with `--help`: `--fresh` begins a record with a seed of its own.",
        "`./dev chaos report` makes this page from the records.",
        "",
        "<!-- not run: it installs, and a run of faults takes minutes to hours -->",
        "",
        "```sh",
        "pip install '.[spark,pubsub,fast,cli,testing]'",
        "connectors demo",
        "./dev chaos kafka --fresh --trials 1",
        "./dev chaos report",
        "```",
    ]


def _record_cells(name: str, record: Mapping[str, Any], age_of: Age) -> tuple[object, ...]:
    sums = _sums(record)
    failed = sum(not trial["ok"] for trial in record["trials"])
    before = len(record.get("before", ()))
    versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    return (
        f"[`./dev chaos {record['what']}`]({name}.json)",
        len(record["trials"]),
        f"{failed}; {before} ran again" if before else failed,
        f"{sums['messages']:,}",
        f"{sums['lost']:,}",
        f"{sums['doubled']:,}",
        f"{sums['replays_compared']:,}, {sums['replays_differing']:,} differ",
        f"{record['ended']}, {versions}",
        f"`{record['commit'][:7]}`" + (f" to `{last[:7]}`" if (last := _last_commit(record)) else ""),
        age_of,
    )


def _last_commit(record: Mapping[str, Any]) -> str | None:
    """Return the commit of the newest trial, if it is another one than that of the first."""
    return next((trial["commit"] for trial in reversed(record["trials"]) if "commit" in trial), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; the status is 1 if a record has a failed trial."""
    argparse.ArgumentParser(prog="./dev chaos report", description=__doc__).parse_args(arguments)
    report, commit = Report(read_records()), product_commit()
    ages = {name: age(record, commit) for name, record in report.records.items()}
    findings, reruns = read_findings()
    REPORT.write_text(page(report, findings, reruns, ages, commit[:8]))
    weak = sum(map(len, weak_cells(report.records).values()))
    print(f"{REPORT.relative_to(ROOT)}: {len(findings)} findings, {weak} cells with fewer than {FEW} trials")
    return int(any(not trial["ok"] for record in report.records.values() for trial in record["trials"]))


if __name__ == "__main__":
    sys.exit(main())
