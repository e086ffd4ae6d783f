"""Makes the site of the documentation: ``./dev docs --site``. A link to nothing fails.

Each version has a folder of its own in ``build/site``, or in the folder that is given; building a version leaves the
others there. ``versions.json`` lists them for the choice on each page, and ``index.html`` leads to the latest. Each
version has an ``llms.txt``, which is AGENTS.md with links to its pages; the site has that of the latest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

from connectors import __version__
from tools.lock import project
from tools.side_environment import ROOT, side_environment

__all__ = ["build", "list_versions", "llms_text"]

_FORWARD = """<!doctype html>
<meta charset="utf-8">
<title>pyspark-stream-connectors</title>
<meta http-equiv="refresh" content="0; url={version}/index.html">
<p>The documentation is <a href="{version}/index.html">here</a>.</p>
"""


def llms_text(agents: str, summary: str) -> str:
    """Return AGENTS.md as the ``llms.txt`` of a version: links lead to its pages, and a summary follows the title.

    Args:
        agents: the text of AGENTS.md.
        summary: a sentence.
    """
    text = re.sub(r"^<!--.*?-->\n", "", agents, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\(docs/([\w/-]+)\.md(#[\w-]+)?\)", r"](\1.html\2)", text)
    return text.replace("\n\n", f"\n\n> {summary}\n\n", 1)


def list_versions(site: Path) -> list[str]:
    """Write ``versions.json`` and the ``index.html`` of a site with these folders; returns the versions, newest first.

    The latest is the newest that is no pre-release, if there is one.
    """
    found = sorted((Version(path.parent.name) for path in site.glob("*/objects.inv")), reverse=True)
    names = [str(version) for version in found]
    latest = next((str(version) for version in found if not version.is_prerelease), names[0])
    text = json.dumps({"latest": latest, "versions": names}, indent=1)
    (site / "versions.json").write_text(text + "\n", encoding="utf-8")
    (site / "index.html").write_text(_FORWARD.format(version=latest), encoding="utf-8")
    if (page := site / latest / "llms.txt").is_file():
        text = re.sub(r"\]\((?=[\w/-]+\.html)", f"]({latest}/", page.read_text(encoding="utf-8"))
        (site / "llms.txt").write_text(text, encoding="utf-8")
    return names


def build(site: Path, version: str = __version__) -> int:
    """Build the pages of this tree as those of a version; returns Sphinx's exit code, and keeps the folder if it fails.

    Args:
        site: the folder of all versions.
        version: what the pages are called, as PEP 440 writes it.
    """
    name = str(Version(version))
    new = site / f".{name}.new"
    shutil.rmtree(new, ignore_errors=True)
    strict = ("-W", "--keep-going", "--fresh-env", "-q")
    folders = ("--doctree-dir", str(new / ".doctrees"), "docs", str(new))
    command = [str(side_environment("site")), "-m", "sphinx", *strict, *folders]
    code = subprocess.run(command, cwd=ROOT, env={**os.environ, "SITE_VERSION": name}, check=False).returncode
    if code == 0:
        shutil.rmtree(new / ".doctrees")
        agents = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
        (new / "llms.txt").write_text(llms_text(agents, project()["description"]), encoding="utf-8")
        shutil.rmtree(site / name, ignore_errors=True)
        new.rename(site / name)
        list_versions(site)
    return code


def main() -> int:
    """Build one version."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="The site of the documentation.")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", help="the folder of all versions")
    parser.add_argument("--version", default=__version__, help="what this tree's version is called")
    command_line = parser.parse_args()
    command_line.site.mkdir(parents=True, exist_ok=True)
    return build(command_line.site.resolve(), command_line.version)


if __name__ == "__main__":
    sys.exit(main())
