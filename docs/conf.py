"""The site of the documentation: ``./dev docs --site``. The pages are the Markdown files beside this one.

What is in the site, and in which order, is what ``index.md`` links to: its sections become those of the menu.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_PROJECT = tomllib.loads((_HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = _PROJECT["name"]
copyright = "the authors; Apache License 2.0"  # noqa: A001 - Sphinx's name
release = re.findall(r'__version__ = "(.+)"', (_HERE.parent / "connectors/__init__.py").read_text(encoding="utf-8"))[0]

extensions = ["myst_parser", "sphinx_copybutton"]
nitpicky = True  # a link to nothing is an error, since ./dev docs --site makes warnings errors
myst_heading_anchors = 6  # as GitHub makes them
highlight_language = "text"

html_theme = "furo"
html_title = "pyspark-stream-connectors"
html_static_path = ["images"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def _menu(index: str) -> str:
    """The menu of the site, out of the links of the front page."""
    parts = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        links = re.findall(r"\]\(([^)#:]+)\.md\)", text)
        parts += ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *links, "```"]
    return "\n".join(parts)


def _add_menu(_app: Any, name: str, source: list[str]) -> None:
    if name == "index":
        source[0] += _menu(source[0])


def setup(app: Any) -> None:
    """Let the front page bring the menu; Sphinx calls this."""
    app.connect("source-read", _add_menu)
