"""The rules that tests/conftest.py puts on every test, seen from outside by a pytest of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.processes import RUN_MARK, orphans

ROOT = Path(__file__).resolve().parent.parent.parent

SKIPS = {
    "in a test": "import pytest\ndef test_a():\n    pytest.skip('no emulator')\n",
    "by a mark": "import pytest\n@pytest.mark.skipif(True, reason='no emulator')\ndef test_a():\n    pass\n",
    "in a fixture": (
        "import pytest\n@pytest.fixture\ndef a():\n    pytest.skip('no emulator')\ndef test_a(a):\n    pass\n"
    ),
    "of a module": "import pytest\npytest.skip('no emulator', allow_module_level=True)\n",
}


def run_pytest(folder: Path, text: str, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "integration").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "integration" / "test_it.py").write_text(text)
    command = (sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder))
    command += ("-p", "no:cacheprovider", str(folder))
    environment = os.environ | {"CI": ci}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("text", SKIPS.values(), ids=SKIPS)
def test_skip_fails_in_ci(text: str, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, text, "true")
    assert done.returncode != 0
    assert "skipped under CI=true" in done.stdout
    assert "no emulator" in done.stdout


@pytest.mark.parametrize("text", SKIPS.values(), ids=SKIPS)
def test_skip_is_a_skip_elsewhere(text: str, tmp_path: Path) -> None:
    assert "1 skipped" in run_pytest(tmp_path, text, "").stdout


def test_skip_with_leave_is_a_skip_in_ci(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.may_skip_in_ci('root')\ndef test_a():\n    pytest.skip('no root')\n"
    assert "1 skipped" in run_pytest(tmp_path, text, "true").stdout


def test_tier_is_the_folder(tmp_path: Path) -> None:
    text = "def test_a(request):\n    assert request.node.get_closest_marker('integration')\n"
    assert "1 passed" in run_pytest(tmp_path, text, "true").stdout


def test_warning_is_an_error(tmp_path: Path) -> None:
    text = "import warnings\ndef test_a():\n    warnings.warn('old')\n"
    assert "1 failed" in run_pytest(tmp_path, text, "").stdout


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
