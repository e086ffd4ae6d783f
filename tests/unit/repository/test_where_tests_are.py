"""CONTRIBUTING says where the test of each module is, and what it names runs that module."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.house_rules import imports, module_path, sources

ROOT = Path(__file__).resolve().parents[3]
ROWS = {
    row[0]: re.findall(r"`([^`]+)`", row[1])
    for row in re.findall(
        r"^\| `([\w/]+)` \| ((?:`\w+/[\w/]+\.py`(?:, )?)+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
}


def without_own_test() -> list[str]:
    """The modules without a test file of their name, as paths below `connectors/`."""
    paths = [path.relative_to(ROOT / "connectors").with_suffix("") for path in sources(ROOT, "connectors")]
    named = [path for path in paths if not path.name.startswith("__")]
    tests = ROOT / "tests"
    return [
        str(path)
        for path in named
        if not (tests / "unit" / path.parent / f"test_{path.name}.py").is_file()
        and not (tests / "integration" / path.parent / f"test_{path.name}.py").is_file()
    ]


def row_of(module: str) -> str:
    """The longest row that fits a module, or an empty text."""
    fitting = (row for row in ROWS if module == row or module.startswith(f"{row}/"))
    return max(fitting, key=len, default="")


@cache
def named_by(path: Path) -> frozenset[Path]:
    """The modules of this tree that a file imports, or names as a program."""
    text = path.read_text(encoding="utf-8")
    names = {imported.name for imported in imports(ROOT, path)}
    names |= set(re.findall(r"\b(?:connectors|tests)(?:\.\w+)+", text))
    found = (module_path(ROOT, name) for name in names if name.startswith(("connectors.", "tests.")))
    programs = (path.with_name(name) for name in re.findall(r"with_name\(\"(\w+\.py)\"\)", text))
    return frozenset(filter(None, (*found, *programs)))


def reached_by(test: Path) -> set[Path]:
    """The modules of this tree that a test names, itself or through others."""
    left = [test, *(folder / "conftest.py" for folder in test.parents if (folder / "conftest.py").is_file())]
    found: set[Path] = set()
    while left:
        named = named_by(left.pop()) - found
        found |= named
        left += named
    return found


@pytest.mark.parametrize("row", sorted(ROWS))
def test_the_tests_of_a_row_reach_its_modules(row: str) -> None:
    modules = [module for module in without_own_test() if row_of(module) == row]
    assert modules, "no module needs this row"
    reached = set().union(*(reached_by(ROOT / "tests" / test) for test in ROWS[row]))
    assert {ROOT / "connectors" / f"{module}.py" for module in modules} - reached == set()


def test_each_module_without_a_test_of_its_name_has_a_row() -> None:
    assert [module for module in without_own_test() if not row_of(module)] == []
