"""Makes the lock files; run by ``./dev lock``.

``requirements.lock`` has the newest versions that fit, ``requirements-lowest.lock`` the lower bound of everything
that the package itself needs, both from pyproject.toml. ``requirements-site.lock`` has what makes the site, from
``docs/requirements.in``. All name every file by its hash, and no registry: each machine asks its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = ("pyproject.toml", "--all-extras", "--group", "dev")
HEADER = "# Made by ./dev lock from {}. Names no registry: each machine asks its own.\n"


def lower_bounds(project: dict[str, Any]) -> list[str]:
    """The run-time requirements of a ``[project]`` table, each pinned to its lower bound."""
    requirements: list[str] = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements += extra
    bounds = (re.match(r"([\w-]+)\s*[>=]=\s*([\w.]+)", requirement) for requirement in requirements)
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


def compile_lock(target: str, *options: str, source: tuple[str, ...] = _PACKAGE) -> None:
    """Resolve pyproject.toml, or another source, for every Python and platform, and write one lock file."""
    command = (sys.executable, "-m", "uv", "pip", "compile", *source)
    same = ("--universal", "--fork-strategy", "fewest", "--python-version", "3.11", "--generate-hashes")
    quiet = ("--no-header", "--no-annotate", "--quiet")
    done = subprocess.run([*command, *same, *quiet, *options], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    (ROOT / target).write_text(HEADER.format(source[0]) + done.stdout)


def main() -> None:
    """Write the three lock files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    compile_lock("requirements.lock")
    with NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(lower_bounds(project)))
        constraints.flush()
        compile_lock("requirements-lowest.lock", "--constraint", constraints.name)
    compile_lock("requirements-site.lock", source=("docs/requirements.in",))


if __name__ == "__main__":
    main()
