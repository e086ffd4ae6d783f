"""Imports that need an extra of this pack: where it is not installed, the error says which, and how to install it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import shlex
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from connectors.core.errors import ConnectorError

_log = logging.getLogger(__name__)
_DISTRIBUTION: Final = "pyspark-stream-connectors"
_NOT_ON_EXECUTORS: Final = frozenset({"cli", "testing"})

OLDEST_SPARK: Final = 4
"""The major version of Spark that brought Python data sources of streams."""
PANDAS: Final = "pandas>=2.2,<3"
"""What the extra pandas brings: versions that each Spark is made for. Spark 4.0 decodes by it, newer ones do not."""
TESTED_PTARS: Final = ("0.0.25",)
"""The versions of ptars that the tests ran with: it is young, so any other one may read bytes in another way."""


def install_advice(extra: str) -> str:
    """Return the instruction that installs an extra, or several with commas between, wherever the pack needs it."""
    names = extra.split(",")
    where = "" if _NOT_ON_EXECUTORS.intersection(names) else ", here and on every executor"
    return f"Install the extra{'s' * (len(names) > 1)} {' and '.join(names)}: {install_command(extra)}{where}."


@contextlib.contextmanager
def spark_imports(where: str) -> Iterator[None]:
    """Import what needs Spark; raise a `ConnectorError` with the code ``SPARK_MISSING`` where there is none."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        raise ConnectorError(
            "SPARK_MISSING",
            f"This Python has no Spark: {sys.executable} cannot import {error.name}",
            where,
            "Where a platform brings Spark, use the Python that it starts, or put its folder on PYTHONPATH. Elsewhere: "
            f"{install_advice('spark')}",
        ) from None


def install_command(extra: str = "", version: str = "") -> str:
    """Return the command that installs this pack from where it was installed: a folder, a wheel, a URL, or an index.

    Only an index is asked for the version.
    """
    extras = f"[{extra}]" if extra else ""
    editable, origin = _origin()
    if origin.startswith("/"):
        return f"pip install {'-e ' if editable else ''}{shlex.quote(origin + extras)}"
    if origin:
        return f"pip install {shlex.quote(f'{_DISTRIBUTION}{extras} @ {origin}')}"
    return f"pip install {shlex.quote(_DISTRIBUTION + extras + (f'=={version}' if version else ''))}"


def _origin() -> tuple[bool, str]:
    """Return whether the pack was installed as editable, and from which path or URL (PEP 610); empty for an index."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - takes 20 ms

    try:
        direct_url: Any = json.loads(distribution(_DISTRIBUTION).read_text("direct_url.json") or "{}")
        url, vcs = str(direct_url.get("url", "")), direct_url.get("vcs_info", {})
        if vcs:
            return False, f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
        if not url.startswith("file:"):
            return False, url
        path = unquote(urlsplit(url).path)
        return bool(direct_url.get("dir_info", {}).get("editable")), path if Path(path).exists() else ""
    except (PackageNotFoundError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return False, ""  # copied without its metadata, or by a tool that does not write them as PEP 610 says


def packages_missing(missing: Iterable[str], where: str, extra: str) -> ConnectorError:
    """Return the error for modules that are not installed, which an extra brings; ``where`` says what needs them."""
    return ConnectorError("PACKAGES_MISSING", f"not installed: {', '.join(missing)}", where, install_advice(extra))


@contextlib.contextmanager
def extra_imports(extra: str, where: str) -> Iterator[None]:
    """Return a context in which a `ModuleNotFoundError` has the text of `packages_missing`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "connectors":
            raise
        raise ModuleNotFoundError(str(packages_missing([error.name], where, extra)), name=error.name) from error


def not_installed(names: Iterable[str]) -> list[str]:
    """Return those of these modules that are not installed; none is imported."""
    return [name for name in names if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


@cache
def ptars_obstacle() -> str:
    """Return why ptars, which the extra fast brings, is not used here; empty if it is."""
    if not_installed(["ptars"]):
        return "ptars is not installed"
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - as above

    try:
        found = version("ptars")
    except PackageNotFoundError:
        found = "of an unknown version"
    return "" if found in TESTED_PTARS else f"ptars {found} is installed, not the tested {' or '.join(TESTED_PTARS)}"


@cache
def warn_not_fast(what: str, why: str) -> None:
    """Log once in a process that something is done the slower way, and why."""
    _log.warning(
        "[FAST_DECODER_NOT_USED] %s by protobuf, which is several times slower and gives the same: %s. %s",
        what,
        why,
        install_advice("fast"),
    )
