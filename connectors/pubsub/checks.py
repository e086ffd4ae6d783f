"""The checks of ``connectors doctor --format pubsub``; see `connectors.core.diagnostics.steps.SourceChecks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from connectors.core.diagnostics.steps import Finding, Steps, packages
from connectors.core.extras import install_advice, ptars_obstacle

__all__ = ["FORMAT", "PACKAGES", "check", "option_classes"]

FORMAT: Final = "pubsub"

PACKAGES: Final = ("grpc", "grpc_status", "google.auth", "google.protobuf", "numpy", "xxhash")


def check(raw: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None) -> Iterator[Finding]:
    """Look at packages, options, network, log-in, what is read, and where the query would begin."""
    steps = Steps(FORMAT)
    yield packages(steps, "pubsub", PACKAGES)
    if not steps.failed and (obstacle := ptars_obstacle()):
        yield Finding.warning(
            FORMAT, "fast decoder", f"{obstacle}; fetchers are slower", install_advice("fast"), "FAST_DECODER_NOT_USED"
        )
    if not steps.failed:
        from connectors.pubsub.diagnosis import diagnose  # noqa: PLC0415 - imports these packages

        yield from diagnose(raw, environ, checkpoint, steps)


def option_classes() -> tuple[type, ...]:
    """Return where the options of source and sink are declared."""
    from connectors.pubsub.read_options import PubSubReadOptions  # noqa: PLC0415 - imports these packages
    from connectors.pubsub.write_options import PubSubWriteOptions  # noqa: PLC0415 - as above

    return PubSubReadOptions, PubSubWriteOptions
