"""The page on waits has each wait of the code, with its limit; and each wait of a source says what it waits for."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from connectors.core.options.declaration import declared_options
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kinesis.options.source import KinesisReadOptions
from connectors.pubsub.options.sink import PubSubWriteOptions
from connectors.pubsub.options.source import PubSubReadOptions
from connectors.registry.options import RegistryOptions
from tests.support.waits import ROOT, logging_functions, waits

PAGE = (ROOT / "docs/explanation/waits.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+).*?\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SHORT_SECONDS = 15
CODE = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "connectors").rglob("*.py"))}
OPTIONS = {
    option.name: option
    for options in (KafkaReadOptions, KinesisReadOptions, PubSubReadOptions, PubSubWriteOptions, RegistryOptions)
    for option in declared_options(options).values()
}


def rows(section: str) -> list[list[str]]:
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


ROWS = [row for section in SECTIONS for row in rows(section)]
SOURCES = rows("Sources")


def functions(row: list[str]) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", row[-1]))


def test_each_wait_of_the_code_is_on_the_page_and_each_of_the_page_in_the_code() -> None:
    listed = set().union(*map(functions, ROWS))
    assert waits() - listed == set()
    assert listed - waits() - {"kinesis.source.reader._is_end"} == set()  # waits page by page, as `note` does


@pytest.mark.parametrize("row", SOURCES, ids=lambda row: row[0][:40])
def test_a_source_says_what_it_waits_for_or_waits_for_seconds(row: list[str]) -> None:
    _, limit, _, says, _ = row
    if says == "—":
        assert max(float(each) for each in re.findall(r"([\d.]+) s\b", limit)) <= SHORT_SECONDS
        return
    (code,) = re.findall(r"`(\w+)`", says)
    assert any(f"[{code}]" in text for text in CODE.values())
    if code == "WAITING":
        assert functions(row) & logging_functions()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_limits_are_those_of_the_code(row: list[str]) -> None:
    modules = [
        text
        for path, text in CODE.items()
        if any(
            function.rpartition(".")[0] == ".".join(path.relative_to(ROOT / "connectors").with_suffix("").parts)
            for function in functions(row)
        )
    ]
    for seconds, name in re.findall(r"([\d.]+) s \(`(_?[A-Z_]+)`\)", row[1]):
        assert any(_constant(text, name) == float(seconds) for text in [*modules, *CODE.values()]), name
    for name, default in re.findall(r"`([\w.]+)` \((\w+)\)", row[1]):
        assert str(OPTIONS[name].default) == default, name


_parsed = cache(ast.parse)


def _constant(text: str, name: str) -> float | None:
    for node in _parsed(text).body if name in text else ():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return _number(node.value)  # type: ignore[attr-defined]
    return None


def _number(value: ast.expr) -> float | None:
    """Return a number, or the deadline of a retry policy."""
    if isinstance(value, ast.Call):
        return next((_number(each.value) for each in value.keywords if each.arg == "deadline_seconds"), None)
    return float(value.value) if isinstance(value, ast.Constant) and isinstance(value.value, int | float) else None
