"""The data sources that `connectors.register` makes known to Spark.

Finds what each connector brings by the name of its module, so that no layer below knows the connectors.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from pyspark.sql.datasource import DataSource

import connectors
from connectors.core.extras import not_installed, packages_missing

__all__ = ["data_source", "data_sources", "installed_options", "missing_source", "modules_named"]


_SOURCES: Final = {"kafka": "KafkaDataSource", "kinesis": "KinesisDataSource", "pubsub": "PubSubDataSource"}
"""The folder of a connector, which is also the name of its extra, and the class in its module ``reader``."""


def data_sources() -> Iterator[type[DataSource]]:
    """The source of each connector, as `data_source` gives it.

    So whoever uses one format has to install what that one needs, and no more.
    """
    return map(data_source, _SOURCES)


def data_source(connector: str) -> type[DataSource]:
    """The source of a connector; where its packages are not installed, one that says so when it is used.

    Args:
        connector: its folder.
    """
    checks = importlib.import_module(f"connectors.{connector}.checks")
    if missing := not_installed(checks.PACKAGES):
        return missing_source(checks.FORMAT, missing, connector)
    source: type[DataSource] = getattr(importlib.import_module(f"connectors.{connector}.reader"), _SOURCES[connector])
    return source


def installed_options() -> list[type]:
    """Return where the options of the formats are declared, of those whose packages are installed."""
    checks = [importlib.import_module(f"connectors.{connector}.checks") for connector in _SOURCES]
    return [cls for each in checks if not not_installed(each.PACKAGES) for cls in each.option_classes()]


def missing_source(source_format: str, missing: list[str], extra: str) -> type[DataSource]:
    """A source by name only, which raises that these modules, which an extra brings, are not installed."""

    class MissingSource(DataSource):
        """Stands for a source whose packages are not installed."""

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            raise packages_missing(missing, f"the format {source_format}", extra)

        @classmethod
        def name(cls) -> str:
            return source_format

    return MissingSource


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
