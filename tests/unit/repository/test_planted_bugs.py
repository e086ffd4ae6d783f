"""Checks are trusted because they catch bugs that were planted; ``./dev chaos planted`` runs all of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.planted_bugs import ROOT, PlantedBug, planted_bugs

pytestmark = pytest.mark.guarantee

BUGS = {bug.name: bug for bug in planted_bugs()}
TRIED = (
    "no_fsync_of_the_folder",
    "dedup_forgotten_over_a_restart",
    "id_run_after_free",
    "off_by_one_at_a_cut",
    "producer_used_again",
)


def test_planted_bugs_still_apply_and_name_checks_that_are_there(tmp_path: Path) -> None:
    for bug in BUGS.values():
        folder = tmp_path / bug.name
        changed = [line[6:] for line in bug.patch.read_text().splitlines() if line.startswith("--- a/")]
        for name in changed:
            (folder / name).parent.mkdir(parents=True)
            shutil.copy(ROOT / name, folder / name)
        bug.plant(folder)
        file, _, test = bug.check.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("name", TRIED)
def test_a_planted_bug_is_caught_by_its_check(name: str, tmp_path: Path) -> None:
    assert BUGS[name].caught(tmp_path) == ""


def test_a_bug_that_its_check_does_not_see_is_reported(tmp_path: Path) -> None:
    first = (ROOT / "connectors/spool/__init__.py").read_text().splitlines()[0]
    harmless = tmp_path / "harmless.patch"
    harmless.write_text(
        "Nothing changes.\n\n"
        "Caught-by: tests/unit/spool/store/test_local.py::test_a_name_that_is_taken_keeps_its_file\n\n"
        "--- a/connectors/spool/__init__.py\n+++ b/connectors/spool/__init__.py\n"
        f"@@ -1,1 +1,2 @@\n+# Nothing.\n {first}\n"
    )
    (tmp_path / "tree").mkdir()
    assert "ended with 0 on harmless" in PlantedBug.read(harmless).caught(tmp_path / "tree")
