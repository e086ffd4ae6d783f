"""Imports that need an extra of this pack: where it is not installed, the error says which, and how to install it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from connectors.core.errors import ConnectorError

__all__ = [
    "INSTALL_FAST",
    "TESTED_PTARS",
    "extra_imports",
    "not_installed",
    "packages_missing",
    "ptars_obstacle",
    "warn_not_fast",
]

_log = logging.getLogger(__name__)

TESTED_PTARS: Final = ("0.0.25",)
"""The versions of ptars that the tests ran with: it is young, so any other one may read bytes in another way."""

INSTALL_FAST: Final = "pip install 'pyspark-stream-connectors[fast]', here and on every executor."


def packages_missing(missing: Iterable[str], where: str, extra: str) -> ConnectorError:
    """The error for packages that are not installed.

    Args:
        missing: their modules.
        where: what needs them.
        extra: the extra that brings them.
    """
    action = f"pip install 'pyspark-stream-connectors[{extra}]', here and on every executor."
    return ConnectorError("PACKAGES_MISSING", f"not installed: {', '.join(missing)}", where, action)


@contextlib.contextmanager
def extra_imports(extra: str, where: str) -> Iterator[None]:
    """Imports that need an extra.

    Args:
        extra: its name.
        where: what needs it.

    Raises:
        ModuleNotFoundError: what is imported is not installed; with the text of `packages_missing`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "connectors":
            raise
        raise ModuleNotFoundError(str(packages_missing([error.name], where, extra)), name=error.name) from error


def not_installed(names: Iterable[str]) -> list[str]:
    """Those of these modules that are not installed; none is imported."""
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
    try:
        found = importlib.metadata.version("ptars")
    except importlib.metadata.PackageNotFoundError:
        found = "of an unknown version"
    return "" if found in TESTED_PTARS else f"ptars {found} is installed, not the tested {' or '.join(TESTED_PTARS)}"


@cache
def warn_not_fast(what: str, why: str) -> None:
    """Log once in a process that a slower way is taken.

    Args:
        what: what is done the slower way.
        why: `ptars_obstacle`.
    """
    _log.warning(
        "[FAST_DECODER_NOT_USED] %s by protobuf, which is several times slower and gives the same: %s. "
        "pip install 'pyspark-stream-connectors[fast]', here and on every executor.",
        what,
        why,
    )
