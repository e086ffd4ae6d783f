"""The connectors of this pack: one table says what each is made of, so that no layer below imports one by name."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import OptionError
from connectors.core.extras import extra_imports, not_installed, packages_missing

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


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
        """The name of its format."""
        name: str = importlib.import_module(f"connectors.{self.package}").FORMAT
        return name

    def module(self, name: str) -> ModuleType:
        """Import one of its modules."""
        return importlib.import_module(f"connectors.{self.package}.{name}")

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
    """Return the connector of a format."""
    return next((each for each in CONNECTORS if each.format == source_format), None)


def connector_named(package: str) -> Connector:
    """Return the connector in this package below ``connectors``."""
    return next(each for each in CONNECTORS if each.package == package)


def spool_connector(name: str) -> Any:
    """Return the `SpoolConnector` of a format, whose fetchers can also run outside of a query.

    For a source that is not of this pack the name is ``MODULE:CLASS``.

    Raises:
        OptionError: there is none of this name.
        ConnectorError: its packages are not installed.
    """
    module, _, cls = name.partition(":")
    if cls:
        try:
            return getattr(importlib.import_module(module), cls)()
        except (ModuleNotFoundError, AttributeError) as error:
            what = f"There is no connector {name}: {error}"
            raise OptionError(
                "FORMAT_UNKNOWN", what, "fetch", "Put its module on PYTHONPATH, and install what it imports."
            ) from error
    with_spool = {connector.format: connector for connector in CONNECTORS if connector.spool}
    if name not in with_spool:
        raise OptionError(
            "FORMAT_UNKNOWN",
            f"There are no fetchers of a format {name!r} to run outside of a query",
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
