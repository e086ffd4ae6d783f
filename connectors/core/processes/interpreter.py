"""Commands that start Python. Nothing else in the pack builds one, so none imports what lies in the present folder.

``python -m`` and ``python -c`` put the present folder first on the path: a ``json/`` or ``numpy/`` there would run.
With ``-P`` Python does not. A house rule finds commands that are built elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGE_FOLDER: Final = str(Path(__file__).resolve().parents[3])
_SAFE_PATH: Final = "import sys\nif sys.path[:1] == ['']:\n    del sys.path[0]\n"  # sys is never a file


def python_command(*arguments: str) -> list[str]:
    """Return the command that runs this program's Python with these arguments."""
    return [sys.executable, "-P", *arguments]


def probe_command(python: str, program: str) -> list[str]:
    """Return the command that runs the text of a program by another Python, which may be too old to know ``-P``."""
    return [python, "-c", _SAFE_PATH + program]


def python_environment(paths: Iterable[str] | None = None) -> dict[str, str]:
    """Return an environment with which a child finds the pack even if it is not installed.

    Args:
        paths: of the child's ``PYTHONPATH``, instead of this process's; empty ones, which Python takes for the present
            folder, are left out.
    """
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep) if paths is None else paths
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*filter(None, entries), _PACKAGE_FOLDER]))}


def importing_environment() -> dict[str, str]:
    """Return an environment with which a child finds what this process finds, such as files of ``addPyFile``.

    What PYTHONPATH names is meant, also where that is the present folder, which is left out otherwise.
    """
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return python_environment([*entries, *without_present_folder(sys.path)])


def folder_of_module(name: str) -> str:
    """Return the folder in which this process finds a module, for a child to search last; empty if it finds none.

    A module of the user's may lie beside the script of the job, which may be the present folder. Nothing there may
    stand for a module of Python or of an installed package, so it is not an entry of PYTHONPATH, which comes first.
    """
    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    places = list(spec.submodule_search_locations or ())
    if not places and spec.origin is not None and spec.has_location:
        places = [spec.origin]
    return str(Path(places[0]).absolute().parent) if places else ""


def without_present_folder(paths: Iterable[str]) -> list[str]:
    """Return the paths, of ``sys.path`` for one, without the present folder, which ``-m`` and ``-c`` add."""
    present = Path.cwd()
    return [path for path in paths if Path(path).absolute() != present]
