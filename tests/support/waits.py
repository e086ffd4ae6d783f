"""The places where the code waits, as its syntax trees show them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKING = {"sleep", "_sleep", "wait", "wait_for", "retry", "wait_out", "patiently", "poll", "flush", "tick"}
"""The last names of calls that wait, or that belong to a loop that waits."""


def waits(root: Path = ROOT) -> set[str]:
    """Return each function that waits, such as ``core.retry.wait_out``, outside of the servers for tests."""
    return {name for path in sorted((root / "connectors").rglob("*.py")) for name in _of_file(root, path)}


@cache
def logging_functions(root: Path = ROOT) -> set[str]:
    """Return each function that logs what it waits for."""
    return {
        f"{'.'.join(path.relative_to(root / 'connectors').with_suffix('').parts)}.{function.name}"
        for path in sorted((root / "connectors").rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(call, ast.Call) and _name(call.func) == "tick" for call in ast.walk(function))
    }


def _of_file(root: Path, path: Path) -> Iterator[str]:
    module = ".".join(path.relative_to(root / "connectors").with_suffix("").parts)
    if module.startswith("testing."):
        return
    yield from _of_node(ast.parse(path.read_text(encoding="utf-8")), module, "")


def _of_node(node: ast.AST, module: str, function: str) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not function:
        function = node.name
    if isinstance(node, ast.Call) and function and _waits(node):
        yield f"{module}.{function}"
    for child in ast.iter_child_nodes(node):
        yield from _of_node(child, module, function)


def _waits(call: ast.Call) -> bool:
    name = _name(call.func)
    return name in BLOCKING or (name == "get" and any(keyword.arg == "timeout" for keyword in call.keywords))


def _name(function: ast.expr) -> str:
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
