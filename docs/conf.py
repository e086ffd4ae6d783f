"""The site of the documentation: ``./dev docs --site``. The pages are the Markdown files beside this one.

What is in the site, and in which order, is what ``index.md`` links to: its sections become the groups of the menu.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_PROJECT = tomllib.loads((_HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_PACKAGE = (_HERE.parent / "connectors/__init__.py").read_text(encoding="utf-8")

project = _PROJECT["name"]
copyright = "the authors; Apache License 2.0"  # noqa: A001 - Sphinx's name
version = release = os.environ.get("SITE_VERSION") or re.findall(r'__version__ = "(.+)"', _PACKAGE)[0]

extensions = ["myst_parser", "sphinx_copybutton"]
nitpicky = True  # a link to nothing is an error, since ./dev docs --site makes warnings errors
myst_heading_anchors = 6  # as GitHub makes them
highlight_language = "text"
smartquotes = False  # the pages have JSON in their sentences, which people copy
templates_path = ["templates"]

html_theme = "furo"
html_title = "pyspark-stream-connectors"
html_static_path = ["images"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_search_scorer = str(_HERE / "templates/scorer.js")
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "version.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "menu.html",
        "sidebar/scroll-end.html",
    ]
}

_GROUP = re.compile(r'<p class="caption"[^>]*><span class="caption-text">(.*?)</span></p>\n(<ul.*?</ul>)', re.DOTALL)


def _menu(index: str) -> str:
    """Return the menu of the site, out of the links of the front page's sections."""
    parts = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        if links := re.findall(r"\[([^\]]+)\]\(([^)#:]+)\.md\)", text):
            entries = [f"{name} <{page}>" for name, page in links]
            parts += ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *entries, "```"]
    return "\n".join(parts)


def _collapsed(tree: str) -> str:
    """Return Furo's menu with each group folded, except for the one of the page; needs no script."""

    def fold(group: re.Match[str]) -> str:
        title, pages = group.groups()
        opened = " open" if pages.startswith('<ul class="current"') else ""
        return f"<details{opened}><summary>{title}</summary>{pages}</details>"

    return _GROUP.sub(fold, tree)


def _read(_app: Any, name: str, source: list[str]) -> None:
    """Add the menu to the front page, and leave out links to files of the repository, which the site has not."""
    if name == "index":
        source[0] += _menu(source[0])
    folder = (_HERE / name).parent

    def plain(link: re.Match[str]) -> str:
        return link[0] if (folder / link[2]).resolve().is_relative_to(_HERE) else link[1]

    source[0] = re.sub(r"\[([^\]\[]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)", plain, source[0])


def _fold_menu(_app: Any, _name: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    context["menu"] = _collapsed(context.get("furo_navigation_tree", ""))


def setup(app: Any) -> None:
    """Let the front page bring the menu; Sphinx calls this."""
    app.connect("source-read", _read)
    app.connect("html-page-context", _fold_menu, priority=900)  # after Furo's own, which makes the tree
