"""Makes the lock files from pyproject.toml; run by ``./dev lock``.

``requirements.lock`` has the newest versions that fit, ``requirements-lowest.lock`` the lower bound of everything
that the package itself needs; each other has a group for an environment beside .venv (`tools.side_environment`). All
name every file by its hash, and no registry: each machine asks its own.
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
SIDE_GROUPS = ("connect", "packaging", "site")
ONE_FOR_ALL = ("google-api-core<2.26",)
"""Of the lower bounds: newer ones ask for a newer grpcio on Python 3.14 alone, so that the lock had two versions."""
HEADER = "# Made by ./dev lock from pyproject.toml. Names no registry: each machine asks its own.\n"


def project() -> dict[str, Any]:
    """The ``[project]`` table."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def locked_extras() -> dict[str, list[str]]:
    """The extras of the tests' environment: not pandas, which pyarrow would import in every process."""
    extras: dict[str, list[str]] = project()["optional-dependencies"]
    return {name: lines for name, lines in extras.items() if name != "pandas"}


def lower_bounds() -> list[str]:
    """The run-time requirements, each pinned to its lower bound."""
    requirements: list[str] = list(project()["dependencies"])
    for extra in locked_extras().values():
        requirements += extra
    bounds = (re.match(r"([\w-]+)(?:\[[\w,-]+\])?\s*[>=]=\s*([\w.]+)", requirement) for requirement in requirements)
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


def pins(lock: str) -> list[str]:
    """The packages of a lock file with their versions, as ``name==version``."""
    return re.findall(r"^[\w.-]+==[^\s;]+", (ROOT / lock).read_text(), re.MULTILINE)


def compile_lock(target: str, *options: str) -> None:
    """Resolve pyproject.toml for every Python and platform, and write one lock file."""
    extras = (word for name in locked_extras() for word in ("--extra", name))
    command = (sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", *extras, "--group", "dev")
    _compile(target, *command, *options)


def compile_side_lock(group: str) -> None:
    """Resolve a group of pyproject.toml beside requirements.lock, and write what that has not."""
    inner = pins("requirements.lock")
    left_out = (word for pin in inner for word in ("--no-emit-package", pin.partition("==")[0]))
    with NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(inner))
        constraints.flush()
        command = (sys.executable, "-m", "uv", "pip", "compile", "--group", f"pyproject.toml:{group}")
        _compile(f"requirements-{group}.lock", *command, *left_out, "--constraint", constraints.name)


def _compile(target: str, *command: str) -> None:
    same = ("--universal", "--fork-strategy", "fewest", "--python-version", "3.11", "--generate-hashes")
    quiet = ("--no-header", "--no-annotate", "--quiet")
    done = subprocess.run([*command, *same, *quiet], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    (ROOT / target).write_text(HEADER + done.stdout)


def main() -> None:
    """Write all lock files."""
    compile_lock("requirements.lock")
    with NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join([*lower_bounds(), *ONE_FOR_ALL]))
        constraints.flush()
        compile_lock("requirements-lowest.lock", "--constraint", constraints.name)
    for group in SIDE_GROUPS:
        compile_side_lock(group)


if __name__ == "__main__":
    main()
