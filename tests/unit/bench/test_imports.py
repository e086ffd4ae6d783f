"""The programs of bench/ and what they share import each other in one direction, lazily too."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"


def siblings(folder: Path) -> dict[str, set[str]]:
    """By module: those of the same folder that it imports, at its top or in a function."""
    texts = {path.stem: path.read_text() for path in folder.glob("*.py")}
    found: dict[str, set[str]] = {name: set() for name in texts}
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.ImportFrom(module=str(module), level=0):
                    found[name].add(module)
                case ast.Import(names=aliases):
                    found[name] |= {alias.name for alias in aliases}
    return {name: imported & texts.keys() for name, imported in found.items()}


def test_no_two_modules_import_each_other() -> None:
    graph = siblings(BENCH)
    assert graph["pubsub_scale"] >= {"_common", "_scale_cluster"}
    TopologicalSorter(graph).prepare()
