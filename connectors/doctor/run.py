"""All checks in their order: this machine, then the source that was named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from connectors.core.diagnostics import Finding, Steps, packages
from connectors.core.errors import OptionError
from connectors.core.formats import CONNECTORS, Connector, connector_of
from connectors.doctor.environment import check_environment

__all__ = ["check_source", "diagnose"]


def diagnose(
    source: str | None, options: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None = None
) -> Iterator[Finding]:
    """Look at this machine, and at what a stream needs; changes nothing.

    Args:
        source: a format, such as ``pubsub``; None for this machine only.
        options: of the source, as they are given to Spark.
        environ: the environment of the driver.
        checkpoint: the folder of the query's checkpoint, if there is one.

    Raises:
        OptionError: the format is unknown.
    """
    connector = None if source is None else connector_of(source)
    if source is not None and connector is None:
        raise OptionError(
            "FORMAT_UNKNOWN",
            f"The doctor knows no format {source!r}",
            "--format",
            f"Give one of {', '.join(sorted(each.format for each in CONNECTORS))}.",
        )
    return _diagnose(connector, options, environ, checkpoint)


def check_source(
    connector: Connector, options: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None
) -> Iterator[Finding]:
    """Check the packages of a connector, then what a stream with these options needs; as `diagnose`."""
    steps = Steps(connector.format)
    yield packages(steps, connector.package, connector.needs)
    if not steps.failed:
        yield from connector.module("doctor").diagnose(options, environ, checkpoint, steps)


def _diagnose(
    connector: Connector | None, options: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None
) -> Iterator[Finding]:
    yield from check_environment(environ)
    if connector is not None:
        yield from check_source(connector, options, environ, checkpoint)
