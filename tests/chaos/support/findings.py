"""The findings of docs/faults/findings.toml, and what the fault report says of them."""

from __future__ import annotations

import datetime as dt
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.support.record import ROOT
from tests.chaos.support.report_sections import first_line, table

FINDINGS = ROOT / "docs" / "faults" / "findings.toml"

SEVERITIES = {
    1: "Rows lost, doubled, wrong or out of order without an error, or files of a user deleted",
    2: "A query stops, hangs, crashes or fills the memory until you change something, or others get secrets or data",
    3: "A query waits, is slow or refuses what it could do, and continues by itself, after a restart or with a setting",
    4: "A text, an advice, a figure or a tool around the product is wrong",
}
IN_FULL = (1, 2)
"""The severities that the report lists one by one; the others are rows of a table."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the product: fixed by a commit, or open, with what a user can do."""

    id: str
    title: str
    kind: str
    severity: int
    where: str
    found: str
    test: str = ""
    no_test: str = ""
    fixed: str = ""
    date: dt.date | None = None
    subject: str = ""
    outside: str = ""
    """Why the fix is no change of connectors/."""
    open: str = ""
    trials: tuple[str, ...] = ()
    """Trials of the records that failed because of it, as RECORD/TRIAL."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """A trial that failed for another reason than the product, and ran again."""

    trial: str
    why: str


def read_findings(path: Path = FINDINGS) -> tuple[list[Finding], list[Rerun]]:
    """Return the findings, and the trials that failed for another reason."""
    content = tomllib.loads(path.read_text())
    found = [Finding(**{**each, "trials": tuple(each.get("trials", ()))}) for each in content["finding"]]
    return found, [Rerun(**each) for each in content.get("rerun", ())]


def failed_before(records: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return the trials that failed and ran again, by RECORD/TRIAL."""
    for name, record in records.items():
        for trial in record.get("before", ()):
            yield f"{name}/{trial['trial']}", trial


def findings_sections(
    findings: Sequence[Finding], reruns: Iterable[Rerun], records: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the beginning of the report: all findings, worst first, and the trials that failed before a fix."""
    is_open = Counter(each.severity for each in findings if each.open)
    count = is_open.total()
    severities = Counter(each.severity for each in findings)
    summary = table(
        ("severity", "what it means", "found", "still open"),
        ((level, text, severities[level], is_open[level]) for level, text in SEVERITIES.items()),
    )
    ways = ", ".join(f"{way} {times}" for way, times in Counter(each.found for each in findings).most_common())
    lines = [
        (
            f"**{len(findings)} faults of the product were found since the first commit that read a message; "
            f"{count} {'is' if count == 1 else 'are'} open.** "
            "[findings.toml](findings.toml) has each with its test and its commit. The list was compiled from every "
            "commit message, note of a review and record, but not from every diff; of severities 3 and 4 it is "
            "incomplete."
        ),
        *summary,
        "",
        (
            f"How they were found: {ways}. In a review, people who did not write the code try the product from "
            "outside. A public report is about another product, and was tried on this one. A comparison runs another "
            "implementation on the same input. A user walk does only what the pages say. Reading is reading the "
            "code. No version was released yet, so no report came from production."
        ),
    ]
    for level in IN_FULL:
        lines += ["", f"### Severity {level}", "", f"{SEVERITIES[level]}. The open ones first, then the newest.", ""]
        own = [each for each in findings if each.severity == level]
        lines += [f"{number}. {_in_full(each)}" for number, each in enumerate(_worst_first(own), 1)]
    tail = _worst_first([each for each in findings if each.severity not in IN_FULL])
    rows = ((each.id, each.severity, each.title, each.where, each.found, _end(each)) for each in tail)
    lines += ["", "### Severities 3 and 4", *table(("", "severity", "what", "where", "found by", "fixed"), rows)]
    return [*lines, "", *_trials(findings, reruns, records)]


def _worst_first(findings: Iterable[Finding]) -> list[Finding]:
    newest_first = sorted(findings, key=lambda each: each.id, reverse=True)
    return sorted(newest_first, key=lambda each: (each.severity, not each.open))


def _in_full(finding: Finding) -> str:
    shown = f"`{finding.test}`" if finding.test else finding.no_test
    rest = [f"{finding.where}; {finding.kind}; found by {finding.found}", _end(finding), shown]
    return f"**{finding.id}** {finding.title} *({'; '.join(part for part in rest if part).rstrip('.')})*"


def _end(finding: Finding) -> str:
    return f"open: {finding.open}" if finding.open else f"`{finding.fixed}`, {finding.date}"


def _trials(
    findings: Iterable[Finding], reruns: Iterable[Rerun], records: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    causes = {trial: f"{each.id}: {each.title}" for each in findings for trial in each.trials}
    causes |= {each.trial: each.why for each in reruns}
    rows = (
        (f"`{name}`", first_line(trial), causes.get(name, "not explained yet"))
        for name, trial in failed_before(records)
    )
    return [
        "### Trials that failed and ran again",
        "",
        "No cell below counts them; the records keep them, in `before`.",
        *table(("record and trial", "what it said", "why"), rows),
    ]
