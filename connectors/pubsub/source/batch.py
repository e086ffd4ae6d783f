"""Planning a batch read: rows that a spool keeps, or a look at the subscription itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.pubsub.options.source import BatchMode
from connectors.spool.stream.batch import SpoolRange, plan_spool_rows

if TYPE_CHECKING:
    from connectors.pubsub.options.source import PubSubReadOptions
    from connectors.spool.stream.planning import Slice

__all__ = ["plan_batch"]


def plan_batch(options: PubSubReadOptions) -> tuple[str, list[list[Slice]]]:
    """The folder that holds the rows of a batch read, and its partitions.

    Raises:
        ConnectorError: see `connectors.spool.stream.batch.plan_spool_rows` and `connectors.pubsub.source.peek.peek`.
    """
    if options.batch_mode is BatchMode.PEEK:
        from connectors.pubsub.source.peek import peek  # noqa: PLC0415 - a spool is read without the client of the service

        root, rows = peek(options)
        sources: tuple[str, ...] = (options.subscription,)
        wanted = SpoolRange(0, rows, options.partition_bytes, options.max_partitions)
    else:
        root, sources = str(options.spool_folder), options.subscriptions
        wanted = SpoolRange(
            options.starting_position, options.ending_position, options.partition_bytes, options.max_partitions
        )
    return root, plan_spool_rows(root, "pubsub", sources, wanted, options.store_access)
