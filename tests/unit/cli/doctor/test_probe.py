"""What the doctor runs in the Python of the workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from connectors.cli.doctor.machine import check_workers
from connectors.core.diagnostics import Outcome


@pytest.mark.parametrize("name", ["json", "pkgutil", "pathlib"])
def test_what_the_doctors_probe_needs_itself_is_not_of_the_present_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'note')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = {each.check: each.outcome for each in check_workers({**kept, "PYSPARK_PYTHON": sys.executable})}
    assert found["pack"] is Outcome.OK
    assert not (tmp_path / "note").exists()
