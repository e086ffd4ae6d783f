"""What tasks need before their first call, without botocore, which takes 0.2 s to import."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from connectors.core.processes.pool import Cache

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.options.client import KinesisClientOptions

_CONNECTIONS: Final = 16
"""A task reads so many shards at a time."""
_clients: Final = Cache(4)
"""By process and options: a client takes some 10 MB, and a job that fetches new keys for each batch has new options."""


def shared_client(options: KinesisClientOptions) -> KinesisClient:
    """Return this process's client with these options; one made before a fork is not shared."""
    from connectors.kinesis.client.client import KinesisClient  # noqa: PLC0415 - see the top

    return _clients.get((os.getpid(), options), lambda: KinesisClient(options, _CONNECTIONS))
