"""The rules that tests/conftest.py puts on every test, seen from outside by a pytest of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.processes import RUN_MARK, orphans

ROOT = Path(__file__).resolve().parents[3]

SKIPS = {
    "in_a_test": "import pytest\ndef test_a():\n    pytest.skip('no emulator')\n",
    "by_a_mark": "import pytest\n@pytest.mark.skipif(True, reason='no emulator')\ndef test_a():\n    pass\n",
    "in_a_fixture": (
        "import pytest\n@pytest.fixture\ndef a():\n    pytest.skip('no emulator')\ndef test_a(a):\n    pass\n"
    ),
    "of_a_module": "import pytest\npytest.skip('no emulator', allow_module_level=True)\n",
}
WITH_LEAVE = "import pytest\n@pytest.mark.may_skip_in_ci('root')\ndef test_a():\n    pytest.skip('no root')\n"

ONCE = """
import pathlib, pytest
FILE = pathlib.Path(__file__).with_suffix(".ran")
{mark}
@pytest.mark.parametrize("n", range({tests}))
def test_a(n):
    before = FILE.with_suffix(f".ran{{n}}")
    if not before.exists():
        before.touch()
        pytest.fail("only once")
"""
"""Tests that fail the first time and pass the second."""

SEEDS = """
import random, sys
from hypothesis import given, strategies as st
def test_a(seed):
    sys.stdout.write(f"drawn {seed} {random.random()}")
@given(st.integers(0, 2**30))
def test_b(n):
    sys.stdout.write(f"drawn {n}")
"""


def prepare(root: Path, files: Mapping[str, str]) -> None:
    """Write tests, and our conftest above them."""
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    shutil.copy(ROOT / "tests" / "conftest.py", root)


def pytest_under(root: Path) -> tuple[str, ...]:
    """A pytest with our settings, for the tests in this folder."""
    settings = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(root))
    return (sys.executable, "-m", "pytest", *settings, "-p", "no:cacheprovider")


def run_pytest(root: Path, files: Mapping[str, str], *arguments: str, ci: str = "") -> str:
    """Run tests under our conftest; the summary has a line for each that did not pass."""
    prepare(root, files)
    command = (*pytest_under(root), "-rA", "-v", *arguments, str(root))
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"CI": ci}, check=False, capture_output=True, text=True)
    return done.stdout


def test_a_skip_fails_in_ci_but_with_leave(tmp_path: Path) -> None:
    files = {f"integration/test_{name}.py": text for name, text in SKIPS.items()}
    shown = run_pytest(
        tmp_path, {**files, "integration/test_with_leave.py": WITH_LEAVE}, "--continue-on-collection-errors", ci="true"
    )
    assert shown.count("skipped under CI=true") >= len(SKIPS)
    for name in SKIPS:
        assert re.search(rf"^(FAILED|ERROR) .*test_{name}\.py", shown, re.MULTILINE), shown
    assert re.search(r"^SKIPPED .*no root", shown, re.MULTILINE)


class TestASecondTry:
    @pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "xdist"])
    def test_of_a_test_that_failed_once_lets_the_run_succeed_and_names_it(
        self, tmp_path: Path, processes: tuple[str, ...]
    ) -> None:
        done = second_try(tmp_path, ONCE.format(mark="", tests=2), *processes)
        assert done.returncode == 0, done.stdout
        assert re.search(r"^flaky: unit/test_a\.py::test_a\[1\]$", done.stdout, re.MULTILINE), done.stdout
        assert "first try of unit/test_a.py::test_a[1]" in done.stdout
        assert "only once" in done.stdout
        assert "2 flaky" in done.stdout.splitlines()[-1]
        flaky = (tmp_path / "build" / "flaky.txt").read_text().splitlines()
        assert sorted(flaky) == ["unit/test_a.py::test_a[0]", "unit/test_a.py::test_a[1]"]

    def test_of_one_that_fails_again_fails_the_run_and_names_the_other_too(self, tmp_path: Path) -> None:
        done = second_try(tmp_path, ONCE.format(mark="", tests=1) + "def test_b():\n    assert False\n")
        assert done.returncode == 1
        assert "flaky: unit/test_a.py::test_a[0]\n" in done.stdout
        assert re.search(r"1 failed.* 1 flaky", done.stdout.splitlines()[-1]), done.stdout

    def test_is_not_given_to_a_test_of_a_guarantee(self, tmp_path: Path) -> None:
        done = second_try(tmp_path, ONCE.format(mark="@pytest.mark.guarantee", tests=1))
        assert done.returncode == 1
        assert "not tried again: a test of a guarantee failed: unit/test_a.py::test_a[0]" in done.stdout
        assert (tmp_path / "build" / "flaky.txt").read_text() == ""


def second_try(root: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of tests as .ci/run does."""
    prepare(root, {"unit/test_a.py": text})
    command = (*pytest_under(root), "--second-try", *arguments, str(root))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)


class TestTheSeed:
    def test_of_a_run_is_printed_and_repeats_what_is_drawn(self, tmp_path: Path) -> None:
        first = run_pytest(tmp_path, {"unit/test_a.py": SEEDS})
        (seed,) = re.findall(r"^seed: (\d+) ", first, re.MULTILINE)
        again = run_pytest(tmp_path, {}, "--seed", seed)
        other = run_pytest(tmp_path, {}, "--seed", str(int(seed) + 1))
        drawn = [re.findall(r"drawn [\d. ]+", shown) for shown in (first, again, other)]
        assert drawn[0] == drawn[1]
        assert len(drawn[0]) > 50
        assert drawn[0] != drawn[2]


def test_orphan_is_seen_and_a_child_is_not() -> None:
    mark = uuid4().hex
    environment = os.environ | {RUN_MARK: mark}
    command = ("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!")
    orphan = int(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    with subprocess.Popen(("sleep", "60"), env=environment) as child:
        try:
            assert set(orphans(mark)) == {orphan}
        finally:
            child.kill()
            os.kill(orphan, signal.SIGKILL)
