"""Installs of the built distributions into empty environments, and a first look at what works there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.lock import pins
from tools.release.build import Built
from tools.release.commands import ReleaseError, run

__all__ = ["Environment", "everything", "faults_of_installs"]

PACK, AUTOLOAD = "pyspark_stream_connectors", "pyspark_stream_connectors_autoload"
_USES = "import connectors, connectors.core.errors; print(connectors.__version__, connectors.__file__)"
# With all extras, every module can be imported.
_MODULES = """
import importlib, pkgutil
import connectors, pyspark_kafka_py, pyspark_kinesis, pyspark_pubsub

for module in pkgutil.walk_packages(connectors.__path__, "connectors."):
    if not module.name.endswith(".__main__"):
        importlib.import_module(module.name)
"""


class Environment:
    """An environment that has some requirements, what these bring, and nothing else.

    Args:
        folder: to make it in.
        python: the interpreter.
        requirements: what is installed, as pip takes them; from uv's cache alone, if that has all.
        constraints: versions, as ``name==version``.

    Raises:
        ReleaseError: the install failed, or its packages do not fit together.
    """

    def __init__(self, folder: Path, python: str, requirements: Sequence[str], constraints: Sequence[str] = ()) -> None:
        self.folder = folder
        self.python = folder / "env" / "bin" / "python"
        uv = (sys.executable, "-m", "uv")
        folder.mkdir(parents=True, exist_ok=True)
        run(*uv, "venv", "--quiet", "--no-python-downloads", "--python", python, folder / "env")
        (folder / "constraints.txt").write_text("\n".join(constraints))
        into: list[str | Path] = ["--python", self.python, "--constraint", folder / "constraints.txt"]
        install = [*uv, "pip", "install", "--quiet", *into, *requirements]
        try:
            run(*install, "--offline", cwd=folder)
        except ReleaseError:
            run(*install, cwd=folder)
        run(*uv, "pip", "check", "--python", self.python)

    def run(self, *words: str | Path) -> str:
        """Return the output of its Python in an empty folder, with an empty home and nothing of this tree.

        Raises:
            ReleaseError: it failed; with the end of what it printed.
        """
        status, output = self.tried(self.python, *words)
        if status:
            raise ReleaseError(f"{words} ended with {status}: {output[-3000:]}")
        return output

    def tried(self, *command: str | Path) -> tuple[int, str]:
        """Return the exit code of a command, and its output; after a failure with its errors."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        taken = {name: os.environ[name] for name in ("JAVA_HOME", "PATH", "LANG") if name in os.environ}
        own = {"HOME": str(self.folder), "PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        marks = {name: value for name, value in os.environ.items() if name.startswith("CONNECTORS_")}
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, check=False, env={**taken, **own, **marks}
        )
        return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


def everything(folder: Path, built: Built, python: str, constraints: Sequence[str]) -> Environment:
    """Make an environment with both wheels and all extras of the pack, and import every module there.

    Raises:
        ReleaseError: the install failed, or a module cannot be imported.
    """
    pack = f"{built.wheels[PACK]}[all,spark,testing]"
    environment = Environment(folder, python, (pack, str(built.wheels[AUTOLOAD])), constraints)
    environment.run("-I", "-c", _MODULES)
    return environment


def faults_of_installs(folder: Path, built: Built, version: str) -> list[str]:
    """Install wheels and sdists, without extras and with the command line, and return what does not work.

    Args:
        folder: to make the environments in.
        built: the distributions.
        version: what they must say they are.
    """
    constraints = pins("requirements.lock")
    found = []
    for kind, files in (("wheel", built.wheels), ("sdist", built.sdists)):
        for extra in ("", "[cli]"):
            requirements = (f"{files[PACK]}{extra}", str(files[AUTOLOAD]))
            environment = Environment(folder / f"{kind}{extra.strip('[]')}", sys.executable, requirements, constraints)
            found += [f"{kind}{extra}: {fault}" for fault in _faults(environment, version, cli=bool(extra))]
    return found


def _faults(environment: Environment, version: str, *, cli: bool) -> list[str]:
    """Return what does not work in an environment, with or without the extra of the command line."""
    found = []
    status, said = environment.tried(environment.python, "-I", "-c", _USES)
    if status or said.split()[:1] != [version] or not Path(said.split()[1]).is_relative_to(environment.folder):
        found.append(f"import connectors: {said.strip()[-500:]}")
    command = environment.python.with_name("connectors")
    if cli:
        for words, wanted in (("--version", rf"{re.escape(version)}\s*$"), ("--help", "Usage: connectors")):
            status, said = environment.tried(command, words)
            if status or not re.search(wanted, said):
                found.append(f"connectors {words} ended with {status}: {said.strip()[-500:]}")
    else:
        status, said = environment.tried(command, "--version")
        if status == 0 or "Traceback" in said or "[cli]" not in said:
            found.append(f"connectors without its extra ended with {status}: {said.strip()[-500:]}")
    return found
