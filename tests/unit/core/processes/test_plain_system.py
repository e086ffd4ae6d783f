"""The pack on a system without what only Linux has: the modules load, and the tests of what used it pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
PLAIN_SYSTEM = ROOT / "tests/support/plain_system"

LOAD_ALL = """
import importlib, os, pkgutil, connectors
assert not hasattr(os, "O_PATH"), "this is no plain system"
modules = [module.name for module in pkgutil.walk_packages(connectors.__path__, "connectors.")]
programs = ("__main__", "protoc_child")
for name in modules:
    if not name.endswith(programs):
        importlib.import_module(name)
print(len(modules))
"""


def on_plain_system(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``sitecustomize`` of such a system, which also the processes that it starts load."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PLAIN_SYSTEM), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_all_modules_load_there() -> None:
    done = on_plain_system("-c", LOAD_ALL)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300


@pytest.mark.parametrize(
    "tests",
    [
        "core/processes/test_table.py",
        "core/processes/test_parent.py",
        "core/processes/test_pool.py",
        "spool/store/test_root.py",
        "spool/store/test_local.py",
        "spool/store/test_disk_space.py",
        "spool/ledger/test_writer_lock.py",
        "spool/fetching/test_detached.py",
        "spool/fetching/test_placement.py",
    ],
)
def test_tests_pass_there(tests: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
    done = on_plain_system("-m", "pytest", *options, f"tests/unit/{tests}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
