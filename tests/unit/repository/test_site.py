"""The site of the documentation; ./dev chaos site opens it in a browser."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.site import build, list_versions

ROOT = Path(__file__).parents[3]


def conf() -> Any:
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def versions_of(site: Path, *names: str) -> dict[str, Any]:
    for name in names:
        (site / name).mkdir()
        (site / name / "objects.inv").touch()
    list_versions(site)
    listed: dict[str, Any] = json.loads((site / "versions.json").read_text())
    return listed


def test_versions_are_listed_from_the_newest_to_the_oldest_one(tmp_path: Path) -> None:
    assert versions_of(tmp_path, "0.9.0", "0.10.0", "1.0rc1") == {
        "latest": "0.10.0",
        "versions": ["1.0rc1", "0.10.0", "0.9.0"],
    }
    assert 'href="0.10.0/index.html"' in (tmp_path / "index.html").read_text()


def test_a_pre_release_is_the_latest_where_nothing_else_is(tmp_path: Path) -> None:
    assert versions_of(tmp_path, "1.0a1", "1.0rc1")["latest"] == "1.0rc1"


def test_what_is_no_version_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    assert versions_of(tmp_path, "1.0")["versions"] == ["1.0"]


def test_a_page_opens_its_own_group_of_the_menu_only() -> None:
    caption = '<p class="caption" role="heading"><span class="caption-text">{}</span></p>\n'
    tree = caption.format("Start") + "<ul><li>a</li></ul>\n"
    tree += caption.format("Kafka") + '<ul class="current"><li class="current">b</li></ul>\n'
    folded = conf()._collapsed(tree)
    assert "<details><summary>Start</summary><ul><li>a</li></ul></details>" in folded
    assert '<details open><summary>Kafka</summary><ul class="current">' in folded


def test_the_front_page_gives_the_menu_at_most_eight_groups() -> None:
    menu = conf()._menu((ROOT / "docs/index.md").read_text(encoding="utf-8"))
    assert 0 < menu.count(":caption:") <= 8
    assert "Something is wrong" not in menu


def test_a_link_out_of_the_documentation_is_plain_text_on_the_site() -> None:
    source = ["[a](../../CONTRIBUTING.md#add-an-option) [b](../how-to/doctor.md#x) [c](https://example.org/../d)"]
    conf()._read(None, "explanation/how-it-works", source)
    assert source == ["a [b](../how-to/doctor.md#x) [c](https://example.org/../d)"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_versions_stand_side_by_side(tmp_path: Path) -> None:
    """The older one is as it was when the newer one is built."""
    assert build(tmp_path, "1.0") == 0
    before = (tmp_path / "1.0/index.html").read_bytes()
    assert build(tmp_path, "1.1") == 0
    assert (tmp_path / "1.0/index.html").read_bytes() == before
    assert json.loads((tmp_path / "versions.json").read_text()) == {"latest": "1.1", "versions": ["1.1", "1.0"]}
    for version in ("1.0", "1.1"):
        pages = {path.relative_to(tmp_path / version).with_suffix("") for path in (tmp_path / version).rglob("*.html")}
        written = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
        assert written <= pages
        for page in pages:
            text = (tmp_path / version / page).with_suffix(".html").read_text()
            assert f"This is version <strong>{version}</strong>" in text
            assert f'data-root="{"../" * (len(page.parts) - 1) or "./"}"' in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.0", "1.1", "index.html", "versions.json"]


def test_no_page_loads_anything_from_another_host() -> None:
    for name in ("site.css", "site.js"):
        assert not re.search(r"https?://", (ROOT / "docs/images" / name).read_text())
