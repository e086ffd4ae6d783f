"""The older side of ``./dev chaos upgrade`` is the code of its commit, or says what is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.chaos.rigs.versions import PRESENT, check_out
from tests.chaos.support.record import ROOT


def repository(folder: Path) -> str:
    """Make a repository with one commit of both folders; its id."""
    for name in ("connectors", "tests"):
        package = folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"# {name}\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@localhost", "-C", str(folder))
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "begin")):
        subprocess.run([*git, *command], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def test_the_code_of_a_commit_is_what_its_processes_import_whatever_is_installed(tmp_path: Path) -> None:
    commit = repository(tmp_path / "repository")
    (tmp_path / "repository" / "connectors" / "__init__.py").write_text("# changed since\n")
    (tmp_path / "code").mkdir()
    older = check_out(commit, tmp_path / "code", tmp_path / "repository")
    assert older.imported_from(tmp_path) == tmp_path / "code" / "connectors"
    assert (tmp_path / "code" / "connectors" / "__init__.py").read_text() == "# connectors\n"
    assert PRESENT.imported_from(tmp_path) == ROOT / "connectors"
