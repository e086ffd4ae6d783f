"""The formats of this pack, and the packages that each of its parts needs.

One table says what each connector is made of, so that no layer below imports one by name. Where the packages of an
extra are not installed, the error says which, and how to install it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import ConnectorError, OptionError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

_log = logging.getLogger(__name__)
_DISTRIBUTION: Final = "pyspark-stream-connectors"
_NOT_ON_EXECUTORS: Final = frozenset({"cli", "testing"})

OLDEST_SPARK: Final = 4
"""The major version of Spark that brought Python data sources of streams."""
PANDAS: Final = "pandas>=2.2,<3"
"""What the extra pandas brings: what every Spark version supports. Spark 4.0 decodes with it, newer ones do not."""
TESTED_PTARS: Final = ("0.0.25",)
"""The versions of ptars that the tests ran with: it is young, so any other one may read bytes in another way."""


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector: its package and extra, the modules that the extra brings, and its parts as ``MODULE:NAME``.

    No part is imported before it is asked for; a function that a connector does not have is empty.
    """

    package: str
    needs: tuple[str, ...]
    source: str
    options: dict[str, str]
    lag: str = ""
    deletion: str = ""
    spool: str = ""

    @property
    def format(self) -> str:
        name: str = import_module(f"connectors.{self.package}").FORMAT
        return name

    def module(self, name: str) -> ModuleType:
        return import_module(f"connectors.{self.package}.{name}")

    def load(self, part: str) -> Any:
        """Import a part that the table names as ``MODULE:NAME``."""
        module, _, name = part.partition(":")
        return getattr(self.module(module), name)

    def option_classes(self) -> dict[str, type]:
        """Import the declarations of its options, by their owner, ``the source`` or ``the sink``; needs its extra."""
        return {owner: self.load(part) for owner, part in self.options.items()}

    def read_options(self, raw: Mapping[str, str], *, streaming: bool | None) -> Any:
        """Parse the options of its source as Spark passes them; ``streaming`` is None while that is not known.

        Raises:
            OptionError: an option is unknown, missing, illegal, or in conflict with another.
        """
        return self.module("options.source").parse_read_options(raw, os.environ, streaming=streaming)

    def write_options(self, raw: Mapping[str, str], **more: bool) -> Any:
        """Parse the options of its sink, as `read_options` does those of its source."""
        return self.module("options.sink").parse_write_options(raw, os.environ, **more)

    def imports(self) -> AbstractContextManager[None]:
        """Return a context whose imports need the extra of this connector; see `extra_imports`."""
        return extra_imports(self.package, f"the format {self.format}")


CONNECTORS: Final = (
    Connector(
        "kafka",
        ("confluent_kafka", "numpy"),
        "datasource:KafkaDataSource",
        {"the source": "options.source:KafkaReadOptions", "the sink": "options.sink:KafkaWriteOptions"},
        lag="lag:source_lag",
    ),
    Connector(
        "kinesis",
        ("botocore", "h2", "msgspec", "numpy", "xxhash"),
        "datasource:KinesisDataSource",
        {"the source": "options.source:KinesisReadOptions", "the sink": "options.sink:KinesisWriteOptions"},
        lag="lag:source_lag",
    ),
    Connector(
        "pubsub",
        ("grpc", "grpc_status", "google.auth", "google.protobuf", "google.rpc", "msgspec", "numpy", "xxhash"),
        "datasource:PubSubDataSource",
        {"the source": "options.source:PubSubReadOptions", "the sink": "options.sink:PubSubWriteOptions"},
        deletion="client.client:delete_subscription",
        spool="datasource:PubSubConnector",
    ),
)


def connector_of(source_format: str) -> Connector | None:
    return next((connector for connector in CONNECTORS if connector.format == source_format), None)


def connector_named(package: str) -> Connector:
    return next(connector for connector in CONNECTORS if connector.package == package)


def spool_connector(name: str) -> Any:
    """Return the `SpoolConnector` of a format, whose fetchers can also run outside of a query.

    For a source that is not of this pack the name is ``MODULE:CLASS``.

    Raises:
        OptionError: there is no such name.
        ConnectorError: its packages are not installed.
    """
    module, _, cls = name.partition(":")
    if cls:
        try:
            return getattr(import_module(module), cls)()
        except (ModuleNotFoundError, AttributeError) as error:
            what = f"The connector {name} cannot be imported: {error}"
            raise OptionError("FORMAT_UNKNOWN", what, "fetch") from error
    with_spool = {connector.format: connector for connector in CONNECTORS if connector.spool}
    if name not in with_spool:
        raise OptionError(
            "FORMAT_UNKNOWN",
            f"No format {name!r} has fetchers that run outside a query",
            "fetch",
            f"Give one of {', '.join(sorted(with_spool))}, or MODULE:CLASS of a SpoolConnector.",
        )
    connector = with_spool[name]
    if missing := not_installed(connector.needs):
        raise packages_missing(missing, f"the format {name}", connector.package)
    return connector.load(connector.spool)()


def data_source(package: str) -> type[DataSource]:
    """Return the source of a connector; where its packages are not installed, one that says so when it is used."""
    connector = connector_named(package)
    if missing := not_installed(connector.needs):
        return missing_source(connector.format, missing, package)
    source: type[DataSource] = connector.load(connector.source)
    return source


def missing_source(source_format: str, missing: list[str], extra: str) -> type[DataSource]:
    """Return a source by name only, which raises that these modules, which an extra brings, are not installed."""
    from pyspark.sql.datasource import DataSource  # noqa: PLC0415 - processes without Spark read this table

    class MissingSource(DataSource):
        """Stands for a source whose packages are not installed."""

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            raise packages_missing(missing, f"the format {source_format}", extra)

        @classmethod
        def name(cls) -> str:
            return source_format

    return MissingSource


def install_advice(extra: str, *, executors: bool = True) -> str:
    """Return the instruction that installs an extra, or several with commas between, wherever the pack needs it.

    `executors`: whether executors need it too, unless the extra is never for them.
    """
    names = extra.split(",")
    where = ", here and on every executor" if executors and not _NOT_ON_EXECUTORS.intersection(names) else ""
    return f"Install the extra{'s' * (len(names) > 1)} {' and '.join(names)}: {install_command(extra)}{where}."


def install_command(extra: str = "", version: str = "") -> str:
    """Return the command that installs this pack, with an extra or in a version."""
    return f"pip install '{_DISTRIBUTION}{extra and f'[{extra}]'}{version and f'=={version}'}'"


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
            f"This Python cannot import Spark: {sys.executable} has no module {error.name}",
            where,
            "If your platform includes Spark, use the Python that it starts, or put Spark's folder on PYTHONPATH. "
            f"Otherwise: {install_advice('spark')}",
        ) from None


def packages_missing(missing: Iterable[str], where: str, extra: str, *, executors: bool = True) -> ConnectorError:
    advice = install_advice(extra, executors=executors)
    return ConnectorError("PACKAGES_MISSING", f"These packages are not installed: {', '.join(missing)}", where, advice)


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

    def is_installed(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # of the package that it is in
            return False

    return [name for name in names if not is_installed(name)]


@cache
def ptars_obstacle() -> str:
    """Return why ptars, which the extra fast brings, is not used here; empty if it is."""
    if not_installed(["ptars"]):
        return "ptars is not installed"
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - takes 20 ms

    try:
        installed = version("ptars")
    except PackageNotFoundError:
        installed = "of an unknown version"
    return (
        ""
        if installed in TESTED_PTARS
        else f"ptars {installed} is installed, not the tested {' or '.join(TESTED_PTARS)}"
    )


@cache
def warn_not_fast(what: str, why: str) -> None:
    """Log once in a process that something is done the slower way, and why."""
    _log.warning(
        "[FAST_DECODER_NOT_USED] %s by protobuf, which is several times slower, with the same result: %s. %s",
        what,
        why,
        install_advice("fast"),
    )
