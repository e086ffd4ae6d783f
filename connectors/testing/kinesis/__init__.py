"""A Kinesis server for tests, in memory, with knobs for faults."""

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
