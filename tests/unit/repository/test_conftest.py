"""The rules that tests/conftest.py puts on every test, seen from outside by a pytest of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

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
