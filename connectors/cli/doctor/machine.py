"""The versions that ``connectors doctor`` checks on this machine: the Pythons, their packages, Spark and Java."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import connectors
from connectors.core.diagnostics import Finding, FindingError, run_checks
from connectors.core.formats import OLDEST_SPARK, install_command, not_installed
from connectors.core.processes.interpreter import probe_command

_SECONDS: Final = 60
_OLDEST_PYTHON: Final = (3, 11)
_OLDEST_ARROW: Final = (18,)
_OLDEST_JAVA: Final = 17
_PROBE: Final = Path(__file__).with_name("probe.py")


def check_machine(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check this machine as the driver of a query would see it."""
    yield from run_checks("python", ("driver",), _driver())
    yield from check_workers(environ)
    yield from run_checks("spark", ("version",), _spark(environ))
    yield from run_checks("java", ("runtime",), _java(environ))


def check_workers(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Python that Spark starts for tasks and readers: ``PYSPARK_PYTHON``, else ``python3`` of the PATH."""
    return run_checks("python", ("worker", "pyarrow", "pack", "neighbours"), _workers(environ))


def _driver() -> Iterator[str]:
    if sys.version_info[:2] < _OLDEST_PYTHON:
        raise FindingError("PYTHON_TOO_OLD", f"this is Python {_dotted(sys.version_info)}")
    yield f"Python {_dotted(sys.version_info)} at {sys.executable}, pack {connectors.__version__}"


def _workers(environ: Mapping[str, str]) -> Iterator[str]:
    name = environ.get("PYSPARK_PYTHON") or "python3"
    said = "PYSPARK_PYTHON" if environ.get("PYSPARK_PYTHON") else "python3 of the PATH; PYSPARK_PYTHON is not set"
    fix = f"export PYSPARK_PYTHON={sys.executable}"
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        raise FindingError("PYTHON_WORKER_MISSING", f"{name} does not exist ({said})", "", fix)
    status, printed, said_wrong = _run(probe_command(path, _PROBE.read_text(encoding="utf-8")), environ)
    try:
        seen: dict[str, Any] = json.loads(printed.strip().rpartition("\n")[2])
    except ValueError:
        why = said_wrong.strip().rpartition("\n")[2] or f"it ended with code {status}"
        raise FindingError("PYTHON_WORKER_BROKEN", f"{path} does not run ({said}): {why[:300]}", "", fix) from None
    version = _dotted(seen["version"])
    if tuple(seen["version"][:2]) != sys.version_info[:2]:
        what = f"the workers' Python is {version}, the driver's {_dotted(sys.version_info)} ({said})"
        raise FindingError("PYTHON_VERSIONS_DIFFER", what, path, fix)
    yield f"Python {version} at {path} ({said})"
    yield _arrow(seen["packages"]["pyarrow"], fix)
    yield _pack(seen["packages"]["connectors"], path)
    yield _neighbours(seen["neighbours"])


def _arrow(package: Mapping[str, Any], fix: str) -> str:
    if "error" in package:
        what = (
            f"the workers' Python cannot import pyarrow ({package['error']}); Spark would only report a crashed worker"
        )
        raise FindingError("ARROW_MISSING", what, "", f"{fix}, or install pyarrow>=18 for that one.")
    if _numbers(package["version"]) < _OLDEST_ARROW:
        what = f"pyarrow {package['version']} is too old"
        raise FindingError("ARROW_TOO_OLD", what)
    return f"pyarrow {package['version']}"


def _pack(package: Mapping[str, Any], python: str) -> str:
    """Compare the pack with the workers': a module by its name is found first in their folder, or by PYTHONPATH."""
    if "error" in package:
        what = f"the workers' Python cannot import connectors: {package['error']}"
        fix = f"Install this pack there: {python} -m {install_command()}; also on every executor."
        raise FindingError("PACK_MISSING", what, "", fix)
    file = Path(package.get("file") or "")
    is_ours = file.parent.resolve() == Path(connectors.__path__[0]).resolve()
    if not is_ours and not (file.parent / "core" / "errors").is_dir():
        what = f"another module named connectors shadows the pack: {file}"
        raise FindingError("PACK_SHADOWED", what)
    if not is_ours and package["version"] != connectors.__version__:
        what = f"the workers' pack has the version {package['version']}, the driver's {connectors.__version__}"
        fix = f"Install this version there: {python} -m {install_command(version=connectors.__version__)}"
        raise FindingError("PACK_VERSIONS_DIFFER", what, "", fix)
    return f"connectors is {file.parent}"


def _neighbours(modules: Mapping[str, Mapping[str, Any]]) -> str:
    """Check other packages' data sources: one that raises ends Spark's search for every other one, too."""
    formats: dict[str, str] = {}
    for module, seen in modules.items():
        if "error" in seen:
            what = f"{module} fails when it is imported ({seen['error'][:200]}), and Spark then finds no data source"
            fix = f"Repair it, or: pip uninstall {module.replace('_', '-')}"
            raise FindingError("NEIGHBOUR_BROKEN", what, "", fix)
        if seen["format"] in formats:
            what = f"{module} and {formats[seen['format']]} both provide the format {seen['format']}"
            raise FindingError("NEIGHBOUR_CLASH", what)
        if seen["format"] is not None:
            formats[seen["format"]] = module
    return f"other data sources: {', '.join(f'{module} ({name})' for name, module in formats.items()) or 'none'}"


def _spark(environ: Mapping[str, str]) -> Iterator[str]:
    if not_installed(["pyspark"]):
        raise FindingError("SPARK_MISSING", "this Python cannot import Spark: pyspark is not installed")
    from pyspark import __version__ as installed  # noqa: PLC0415 - says what is missing where there is no Spark

    from connectors.core.processes.spark import features  # noqa: PLC0415 - imports pyspark

    if _numbers(installed)[0] < OLDEST_SPARK:
        raise FindingError("SPARK_TOO_OLD", f"pyspark {installed} has no Python data sources that stream")
    release = Path(environ.get("SPARK_HOME") or "/nowhere", "RELEASE")
    other = re.match(r"Spark (\d\S*)", release.read_text(errors="replace")) if release.is_file() else None
    if other is not None and other[1] != installed:
        what = f"SPARK_HOME names Spark {other[1]}, but this Python imports {installed}"
        raise FindingError("SPARK_HOME_DIFFERS", what, str(release.parent))
    absent = ", ".join(feature for feature, is_there in features().items() if not is_there)
    yield f"pyspark {installed}" + (f", without: {absent}" if absent else "")


def _java(environ: Mapping[str, str]) -> Iterator[str]:
    """Check the Java that ``spark-class`` starts: of ``JAVA_HOME``, else of the PATH."""
    home = environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home, "bin", "java")) if home else "java", path=environ.get("PATH"))
    if path is None:
        where = f"JAVA_HOME names {home}" if home else "there is none on the PATH, and JAVA_HOME is not set"
        raise FindingError("JAVA_MISSING", f"no Java: {where}")
    status, *printed = _run([path, "-XshowSettings:properties", "-version"], environ)
    output = "".join(printed).strip()
    match = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    if status or match is None:
        first, _, _ = output.partition("\n")
        raise FindingError("JAVA_BROKEN", f"{path} does not run: {first[:200]}")
    if int(match[1]) < _OLDEST_JAVA:
        raise FindingError("JAVA_TOO_OLD", f"Java {match[1]} at {path} is too old")
    yield f"Java {match[1]} at {path}"


def _run(command: list[str], environ: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command without input; return its code and what it printed; one that does not start or end has code 1."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(command, env=dict(environ), timeout=_SECONDS, check=False, **streams)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", f"{type(error).__name__}: {error}"
    return done.returncode, done.stdout, done.stderr


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _dotted(parts: Any) -> str:
    return ".".join(str(part) for part in parts[:3])
