"""What tasks need before their first call, without botocore, which takes 0.2 s to import."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from connectors.core.pool import Cache
from connectors.core.retry import wait_out

if TYPE_CHECKING:
    from connectors.kinesis.client.client import KinesisClient
    from connectors.kinesis.options.client import KinesisClientOptions

T = TypeVar("T")

_CONNECTIONS: Final = 16
"""A task reads so many shards at a time."""
_clients: Final = Cache(4)
"""By process and options: a client takes some 10 MB, and a job that fetches new keys for each batch has new options."""


def shared_client(options: KinesisClientOptions) -> KinesisClient:
    """Return this process's client with these options; one made before a fork is not shared."""
    from connectors.kinesis.client.client import KinesisClient  # noqa: PLC0415 - see the top

    return _clients.get((os.getpid(), options), lambda: KinesisClient(options, _CONNECTIONS))


def patiently(
    attempt: Callable[[], T], options: KinesisClientOptions, sleep: Callable[[float], object] = time.sleep
) -> T:
    """Call until it succeeds, fails for good, an outage has lasted too long, or ``sleep`` returns True."""
    return wait_out(attempt, options.outage_rule, sleep=sleep)
