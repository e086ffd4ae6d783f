"""Environments beside .venv, for packages that must not be in it.

Such an environment sees all of .venv, and has the packages of a small lock of its own more. It is made where .venv is,
in ``.venv-NAME``, once for each state of that lock and of .venv.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__ = ["side_environment"]

ROOT = Path(__file__).resolve().parent.parent


def side_environment(name: str) -> Path:
    """The Python of the environment that has the dependency group of this name, which is installed if it is not yet.

    Args:
        name: the group; its lock is ``requirements-NAME.lock``.

    Raises:
        subprocess.CalledProcessError: the lock could not be installed.
    """
    folder, lock = ROOT / f".venv-{name}", ROOT / f"requirements-{name}.lock"
    python, stamp = folder / "bin" / "python", folder / "stamp"
    inner = sysconfig.get_paths()["purelib"]
    wanted = f"{sys.version}\n{inner}\n{lock.read_text()}"
    with Path(f"{folder}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # two test processes may want it at the same time
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=False, symlinks=True)
        sys.stderr.write(f"installing {lock.name} into {folder.name}, once\n")
        command = [*_installer(python), "--no-deps", "--require-hashes", "-r", str(lock)]
        subprocess.run(command, check=True, stdout=2)  # beside standard error: the output is the caller's
        own = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
        # addsitedir, and not a plain line: the editable package is a path file of .venv, which has to be read too.
        own.joinpath("venv.pth").write_text(f"import site; site.addsitedir({inner!r})\n")
        stamp.write_text(wanted)
    return python


def _installer(python: Path) -> list[str]:
    """As ./dev has made .venv: one that uv made has no pip."""
    if importlib.util.find_spec("pip") is None:
        return [sys.executable, "-m", "uv", "pip", "install", "--python", str(python)]
    return [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"]
