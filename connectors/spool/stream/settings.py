"""The settings of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.core.retry import OutageRule
from connectors.spool.store.base import StoreAccess
from connectors.spool.stream.compaction import CompactionSettings


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of a stream; sizes in bytes, times in seconds.

    Attributes:
        fail_on_data_loss: whether rows that are gone stop the query; else they are given up, and recorded (rule R9).
        starting_position: where a new checkpoint begins: ``committed``, ``earliest`` or ``latest``.
        partition_bytes, max_partitions: how batches are cut (rule R5).
        max_spool_bytes: fetching pauses when the rows after the start of the newest batch have so many bytes (rule R6).
        publish_period: see `FetchPlan`.
        available_now_max_wait: None waits 300 s, and longer while the service does not work.
        outage_rule: when a service from which nothing can be fetched is given up.
        start_timeout: how long the first batch waits for streams to open and for the first messages.
        by_message_id: whether duplicates are recognised by the source's own ids; else producers may publish them.
        take_over: take the lease of a spool on an object store at once, whoever holds it (rule R7).
    """

    root: str
    connector: str
    sources: tuple[str, ...]
    fail_on_data_loss: bool
    starting_position: str
    partition_bytes: int
    max_partitions: int
    max_bytes_per_trigger: int | None
    max_spool_bytes: int
    publish_period: float
    start_timeout: float
    available_now_quiet: float
    available_now_max_wait: float | None
    compaction: CompactionSettings
    outage_rule: OutageRule
    by_message_id: bool = True
    access: StoreAccess | None = None
    take_over: bool = False
