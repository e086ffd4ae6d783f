"""The workflows: what they may do, what they use, and that CI runs what the README says, on the platforms we name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.y*ml"))
CLASSIFIERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
UNCLASSIFIED = {"3.14"}
"""Versions of Python that CI tries, although nothing has been run on them: docs/how-to/platforms.md says so."""
PINNED = re.compile(r"[\w.-]+/[\w./-]+@(?:[0-9a-f]{40}|v\d+(?:\.\d+)*|release/v\d+)")

everywhere = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def workflow(path: Path) -> dict[Any, Any]:
    return yaml.safe_load(path.read_text())


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in workflow(path)["jobs"].values() for step in job.get("steps", [])]


def ci(job: str) -> dict[str, Any]:
    return workflow(ROOT / ".github/workflows/ci.yml")["jobs"][job]


def ran(job: str) -> list[str]:
    return [step["run"].strip() for step in ci(job)["steps"] if "run" in step]


def test_there_are_workflows() -> None:
    assert "ci.yml" in {path.name for path in WORKFLOWS}


@everywhere
def test_a_workflow_has_no_permission_that_a_job_does_not_name(path: Path) -> None:
    document = workflow(path)
    assert document["permissions"] in ({}, {"contents": "read"})
    for name, job in document["jobs"].items():
        allowed = job.get("permissions", document["permissions"])
        assert isinstance(allowed, dict), name
        writable = {area for area, access in allowed.items() if access == "write"}
        assert path.name != "ci.yml" or not writable


@everywhere
def test_each_job_ends_by_itself_on_a_named_version_of_a_platform(path: Path) -> None:
    for name, job in workflow(path)["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
        platforms = job.get("strategy", {}).get("matrix", {}).get("platform", [job["runs-on"]])
        assert not [platform for platform in platforms if platform.endswith("latest")], name


@everywhere
def test_each_action_is_pinned(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert [action for action in used if not PINNED.fullmatch(action)] == []


@everywhere
def test_a_checkout_leaves_no_credentials_behind(path: Path) -> None:
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@everywhere
def test_no_script_holds_what_an_event_says(path: Path) -> None:
    """Whoever opens a pull request chooses its texts; in a script they would be commands."""
    held = [step["run"] for step in steps(path) if "${{" in step.get("run", "")]
    assert [script for script in held if re.search(r"\$\{\{\s*(github\.event|github\.head_ref|inputs)", script)] == []


def test_ci_runs_the_two_commands_of_the_readme_as_they_stand_there() -> None:
    block = re.search(r"^## Start$.*?^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    commands = [line.partition(" #")[0].strip() for line in block[1].splitlines()]
    assert ran("readme") == commands[:2]


def test_ci_runs_them_on_each_platform_and_on_each_python_that_is_declared() -> None:
    matrix = ci("readme")["strategy"]["matrix"]
    assert matrix["platform"] == ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-15"]
    declared = {version[1] for line in CLASSIFIERS if (version := re.search(r":: (3\.\d+)$", line))}
    assert set(matrix["python"]) == declared | UNCLASSIFIED
    assert "exclude" not in matrix
    page = (ROOT / "docs/how-to/platforms.md").read_text()
    assert all(f"Nothing has been run on Python {version}" in page for version in UNCLASSIFIED - declared)


def test_ci_runs_the_script_that_all_of_ci_is() -> None:
    assert ci("tests")["runs-on"].startswith("ubuntu")
    assert ran("tests") == [".ci/run"]


def test_what_ci_runs_on_other_platforms_exists() -> None:
    paths = [word for command in ran("plain") for word in command.split() if word.startswith("tests/")]
    assert paths
    assert all((ROOT / path).exists() for path in paths)
