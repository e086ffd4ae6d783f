"""What ``connectors doctor`` checks: this machine, then the source that was named; each finding has its fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from connectors.core.diagnostics import Finding, Steps
from connectors.core.errors import OptionError
from connectors.core.extras import not_installed, packages_missing
from connectors.core.formats import CONNECTORS, Connector, connector_of
from connectors.doctor.environment import check_environment

__all__ = ["check_source", "diagnose"]


def diagnose(
    source: str | None, options: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None = None
) -> Iterator[Finding]:
    """Check this machine and, if a format is named, what a stream with these options needs; change nothing.

    Raises:
        OptionError: the format is unknown.
    """
    connector = connector_of(source or "")
    if source is not None and connector is None:
        formats = ", ".join(sorted(each.format for each in CONNECTORS))
        what = f"The doctor knows no format {source!r}"
        raise OptionError("FORMAT_UNKNOWN", what, "--format", f"Give one of {formats}.")
    of_source = iter(()) if connector is None else check_source(connector, options, environ, checkpoint)
    return chain(check_environment(environ), of_source)


def check_source(
    connector: Connector, options: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None
) -> Iterator[Finding]:
    """Check the packages of a connector, then what a stream with these options needs; as `diagnose`."""

    def packages() -> str:
        if missing := not_installed(connector.needs):
            raise packages_missing(missing, connector.format, connector.package)
        return f"those of the extra {connector.package} are installed"

    steps = Steps(connector.format)
    yield steps.step("packages", packages)
    if not steps.failed:
        yield from connector.module("doctor").diagnose(options, environ, checkpoint, steps)
