"""The fault report says what findings and records say, and hides nothing; how old records are, as of its commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.report import FOLDER, REPORT, VICTIMS, Report, page, read_records, weak_cells
from tests.chaos.support.age import Age, age, has_history, history, product_commit
from tests.chaos.support.findings import read_findings
from tests.chaos.support.record import PARTS, ROOT, parts_of, upper_bound

AGE = re.compile(r"(^\| \[`\./dev chaos .*\| )[^|]*( \|$)", re.MULTILINE)
"""The last column of a row of the table of records."""
AS_OF = re.compile(r"up to `([0-9a-f]{8})`")
POOLED = re.compile(r"\d[\d,]* faults[;:,]|of [\d,]{7,} messages|fewer than \d+ in [\d,]+ such faults")


def record(*trials: dict[str, Any], what: str = "kafka") -> dict[str, Any]:
    fixed = {"what": what, "commit": "0123456789", "ended": "2026-11-24", "versions": {"python": "3.11"}}
    return {**fixed, "trials": [{"trial": "one", "part": "part", **trial} for trial in trials]}


def row(text: str, fault: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {fault} |") and line.count("|") == 6]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def committed(ages: dict[str, Age], commit: str) -> str:
    return page(Report(read_records()), *read_findings(), ages, commit)


def test_the_committed_report_is_that_of_the_committed_findings_and_records() -> None:
    text = REPORT.read_text()
    [commit] = AS_OF.findall(text)
    made = committed(dict.fromkeys(read_records(), Age(0, 0)), commit)
    assert AGE.sub(r"\1\2", text) == AGE.sub(r"\1\2", made), "run ./dev chaos report"
    assert len(AGE.findall(text)) == len(read_records())


@pytest.mark.may_skip_in_ci("a clone may be shallow, or a copy without .git")
def test_a_record_older_than_the_code_that_it_speaks_of_is_marked_as_such() -> None:
    if not has_history():
        pytest.skip("no whole history here; the test above holds the page but for its last column")
    text = REPORT.read_text()
    [commit] = AS_OF.findall(text)
    assert any(each.startswith(commit) for each in history("HEAD")), "run ./dev chaos report"
    assert text == committed({name: age(each, commit) for name, each in read_records().items()}, commit), (
        "run ./dev chaos report"
    )


def test_each_record_names_the_packages_that_it_is_about() -> None:
    names = {path.stem for path in FOLDER.glob("*.json")} - {"docs"}
    assert names <= set(PARTS)
    missing = {(what, part) for what in PARTS for part in parts_of(what) if not (ROOT / "connectors" / part).is_dir()}
    assert not missing


def test_no_page_sums_up_unlike_faults() -> None:
    pages = (ROOT / "README.md", REPORT, *(ROOT / "docs" / "explanation").glob("*.md"))
    assert not {path.name: hit[0] for path in pages if (hit := POOLED.search(path.read_text()))}
    assert POOLED.search("2,168 faults; of 2,422,945 messages 0 lost")


def test_the_page_begins_with_findings_then_the_weakest_cells_then_the_matrix() -> None:
    titles = re.findall(r"^## (.*)", REPORT.read_text(), re.MULTILINE)
    assert titles[:4] == ["The findings", "The weakest cells", "The matrix", "Run it yourself"]
    assert titles[4:6] == ["Five questions of a sceptic", "The records"]


def test_a_failed_trial_shows_in_the_cells_of_its_faults_and_in_its_record() -> None:
    good = {"ok": True, "killed": ["jvm", "jvm", "worker"], "counts": {"messages": 10, "lost": 0}}
    bad = {"ok": False, "killed": ["jvm"], "counts": {"messages": 10, "lost": 2}}
    text = page(Report({"kafka": record(good, bad)}), [], [], {"kafka": Age(0, 0)}, "01234567")
    assert row(text, VICTIMS["jvm"])[0] == "**3, wrong in 1 trial**"
    assert row(text, VICTIMS["worker"])[0] == f"1, none wrong; < {upper_bound(1):.1%}"
    assert "| 2 | 1 | 20 | 2 |" in text


def test_cells_with_fewer_than_three_trials_are_weak_ones() -> None:
    cells = [("kafka", "resets"), ("kafka", "resets"), ("kafka", "resets"), ("pubsub", "resets"), ("pubsub", "latency")]
    trials = [{"ok": True, "flow": flow, "fault": fault, "part": flow, "counts": {}} for flow, fault in cells]
    assert weak_cells({"network": record(*trials, what="network")}) == {
        "network": {"pubsub: latency": 1, "pubsub: resets": 1}
    }


def commit_of(repository: Path, name: str) -> str:
    file = repository / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(file.read_text() + "#\n" if file.exists() else "#\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(repository)]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", name], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return head.stdout.strip()


def test_a_record_is_behind_by_the_commits_that_changed_its_own_packages(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    first = commit_of(tmp_path, "connectors/kafka/a.py")
    second = commit_of(tmp_path, "connectors/kafka/a.py")
    last = commit_of(tmp_path, "connectors/core/b.py")
    commit_of(tmp_path, "docs/page.md")
    assert (has_history(tmp_path), product_commit(tmp_path)) == (True, last)

    def text(*commits: str, as_of: str = last) -> str:
        trials = [{"ok": True, "commit": each} for each in commits]
        return str(age(record(*trials), as_of, tmp_path))

    assert text(last) == "current"
    assert text(second) == "1 commit behind in core"
    assert text(first, last) == "0 to 2 commits behind in core, kafka"
    assert text(first, as_of=first) == "current"
    assert text("0" * 40) == "age unknown: not in the history: `0000000`"
    third = commit_of(tmp_path, "connectors/pubsub/c.py")
    assert text(second, as_of=third) == "1 commit behind in core"
    assert not has_history(tmp_path.parent)
