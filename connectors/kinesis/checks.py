"""The checks of ``connectors doctor --format kinesis``; see `connectors.core.diagnostics.steps.SourceChecks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from connectors.core.diagnostics.steps import Finding, Steps, packages

__all__ = ["FORMAT", "PACKAGES", "check", "option_classes"]

FORMAT: Final = "kinesis"

PACKAGES: Final = ("boto3", "botocore", "h2", "msgspec", "numpy", "xxhash")


def check(raw: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None) -> Iterator[Finding]:
    """Look at packages, options, credentials, network, log-in, what is read, and where the query would begin."""
    steps = Steps(FORMAT)
    yield packages(steps, "kinesis", PACKAGES)
    if not steps.failed:
        from connectors.kinesis.diagnosis import diagnose  # noqa: PLC0415 - imports these packages

        yield from diagnose(raw, environ, checkpoint, steps)


def option_classes() -> tuple[type, ...]:
    """Return where the options of source and sink are declared."""
    from connectors.kinesis.options import KinesisReadOptions  # noqa: PLC0415 - imports these packages
    from connectors.kinesis.write_options import KinesisWriteOptions  # noqa: PLC0415 - as above

    return KinesisReadOptions, KinesisWriteOptions
