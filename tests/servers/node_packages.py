"""Programs through npm: a package.json and a lock file of this package name them, npm finds them where it is set up to.

    installed = node_packages("kinesis-local")
    if installed.reason:
        ...                                   # one sentence: why they cannot be had
    subprocess.run([installed.node, installed.modules / "kinesis-local" / "main.js"])

They are kept below ``~/.cache``, so that only the first call starts npm. Scripts of packages are not run.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MANIFESTS", "NodePackages", "node_packages"]

MANIFESTS = Path(__file__).parent / "npm"
"""A folder for each set of packages."""

_FILES = ("package.json", "package-lock.json", ".npmrc")
_SECONDS = 300


@dataclass(frozen=True)
class NodePackages:
    """The result of `node_packages`: either ``node`` and ``modules`` are set, or ``reason`` says why not."""

    node: str = ""
    modules: Path = Path()
    reason: str = ""


def node_packages(name: str, manifests: Path = MANIFESTS) -> NodePackages:
    """The packages of the lock file in the folder NAME of ``manifests``, installed now or at an earlier call."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return NodePackages(reason="Node.js and npm were not found on the PATH: install the packages nodejs and npm")
    manifest = manifests / name
    version = hashlib.blake2b((manifest / "package-lock.json").read_bytes(), digest_size=8).hexdigest()
    cache = Path("~/.cache/pyspark-stream-connectors").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{name}-{version}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one npm at a time, the others take its result
        if not folder.is_dir() and (reason := _install(npm, manifest, folder)):
            return NodePackages(reason=reason)
    return NodePackages(node, folder / "node_modules")


def _install(npm: str, manifest: Path, folder: Path) -> str:
    """Let npm install what the lock file names; returns why it could not."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    for file in _FILES:
        shutil.copy(manifest / file, new)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command, cwd=new, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"npm did not install {manifest.name} in {_SECONDS} s"
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERR!" in line or "error" in line]
        return f"npm cannot install {manifest.name}: {errors[0][:400] if errors else done.returncode}"
    new.rename(folder)
    return ""
