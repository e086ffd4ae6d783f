"""A test that fails once on a busy machine refuses no change, and is named until its cause is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

MOST_TRIED_AGAIN = 5
GUARANTEE = "guarantee"
FLAKY_TESTS = Path("build", "flaky.txt")


class SecondTry:
    """Runs the failed tests of a run once more, one at a time, each in a process of its own.

    What passes then is printed as ``flaky: NAME`` before the closing line and written into ``build/flaky.txt``. When
    more than `MOST_TRIED_AGAIN` failed, or one that is marked `guarantee`, nothing is tried again.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._flaky: list[str] = []
        self._refusal = ""

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Try the failed tests again, and let the run succeed if all of them pass."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, TerminalReporter)
        failed = _failed(reporter)
        self._refusal = _why_not_again(failed)
        if self._refusal:
            return
        for name in failed:
            if _passes_alone(self._root, name, session.config.getoption("seed")):
                self._flaky.append(name)
        for outcome in ("failed", "error"):
            reports = reporter.stats.pop(outcome, [])
            if left := [report for report in reports if report.nodeid not in self._flaky]:
                reporter.stats[outcome] = left
            reporter.stats.setdefault("flaky", []).extend(report for report in reports if report.nodeid in self._flaky)
        if len(self._flaky) == len(failed):
            session.testsfailed = 0
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Show each flaky test with its first failure, then the lines that name them."""
        if self._refusal:
            terminalreporter.write_line(f"not tried again: {self._refusal}")
        for report in terminalreporter.stats.get("flaky", []):
            terminalreporter.write_sep("_", f"first try of {report.nodeid}")
            terminalreporter.write_line(report.longreprtext)
        path = self._root / FLAKY_TESTS
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as listed:
            for name in self._flaky:
                listed.write(f"{name}\n")
                terminalreporter.write_line(f"flaky: {name}")


def _failed(reporter: TerminalReporter) -> dict[str, list[pytest.TestReport | pytest.CollectReport]]:
    """Return the reports of each test that failed, in its set-up or later, by its name."""
    failed: dict[str, list[pytest.TestReport | pytest.CollectReport]] = {}
    for report in [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]:
        failed.setdefault(report.nodeid, []).append(report)
    return failed


def _why_not_again(failed: dict[str, list[pytest.TestReport | pytest.CollectReport]]) -> str:
    """Return why the failed tests decide the run, or an empty text if a second try does."""
    if len(failed) > MOST_TRIED_AGAIN:
        return f"{len(failed)} tests failed, and at most {MOST_TRIED_AGAIN} get a second try"
    if broken := [
        name for name, reports in failed.items() if any(isinstance(each, pytest.CollectReport) for each in reports)
    ]:
        return f"tests could not be collected: {', '.join(broken)}"
    if guarantees := [name for name, reports in failed.items() if any(GUARANTEE in each.keywords for each in reports)]:
        return f"a test of a guarantee failed: {', '.join(guarantees)}"
    return ""


def _passes_alone(root: Path, name: str, seed: int) -> bool:
    """Run one test in a process of its own, with the same seed."""
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--seed", str(seed), name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode == 0
