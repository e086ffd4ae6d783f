"""The clients that a process keeps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from connectors.kinesis.client import KinesisClient

if TYPE_CHECKING:
    from connectors.kinesis.client_options import KinesisClientOptions

__all__ = ["shared_client"]

_MOST_CLIENTS: Final = 4
_clients: dict[tuple[int, KinesisClientOptions], KinesisClient] = {}
"""The last used stand last."""


def shared_client(options: KinesisClientOptions) -> KinesisClient:
    """The client of this process with these options: a task's worker keeps it for the next task.

    The last few are kept: each takes some 10 MB, and a job that fetches new keys for each batch has ever new options.
    A client is not shared with a process that was forked after it was made.
    """
    key = os.getpid(), options
    client = _clients.pop(key, None) or KinesisClient(options)
    _clients[key] = client
    while len(_clients) > _MOST_CLIENTS:
        del _clients[next(iter(_clients))]
    return client
