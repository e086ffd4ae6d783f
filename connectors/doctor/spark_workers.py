"""Checks of the Python that Spark starts for tasks and readers, and of the packages that it sees."""

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
from connectors.core.diagnostics import Finding, Steps
from connectors.core.extras import PANDAS, install_advice, install_command, not_installed
from connectors.core.processes.interpreter import probe_command

_SECONDS: Final = 60
_OLDEST_ARROW: Final = (18, 0)
_PANDAS: Final = ((2, 2), (3, 0))
_PROBE: Final = Path(__file__).with_name("probe.py")


def numbers(text: str) -> tuple[int, ...]:
    """Return the first three numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def dotted(parts: tuple[int, ...]) -> str:
    """Return a version as text."""
    return ".".join(str(part) for part in parts[:3])


def run_command(command: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command without input; one that does not start or end fails, and says so on its standard error."""
    try:
        return subprocess.run(
            command,
            env=dict(environ),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"{type(error).__name__}: {error if isinstance(error, OSError) else f'after {_SECONDS} s'}"
        return subprocess.CompletedProcess(command, 1, "", why)


def check_workers(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Python that Spark starts for tasks and readers: ``PYSPARK_PYTHON``, else ``python3`` of the PATH."""
    steps = Steps("python")
    name = environ.get("PYSPARK_PYTHON") or "python3"
    said = "PYSPARK_PYTHON" if environ.get("PYSPARK_PYTHON") else "python3 of the PATH; PYSPARK_PYTHON is not set"
    fix = f"export PYSPARK_PYTHON={sys.executable}"
    seen: dict[str, Any] = {}

    def starts() -> str | Finding:
        path = shutil.which(name, path=environ.get("PATH"))
        if path is None:
            return Finding.failure("python", "worker", f"{name} is not there ({said})", fix, "PYTHON_WORKER_MISSING")
        probed = _probe(path, environ)
        if isinstance(probed, str):
            found = f"{path} does not run ({said}): {probed}"
            return Finding.failure("python", "worker", found, fix, "PYTHON_WORKER_BROKEN")
        seen.update(probed)
        return f"{path} ({said})"

    def same_version() -> str | Finding:
        there = tuple(seen["version"])
        if there[:2] != sys.version_info[:2]:
            found = f"the workers' Python is {dotted(there)}, the driver's {dotted(sys.version_info[:3])} ({said})"
            return Finding.failure("python", "worker version", found, fix, "PYTHON_VERSIONS_DIFFER")
        return f"Python {dotted(there)}, as the driver"

    yield steps.step("worker", starts)
    yield steps.step("worker version", same_version)
    if not seen:
        return
    packages = seen["packages"]
    yield _arrow(packages["pyarrow"], fix, environ)
    yield _pandas(packages["pandas"])
    yield _pack(packages["connectors"], seen["executable"])
    yield from _shadows(seen.get("shadows", {}))
    yield from _neighbours(seen["neighbours"])


def _probe(python: str, environ: Mapping[str, str]) -> dict[str, Any] | str:
    """Return what that Python sees in the working folder, or one line that says why it does not run."""
    done = run_command(probe_command(python, _PROBE.read_text(encoding="utf-8")), environ)
    try:
        seen = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return (done.stderr.strip().rpartition("\n")[2] or f"it ended with code {done.returncode}")[:300]
    return seen if isinstance(seen, dict) else "it printed something else"


def _arrow(package: Mapping[str, Any], fix: str, environ: Mapping[str, str]) -> Finding:
    """Without it a worker dies; Spark says only that it crashed or did not connect back."""
    if "error" in package:
        found = f"the workers' Python cannot import pyarrow ({package['error']}); Spark says only that a worker crashed"
        return Finding.failure(
            "python", "pyarrow", found, f"{fix}, or install pyarrow>=18 for that one.", "ARROW_MISSING"
        )
    found = f"pyarrow {package['version']}"
    if numbers(found)[:2] < _OLDEST_ARROW:
        return Finding.failure("python", "pyarrow", f"{found} is too old", "pip install 'pyarrow>=18'", "ARROW_TOO_OLD")
    if environ.get("ARROW_PRE_0_15_IPC_FORMAT", "0") == "1":
        refused = "ARROW_PRE_0_15_IPC_FORMAT is 1, which Spark refuses"
        return Finding.failure("python", "pyarrow", refused, "unset ARROW_PRE_0_15_IPC_FORMAT", "ARROW_OLD_FORMAT")
    return Finding.ok("python", "pyarrow", found)


def _pandas(package: Mapping[str, Any]) -> Finding:
    """This pack uses it on Spark 4.0 only; toPandas(), pandas functions, Spark Connect, and so spark-pipelines, do."""
    if "error" in package:
        error = str(package["error"])
        if error.startswith("ModuleNotFoundError: No module named 'pandas'"):
            if _decodes_by_pandas():
                found = "not installed; from_protobuf, from_avro and from_json_registry need it on this Spark"
                return Finding.warning("python", "pandas", found, install_advice("pandas"), "PACKAGES_MISSING")
            users = "toPandas(), pandas functions, Spark Connect and spark-pipelines"
            return Finding.ok("python", "pandas", f"not installed; {users} need it")
        fix = f"pip install --force-reinstall '{PANDAS}'"
        return Finding.warning("python", "pandas", f"it cannot be imported: {error}", fix, "PANDAS_BROKEN")
    found, (oldest, too_new) = f"pandas {package['version']}", _PANDAS
    if not oldest <= numbers(found)[:2] < too_new:
        return Finding.warning(
            "python",
            "pandas",
            f"{found}: this Spark is made for 2.2 up to 3",
            f"pip install '{PANDAS}'",
            "PANDAS_VERSION",
        )
    return Finding.ok("python", "pandas", found)


def _decodes_by_pandas() -> bool:
    """Return whether the driver's Spark has no Arrow functions; False where there is no Spark."""
    if not_installed(["pyspark"]):
        return False
    from connectors.core.processes.spark import features  # noqa: PLC0415 - imports pyspark

    return not features()["Arrow functions"]


def _pack(package: Mapping[str, Any], python: str) -> Finding:
    """A folder of the user's by the same name is found first in the working folder, or through PYTHONPATH."""
    own = Path(connectors.__path__[0])
    if "error" in package:
        found = f"the workers' Python cannot import connectors: {package['error']}"
        fix = f"Install this pack there: {python} -m {install_command()}; also on every executor."
        return Finding.failure("python", "pack", found, fix, "PACK_MISSING")
    file = package.get("file")
    there = Path(file).parent if file else None
    if there is not None and there.resolve() == own.resolve():
        return Finding.ok("python", "pack", f"connectors is {own}")
    if there is not None and package.get("version") == connectors.__version__:
        return Finding.ok("python", "pack", f"connectors is {there}, the same version")
    if there is not None and package.get("version") is not None and (there / "core" / "errors.py").is_file():
        found = f"the workers' pack has the version {package['version']}, the driver's {connectors.__version__}"
        fix = f"Install this version there: {python} -m {install_command(version=connectors.__version__)}"
        return Finding.failure("python", "pack", found, fix, "PACK_VERSIONS_DIFFER")
    found = f"another module named connectors shadows the pack: {file or 'a folder'}"
    fix = "Rename that module, or take its folder out of PYTHONPATH and do not start from there."
    return Finding.failure("python", "pack", found, fix, "PACK_SHADOWED")


def _shadows(files: Mapping[str, str]) -> Iterator[Finding]:
    """A program of one's own called ``pyspark.py`` is found before the package, by itself and by what is beside it."""
    fix = "Rename it, and delete the folder __pycache__ beside it; or start from another folder."
    for name, file in files.items():
        found = f"{file} is found instead of the package {name}"
        yield Finding.failure("python", "working folder", found, fix, "PACKAGE_SHADOWED")


def _neighbours(found: list[dict[str, Any]]) -> Iterator[Finding]:
    """One that raises ends Spark's search for data sources: every other is DATA_SOURCE_NOT_FOUND too."""
    formats: dict[str, str] = {}
    for each in found:
        module = each["module"]
        if "error" in each:
            error = f"({each['error'][:200]})"
            what = (
                f"{module} raises when it is imported {error}; Spark then finds no data source that is not registered"
            )
            fix = f"Repair it, or: pip uninstall {module.replace('_', '-')}"
            yield Finding.failure("spark", "neighbours", what, fix, "NEIGHBOUR_BROKEN")
        elif each["format"] in formats:
            what = f"{module} and {formats[each['format']]} both have the format {each['format']}"
            yield Finding.failure("spark", "neighbours", what, "Uninstall one of them.", "NEIGHBOUR_CLASH")
        elif each["format"] is not None:
            formats[each["format"]] = module
    if not any("error" in each for each in found):
        names = ", ".join(f"{module} ({name})" for name, module in formats.items()) or "none"
        yield Finding.ok("spark", "neighbours", f"other data sources: {names}")
