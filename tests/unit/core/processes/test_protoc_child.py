"""The program that runs protoc."""

from __future__ import annotations

from pathlib import Path

from connectors.core.processes import protoc


def test_the_program_of_the_child_imports_nothing_of_the_pack() -> None:
    program = (Path(protoc.__file__).parent / "protoc_child.py").read_text()
    assert "connectors." not in program.rpartition('"""')[2]
