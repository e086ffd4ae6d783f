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
TIER = "def test_a(request):\n    assert request.node.get_closest_marker('integration')\n"
WARNING = "import warnings\ndef test_a():\n    warnings.warn('old')\n"
SIX = (
    "import os, pytest\n"
    "@pytest.mark.parametrize('n', range(6))\n"
    "def test_a(n):\n    assert os.environ['PYTEST_XDIST_WORKER']\n"
)


def run_pytest(root: Path, files: Mapping[str, str], *arguments: str, ci: str = "") -> str:
    """Run tests under our conftest; the summary has a line for each that did not pass."""
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    shutil.copy(ROOT / "tests" / "conftest.py", root)
    command = (sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(root))
    command += ("-p", "no:cacheprovider", "-rA", "-v", *arguments, str(root))
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


def test_a_skip_is_a_skip_elsewhere_a_warning_an_error_and_the_tier_the_folder(tmp_path: Path) -> None:
    files = {f"integration/test_{name}.py": text for name, text in SKIPS.items()}
    others = {"integration/test_warning.py": WARNING, "integration/test_tier.py": TIER}
    shown = run_pytest(tmp_path, {**files, **others})
    assert re.search(rf"1 failed, 1 passed, {len(SKIPS)} skipped", shown), shown
    assert re.search(r"^FAILED .*test_warning", shown, re.MULTILINE)


def test_all_spark_tests_run_in_one_process_and_others_beside_them(tmp_path: Path) -> None:
    shown = run_pytest(tmp_path, {"spark/test_spark.py": SIX, "unit/test_unit.py": SIX}, "-n", "2")
    ran = re.findall(r"^\[(gw\d)\].* PASSED .*test_(spark|unit)\.py", shown, re.MULTILINE)
    assert len(ran) == 12, shown
    workers = {tier: {worker for worker, other in ran if other == tier} for tier in ("spark", "unit")}
    assert len(workers["spark"]) == 1
    assert workers["unit"] - workers["spark"]


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
