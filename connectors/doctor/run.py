"""All checks in their order: this machine, then the source that was named.

The checks of a source are the module ``checks`` in its own folder, found by that name: see
`connectors.core.diagnostics.steps.SourceChecks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from connectors.core.diagnostics.steps import Finding, SourceChecks
from connectors.core.errors import OptionError
from connectors.core.formats import modules_named
from connectors.doctor.environment import check_environment

__all__ = ["diagnose", "known_formats"]


def known_formats() -> dict[str, SourceChecks]:
    """The formats that have checks, with these."""
    found = (cast("SourceChecks", module) for module in modules_named("checks"))
    return {checks.FORMAT: checks for checks in found}


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
    formats = known_formats()
    if source is not None and source not in formats:
        raise OptionError(
            "FORMAT_UNKNOWN",
            f"The doctor knows no format {source!r}",
            "--format",
            f"Give one of {', '.join(sorted(formats))}.",
        )
    return _diagnose(formats.get(source or ""), options, environ, checkpoint)


def _diagnose(
    checks: SourceChecks | None, options: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None
) -> Iterator[Finding]:
    yield from check_environment(environ)
    if checks is not None:
        yield from checks.check(options, environ, checkpoint)
