"""The reference pages say what the code declares."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from tools.reference import PAGES
from tools.reference_errors import error_codes
from tools.reference_python import PUBLIC_MODULES, TESTING_MODULES, described

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", sorted(PAGES), ids=str)
def test_a_reference_page_is_what_the_code_declares(path: Path) -> None:
    assert (ROOT / path).read_text() == PAGES[path](), "run ./dev docs"


FIRST = 5
"""The options that a first job needs, on a page that has them in a table of their own."""


@pytest.mark.parametrize(
    ("page", "required"),
    [
        ("pubsub", {"subscriptionId", "projectId", "spoolLocation", "topicId"}),
        ("kinesis", {"streamName"}),
        ("kafka", {"kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign", "topic"}),
        ("protobuf", set()),
        ("avro", set()),
        ("json", set()),
    ],
)
def test_the_page_begins_with_all_options_those_of_a_first_job_and_the_required_ones_first(
    page: str, required: set[str]
) -> None:
    text = (ROOT / f"docs/reference/{page}.md").read_text(encoding="utf-8")
    table = re.search(r"^\| option \| (?:.*?\n\n### More\n\n\| option \|)?.*?\n\n", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    first, more, _ = table[0].partition("### More")
    assert not more or len(re.findall(r"^\| \[`", first, re.MULTILINE)) == FIRST
    rows = re.findall(r"^\| \[`([^`]+)`\]\(#([^)]+)\) \| [^|]+ \| ([^|]+) \|", table[0], re.MULTILINE)
    is_required = [default.startswith(("required", "this")) for _, _, default in rows]
    of_more = is_required[FIRST:] if more else is_required
    assert of_more == sorted(of_more, reverse=True)
    assert {name for (name, _, _), needed in zip(rows, is_required, strict=True) if needed} == required
    details = text[text.index("## Options in detail") :].partition("\n## `")[0]
    assert [name for name, _, _ in rows] == re.findall(r"^### `([^`]+)`$", details, re.MULTILINE)
    assert len({anchor for _, anchor, _ in rows}) == len(rows)


def test_each_error_code_is_in_the_index_and_links_to_its_section() -> None:
    folder = ROOT / "docs/reference"
    links = re.findall(
        r"\[`([\w.]+)`\]\((errors/\w+\.md)#([\w-]+)\)", (folder / "errors.md").read_text(encoding="utf-8")
    )
    sections = {
        (code, f"errors/{path.name}", re.sub(r"[^a-z0-9_-]", "", code.lower()))
        for path in folder.glob("errors/*.md")
        for code in re.findall(r"^## `(.+)`$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(links) == sections
    assert sorted(code for code, _, _ in links) == sorted(
        code.code for group in error_codes().values() for code in group
    )


@pytest.mark.parametrize("name", [*PUBLIC_MODULES, *TESTING_MODULES])
def test_each_public_name_says_what_it_does(name: str) -> None:
    missing = [text for text, value in described(importlib.import_module(name)) if not inspect.getdoc(value)]
    assert missing == []
