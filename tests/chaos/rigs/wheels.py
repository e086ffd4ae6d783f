"""Builds of both distributions, and environments that have nothing but their wheels and what these bring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import connectors
from tests.chaos.rigs import first_job
from tests.chaos.support.record import ROOT
from tools.audit import license_of
from tools.lock import pins
from tools.side_environment import side_environment

FOLDERS = {"pyspark_stream_connectors": ".", "pyspark_stream_connectors_autoload": "autoload"}
LOCKS = {"newest": "requirements.lock", "lowest": "requirements-lowest.lock"}
_OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Built:
    """The files that one build has given, by project, and the clone that they were built from."""

    tree: Path
    wheels: dict[str, Path]
    sdists: dict[str, Path]


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> str:
    """The standard output of a command.

    Raises:
        AssertionError: it failed; with the end of what it said.
    """
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, f"{' '.join(map(str, command[:4]))}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def build(folder: Path) -> Built:
    """Wheel and sdist of both projects, from a fresh clone: what is not committed is in none of them."""
    tree, dist, version = folder / "tree", folder / "dist", f"-{connectors.__version__}"
    run("git", "clone", "--quiet", "--shared", ROOT, tree)
    for inside in FOLDERS.values():
        run(sys.executable, "-m", "hatchling", "build", "--directory", dist, cwd=tree / inside)
    return Built(
        tree,
        {name: dist / f"{name}{version}-py3-none-any.whl" for name in FOLDERS},
        {name: dist / f"{name}{version}.tar.gz" for name in FOLDERS},
    )


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, without its record of hashes."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def faults_of_wheel(name: str, built: Built) -> list[str]:
    """What is wrong with a wheel against the tree that it was built from."""
    project, files = built.tree / FOLDERS[name], contents(built.wheels[name])
    tracked = set(run("git", "ls-files", cwd=project).splitlines())
    packages = ("connectors/",) if FOLDERS[name] == "." else ("pyspark_", "stream_connectors_autoload/")
    wanted = {path for path in tracked if path.startswith(packages)}
    inside = {path for path in files if ".dist-info/" not in path}
    faults = [f"{name}: {path} is missing" for path in sorted(wanted - inside)]
    faults += [f"{name}: {path} is too much" for path in sorted(inside - wanted)]
    faults += [f"{name}: {path} differs" for path in wanted & inside if files[path] != (project / path).read_bytes()]
    faults += [] if any(path.endswith("/py.typed") for path in inside) else [f"{name}: no py.typed"]
    faults += [] if any(path.endswith("/licenses/LICENSE") for path in files) else [f"{name}: no license"]
    [metadata] = [message_from_bytes(data) for path, data in files.items() if path.endswith("/METADATA")]
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    if set(metadata.get_all("Provides-Extra", [])) != set(declared.get("optional-dependencies", {})):
        faults.append(f"{name}: extras {metadata.get_all('Provides-Extra')}")
    if metadata["License-Expression"] != "Apache-2.0" or metadata["Requires-Python"] != ">=3.11":
        faults.append(f"{name}: license or Python of the metadata")
    if metadata.get_payload() != (project / "README.md").read_text():
        faults.append(f"{name}: the description is not the README")
    return faults


def faults_of_sdist(name: str, built: Built, folder: Path) -> list[str]:
    """What is wrong with an sdist: it must give the same wheel, and hold nothing that is not in the tree."""
    project, wheel = built.tree / FOLDERS[name], built.wheels[name]
    with tarfile.open(built.sdists[name]) as archive:
        archive.extractall(folder, filter="data")
    [root] = folder.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder / "again", cwd=root)
    again, first = contents(folder / "again" / wheel.name), contents(wheel)
    faults = [] if again == first else [f"{name}: the wheel of the sdist differs: {again.keys() ^ first.keys()}"]
    tracked = {Path(path) for path in run("git", "ls-files", cwd=project).splitlines()}
    inside = {path.relative_to(root) for path in root.rglob("*") if path.is_file()} - {
        Path("PKG-INFO"),
        Path(".gitignore"),
    }
    extra = [path for path in sorted(inside) if path not in tracked]
    return [*faults, *(f"{name}: {path} is in the sdist and not in the tree" for path in extra)]


def pythons() -> dict[str, str]:
    """The usable interpreters of the PATH and of pyenv by their versions, ``3.11`` and newer."""
    found: dict[str, str] = {}
    code = "import sys; print(sys.implementation.name, *sys.version_info[:2]); print(sys.executable)"
    managed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(_OLDEST_PYTHON[1], 20):
        name = f"python3.{minor}"
        for candidate in (name, *sorted(map(str, managed.glob(f"3.{minor}.*/bin/{name}")))):
            try:
                done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
            except OSError:
                continue
            first, _, executable = done.stdout.strip().partition("\n")
            if done.returncode == 0 and first == f"cpython 3 {minor}":
                found.setdefault(f"3.{minor}", executable)
    return found


class Environment:
    """An environment with the wheels, all extras of the pack, and the versions of a lock.

    Args:
        folder: to make it in.
        python: the interpreter.
        built: the wheels.
        constraints: versions, as ``name==version``.
    """

    def __init__(self, folder: Path, python: str, built: Built, constraints: Sequence[str]) -> None:
        self.folder = folder
        self.python = folder / "env" / "bin" / "python"
        uv = (sys.executable, "-m", "uv")
        run(*uv, "venv", "--quiet", "--no-python-downloads", "--python", python, folder / "env")
        (folder / "constraints.txt").write_text("\n".join(constraints))
        pack = f"{built.wheels['pyspark_stream_connectors']}[all,spark,testing]"
        install = (
            *uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            self.python,
            "--constraint",
            folder / "constraints.txt",
        )
        run(*install, pack, built.wheels["pyspark_stream_connectors_autoload"])
        run(*uv, "pip", "check", "--python", self.python)

    def run(self, *words: str | Path) -> str:
        """The output of its Python in an empty folder, with an empty home and nothing of this tree."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "PATH", "LANG") if name in os.environ}
        own = {"HOME": str(self.folder), "PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        marks = {name: value for name, value in os.environ.items() if name.startswith("CONNECTORS_")}
        done = subprocess.run(
            [self.python, *words], cwd=work, capture_output=True, text=True, check=False, env={**kept, **own, **marks}
        )
        assert done.returncode == 0, f"{words}: {(done.stdout + done.stderr)[-3000:]}"
        return done.stdout

    def first_job(self) -> dict[str, Any]:
        """What came of the first job."""
        script = self.folder / "first_job.py"
        script.write_text(Path(first_job.__file__).read_text())
        found = json.loads(self.run(script).splitlines()[-1])
        assert Path(found["pack"]).is_relative_to(self.folder)
        return dict(found)


def bill_of_materials(environment: Environment, target: Path) -> dict[str, Any]:
    """The bill of materials (CycloneDX 1.6) of what is installed in an environment, checked by its maker.

    The maker leaves out what is no known name of a license: that is taken from the metadata as it stands.
    """
    run(
        *(side_environment("packaging"), "-m", "cyclonedx_py", "environment", environment.python),
        *("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--sv", "1.6", "--of", "JSON"),
        *("--output-reproducible", "--validate", "--output-file", target),
    )
    bill: dict[str, Any] = json.loads(target.read_text())
    bill["metadata"]["component"]["version"] = connectors.__version__
    for component in bill["components"]:
        if "licenses" not in component:
            said = license_of(distribution(component["name"]))
            component["licenses"] = [{"license": {"name": said, "acknowledgement": "declared"}}]
    target.write_text(json.dumps(bill, indent=1) + "\n")
    return bill


def constraints_of(lock: str) -> list[str]:
    """The versions of a lock."""
    return pins(LOCKS[lock])
