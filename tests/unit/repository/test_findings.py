"""The findings name commits and tests that are there, and the trials that failed before a fix are all told."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import subprocess
from collections.abc import Callable

import pytest

from tests.chaos.report import read_records
from tests.chaos.support.age import has_history
from tests.chaos.support.findings import SEVERITIES, Finding, Rerun, failed_before, findings_sections, read_findings
from tests.chaos.support.record import ROOT

KINDS = {
    "environment changed",
    "files deleted",
    "hang",
    "memory or files grow",
    "open to others",
    "process crashed",
    "process left behind",
    "query stopped",
    "refused without need",
    "rows doubled",
    "rows left out of a run",
    "rows lost",
    "secret shown",
    "slow",
    "test server wrong",
    "wrong advice",
    "wrong figures",
    "wrong order",
    "wrong value",
}
FOUND = {
    "CI",
    "benchmark",
    "chaos run",
    "comparison",
    "power loss model",
    "property test",
    "public report",
    "reading",
    "review",
    "simulated history",
    "test",
    "user walk",
}
SILENT = {"rows doubled", "rows left out of a run", "rows lost", "wrong order"}
"""What no error shows is severity 1."""
NOT_ENGLISH = re.compile(
    r"\b(?:of|by|in) which\b|\bwhich is why\b|\bends? by an?\b|\bis none of\b|\bmade anew\b|\bone that\b"
    r"|\bwhat (?:was|is) told\b|\b(?:a|an) (?:AI|agent|model that wrote)\b",
    re.IGNORECASE,
)
"""Patterns of ENGLISH.md that a pattern can find, and words about whoever wrote the code."""
LONGEST = 220


def problems_of(finding: Finding) -> list[str]:
    """Return what is wrong with a finding by itself."""
    texts = {name: getattr(finding, name) for name in ("title", "no_test", "open", "outside")}
    problems = [f"{name}: {hit[0]}" for name, text in texts.items() if (hit := NOT_ENGLISH.search(text))]
    problems += [f"{name} is no sentence" for name, text in texts.items() if text and not re.search(r"[.)]$", text)]
    problems += ["the title is long"] if len(finding.title) > LONGEST else []
    problems += ["severity"] if finding.severity not in SEVERITIES else []
    problems += ["kind"] if finding.kind not in KINDS else []
    problems += ["found"] if finding.found not in FOUND else []
    problems += ["no error shows it, so it is severity 1"] if finding.kind in SILENT and finding.severity != 1 else []
    if bool(finding.open) == bool(finding.fixed):
        problems.append("it is fixed or open")
    if finding.fixed and not (finding.date and finding.subject and bool(finding.test) != bool(finding.no_test)):
        problems.append("a fix has a date, a subject, and a test or why there is none")
    if finding.fixed and not re.fullmatch(r"[0-9a-f]{8}", finding.fixed):
        problems.append("a commit is named by 8 digits")
    if finding.test and not has_test(finding.test):
        problems.append(f"there is no {finding.test}")
    return problems


def has_test(name: str) -> bool:
    path, _, function = name.partition("::")
    file = ROOT / path
    return file.is_file() and (not function or re.search(rf"\bdef {function}\(", file.read_text()) is not None)


FINDINGS, RERUNS = read_findings()
GOOD = Finding(
    "F-001",
    "Rows were lost.",
    "rows lost",
    1,
    "kafka_py",
    "CI",
    test="tests/unit/repository/test_findings.py::test_ids_are_dense_and_in_order",
    fixed="57f336e9",
    date=dt.date(2026, 11, 27),
    subject="fix",
)


def test_ids_are_dense_and_in_order() -> None:
    assert [each.id for each in FINDINGS] == [f"F-{number:03d}" for number in range(1, len(FINDINGS) + 1)]


def test_each_finding_says_what_a_user_saw_and_names_a_test_that_is_there() -> None:
    assert not {each.id: problems for each in FINDINGS if (problems := problems_of(each))}


@pytest.mark.parametrize(
    "change",
    [
        {"title": "Rows, of which some were lost."},
        {"title": "Rows were lost"},
        {"title": "Rows were lost. " * 20 + "."},
        {"severity": 2},
        {"severity": 5},
        {"kind": "bad"},
        {"found": "luck"},
        {"test": "tests/unit/repository/test_findings.py::test_nothing"},
        {"test": "tests/unit/repository/test_nothing.py"},
        {"test": ""},
        {"no_test": "It needs none."},
        {"fixed": ""},
        {"fixed": "57f3"},
        {"open": "Wait."},
        {"subject": ""},
    ],
    ids=str,
)
def test_a_finding_that_says_less_is_refused(change: dict[str, object]) -> None:
    assert problems_of(GOOD) == []
    assert problems_of(dataclasses.replace(GOOD, **change)) != []  # type: ignore[arg-type]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.may_skip_in_ci("a clone may be shallow, or a copy without .git")
def test_each_fix_is_a_commit_of_this_history_that_changed_the_product() -> None:
    if not has_history():
        pytest.skip("no whole history here; the tests above hold ids, texts and tests")
    fixed = [each for each in FINDINGS if each.fixed]
    commits = dict(line.split(" ", 1) for line in git("log", "--date=short", "--format=%H %ad %s").splitlines())
    short = {commit[:8]: shown for commit, shown in commits.items()}
    assert not {
        each.id: short.get(each.fixed) for each in fixed if short.get(each.fixed) != f"{each.date} {each.subject}"
    }
    product = {commit[:8] for commit in git("log", "--full-history", "--format=%H", "--", "connectors").split()}
    assert not [each.id for each in fixed if (each.fixed in product) == bool(each.outside)]


def test_each_trial_that_failed_before_a_fix_is_told() -> None:
    causes = [trial for each in FINDINGS for trial in each.trials] + [each.trial for each in RERUNS]
    assert sorted(causes) == sorted(name for name, _ in failed_before(read_records()))


def test_the_readme_counts_the_findings() -> None:
    is_open = sum(bool(each.open) for each in FINDINGS)
    assert f"| {len(FINDINGS)} found, {is_open} open |" in (ROOT / "README.md").read_text()


def test_the_worst_stand_first_and_one_by_one_and_the_tail_in_a_table() -> None:
    make: Callable[..., Finding] = dataclasses.replace
    findings = [
        make(GOOD, id="F-001", severity=4, title="A text was wrong."),
        make(GOOD, id="F-002", severity=2, title="It hung."),
        make(GOOD, id="F-003", severity=1, title="Fixed long ago."),
        make(GOOD, id="F-004", severity=1, title="Fixed now.", trials=("kafka/kill-1",)),
        make(GOOD, id="F-005", severity=1, title="Left.", fixed="", date=None, subject="", test="", open="Wait."),
    ]
    before = [{"trial": "kill-1", "faults": ["one row lost"]}, {"trial": "kill-2", "faults": ["busy"]}]
    lines = findings_sections(findings, [Rerun("kafka/kill-2", "The machine was busy.")], {"kafka": {"before": before}})
    numbered = [match[2] for line in lines if (match := re.match(r"(\d+)\. \*\*(F-\d+)\*\*", line))]
    assert numbered == ["F-005", "F-004", "F-003", "F-002"]
    assert [line.split(" | ")[0] for line in lines if line.startswith("| F-")] == ["| F-001"]
    assert lines[0].startswith("**5 faults of the product were found")
    assert "1 is open" in lines[0]
    told = [line for line in lines if line.startswith("| `kafka/")]
    assert told == [
        "| `kafka/kill-1` | one row lost | F-004: Fixed now. |",
        "| `kafka/kill-2` | busy | The machine was busy. |",
    ]
