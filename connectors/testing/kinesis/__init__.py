"""A Kinesis server for tests, in memory, with knobs for faults."""

from connectors.core.formats import extra_imports

with extra_imports("testing", "connectors.testing.kinesis"):
    from connectors.testing.kinesis.server import (
        Call,
        KinesisControl,
        KinesisServer,
        KinesisServerProcess,
        OpenSubscription,
        StoredRecord,
        start_server_process,
    )

__all__ = [
    "Call",
    "KinesisControl",
    "KinesisServer",
    "KinesisServerProcess",
    "OpenSubscription",
    "StoredRecord",
    "start_server_process",
]
