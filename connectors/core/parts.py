"""Finds what each connector brings by the name of its module, so that no layer below knows the connectors."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import connectors

__all__ = ["modules_named"]


def modules_named(part: str) -> Iterator[ModuleType]:
    """The module of this name in each connector that has one, imported; connectors say ``FORMAT`` in it.

    Looked for as a file first: other packages are not even imported.
    """
    for folder in connectors.__path__:
        for package in pkgutil.iter_modules([folder]):
            if Path(folder, package.name, f"{part}.py").is_file():
                module = importlib.import_module(f"{connectors.__name__}.{package.name}.{part}")
                if hasattr(module, "FORMAT"):
                    yield module
