"""Publishing the rows of a task: nothing is left under way, and no error unseen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from connectors.core.failpoints import failpoint
from connectors.pubsub.publish_requests import publish_requests
from connectors.pubsub.publisher import Publisher, PublishLimits

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from connectors.pubsub.client import PubSubClient
    from connectors.pubsub.publish_columns import SinkColumns
    from connectors.pubsub.publish_rows import RowStamp
    from connectors.pubsub.transport import Transport
    from connectors.pubsub.write_options import PubSubWriteOptions

__all__ = ["close_clients", "publish_batches"]

_clients: dict[tuple[Transport, Path | None], PubSubClient] = {}
"""The client that this worker keeps, by what it was made from: a new connection costs more than a small batch."""


def publish_batches(
    batches: Iterable[pa.RecordBatch], columns: SinkColumns, options: PubSubWriteOptions, stamp: RowStamp
) -> int:
    """Publish all rows of some batches, and wait until the service has each.

    Args:
        batches: rows.
        columns: what is read of them.
        options: of the sink.
        stamp: names each row.

    Returns:
        The number of rows.

    Raises:
        ConnectorError: a row could not be published; others may have been.
    """
    limits = PublishLimits(options.max_outstanding_requests, options.max_outstanding_bytes, options.publish_timeout)
    publisher = Publisher(_client(options), limits, f"partition {stamp.partition}")
    rows = 0
    try:
        for request in publish_requests(batches, columns, stamp):
            failpoint("publish.before_request")
            publisher.publish(request)
            rows += len(request)
        publisher.finish()
        failpoint("publish.after_last_request")
    except BaseException:
        publisher.discard()
        # The next attempt begins anew, with credentials read anew.
        close_clients()
        raise
    return rows


def _client(options: PubSubWriteOptions) -> PubSubClient:
    """The client of these options; one of other options is closed."""
    key = options.transport, options.credentials_file
    if key not in _clients:
        from connectors.pubsub.client import PubSubClient  # noqa: PLC0415 - grpc is loaded where rows are written

        close_clients()
        _clients[key] = PubSubClient(*key)
    return _clients[key]


def close_clients() -> None:
    """Close the clients that this worker keeps."""
    while _clients:
        _clients.popitem()[1].close()
