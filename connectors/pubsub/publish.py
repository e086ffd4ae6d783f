"""Publishing the rows of a task: nothing is left under way, and no error unseen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from connectors.core.failpoints import failpoint
from connectors.core.pool import Kept
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


def _close(client: PubSubClient) -> None:
    client.close()


_clients: Final[Kept[tuple[Transport, Path | None], PubSubClient]] = Kept(_close)
"""The clients that this worker keeps, by what they were made from."""


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
    key = options.transport, options.credentials_file
    client = _clients.take(key) or _new_client(*key)
    publisher = Publisher(client, limits, f"partition {stamp.partition}")
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
        client.close()
        raise
    _clients.give(key, client)
    return rows


def _new_client(transport: Transport, credentials_file: Path | None) -> PubSubClient:
    from connectors.pubsub.client import PubSubClient  # noqa: PLC0415 - grpc is loaded where rows are written

    return PubSubClient(transport, credentials_file)


def close_clients() -> None:
    """Close the clients that this worker keeps."""
    _clients.close()
