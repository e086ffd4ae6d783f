"""Imports that need an extra of this pack: where it is not installed, the error says which, and how to install it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator

from connectors.core.errors import ConnectorError

__all__ = ["extra_imports", "not_installed", "packages_missing"]


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
