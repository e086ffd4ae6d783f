"""The clients that a process keeps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from connectors.core.pool import Cache
from connectors.kinesis.client import KinesisClient

if TYPE_CHECKING:
    from connectors.kinesis.client_options import KinesisClientOptions

__all__ = ["shared_client"]

_clients: Final = Cache(4)
"""By process and options: each takes some 10 MB, and a job that fetches new keys for each batch has ever new ones."""


def shared_client(options: KinesisClientOptions) -> KinesisClient:
    """The client of this process with these options: a task's worker keeps it for the next task.

    A client is not shared with a process that was forked after it was made.
    """
    return _clients.get((os.getpid(), options), lambda: KinesisClient(options))
