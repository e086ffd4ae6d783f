"""The checks of ``connectors doctor --format kafka_py``; see `connectors.core.diagnostics.steps.SourceChecks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from connectors.core.diagnostics.steps import Finding, Steps, packages

__all__ = ["FORMAT", "PACKAGES", "check", "option_classes"]

FORMAT: Final = "kafka_py"

PACKAGES: Final = ("confluent_kafka", "numpy")


def check(raw: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None) -> Iterator[Finding]:
    """Look at packages, options, network, log-in, what is read, and where the query would begin."""
    steps = Steps(FORMAT)
    yield packages(steps, "kafka", PACKAGES)
    if not steps.failed:
        from connectors.kafka.diagnosis import diagnose  # noqa: PLC0415 - imports these packages

        yield from diagnose(raw, environ, checkpoint, steps)


def option_classes() -> tuple[type, ...]:
    """Return where the options of source and sink are declared."""
    from connectors.kafka.options import KafkaReadOptions  # noqa: PLC0415 - imports these packages
    from connectors.kafka.write_options import KafkaWriteOptions  # noqa: PLC0415 - as above

    return KafkaReadOptions, KafkaWriteOptions
