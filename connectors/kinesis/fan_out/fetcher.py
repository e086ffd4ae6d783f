"""A fetcher of Kinesis: holds the subscriptions that it is ordered to, and stores what they bring.

It runs in `connectors.spool.fetching.process`, without Spark. One thread runs an event loop with a subscription per
shard; other threads sign requests, since credentials may have to be refreshed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.errors import ConnectorError
from connectors.core.processes.failpoints import failpoint
from connectors.kinesis.fan_out.cached_ranges import CACHED_ROWS, CachedRange
from connectors.kinesis.fan_out.subscription import (
    Begins,
    Deregister,
    NotDeregistered,
    Order,
    RecordsIntake,
    ShardSubscription,
    SubscribedRecords,
    SubscriptionHost,
    message_to_json,
    order_from_json,
    order_name,
)
from connectors.kinesis.offsets import Position, after
from connectors.kinesis.options.client import client_from_json
from connectors.kinesis.schema import ARROW_SCHEMA
from connectors.kinesis.shards import ShardKey
from connectors.kinesis.source.records import MAX_BYTES, MAX_ROWS, aggregates, batches, row_bytes
from connectors.spool.fetching.contract import Block, FetchContext, FetchTarget, TargetStatus
from connectors.spool.segments.segment import Sizes

TARGET: Final = "connectors.kinesis.fan_out.fetcher:KinesisFetch"
"""What `FetchPlan.target` is for Kinesis."""

T = TypeVar("T")
_STOP_SECONDS: Final = 1.0


class KinesisFetch(FetchTarget[SubscribedRecords, Begins]):
    """The target of Kinesis: deliveries are records of one shard, tokens say where each shard began.

    Settings: ``client`` (its options as JSON), ``deaggregate`` and ``stall_seconds``.
    """

    def __init__(self, settings: Mapping[str, Any], context: FetchContext) -> None:
        self._deaggregate = bool(settings["deaggregate"])
        self._context = context
        options = client_from_json(settings["client"])
        self._host = SubscriptionHost(options, context, float(settings["stall_seconds"]))
        self._shards: dict[str, ShardSubscription] = {}  # by the names of their orders
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._deregister: set[str] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="subscriptions", daemon=True).start()
        context.orders.listen(self._receive_order)

    def start(self, intake: RecordsIntake) -> None:
        self._in_loop(self._begin(intake))

    def stop(self) -> None:
        self._in_loop(self._halt())

    def decode(self, deliveries: Sequence[SubscribedRecords]) -> Block[Begins]:
        runs = _runs(deliveries)
        decoded = [self._decode_run(run) for run in runs]
        ranges = [cached for cached, _, _ in decoded]
        packed = _packed(chain.from_iterable(rows for _, _, rows in decoded))
        rows = next(packed, pa.RecordBatch.from_pylist([], ARROW_SCHEMA))
        rows = rows.replace_schema_metadata(CACHED_ROWS.stamped.metadata)
        sizes = _sizes(rows)
        arrived = [cached.arrival_ms * 1000 for cached in ranges]
        return Block(
            rows,
            None,
            sizes,
            (min(arrived), max(arrived)) if arrived else None,
            [(run[0].order, run[0].after) for run in runs],
            notes=[cached.note() for cached in ranges],
            more=((batch, _sizes(batch)) for batch in packed),
            more_rows=sum(cached.rows for cached in ranges) - len(rows),
            more_bytes=sum(size for _, size, _ in decoded) - int(sizes.sum()),
        )

    def _decode_run(self, run: Sequence[SubscribedRecords]) -> tuple[CachedRange, int, Iterator[pa.RecordBatch]]:
        """Return the cached range that a run of records without a gap is, the bytes of its rows, and the rows."""
        order = run[0].order
        records = [record for delivery in run for record in delivery.records]
        stream = order.key[0].rpartition("/")[2]
        opening = aggregates(records) if self._deaggregate else None
        opened = None if opening is None else list(opening)
        parts = list(zip(records, opened or repeat(None), strict=False))
        cached = CachedRange(
            key=order.key,
            created_ms=order.created_ms,
            after=run[0].after,
            first=records[0].number,
            last=records[-1].number,
            arrival_ms=records[-1].arrival_ms,
            ended=run[-1].ended,
            rows=sum(1 if aggregate is None else len(aggregate) for _, aggregate in parts),
            records=len(records),
            size=sum(len(record.Data) for record in records),
            deaggregate=self._deaggregate,
        )
        return cached, sum(row_bytes(*part) for part in parts), batches(records, opened, stream, order.key[1])

    def on_durable(self, token: Begins) -> None:  # noqa: ARG002 - as the interface has it
        """Acknowledge nothing: the stream has its records still."""
        failpoint("fetch.after_ack")

    def on_given_up(self, held: Sequence[SubscribedRecords | Begins]) -> None:
        """Fetch again what was not stored, from where each shard stood."""
        back: dict[ShardKey, tuple[Order, Position]] = {}
        for one in held:
            begins = [(one.order, one.after)] if isinstance(one, SubscribedRecords) else one
            for order, position in begins:
                back.setdefault(order.key, (order, position))
        self._loop.call_soon_threadsafe(self._go_back, back)
        failpoint("fetch.after_nack")

    def status(self) -> TargetStatus:
        shards = [shard for shard in list(self._shards.values()) if not shard.ended]
        return TargetStatus(len(shards), sum(shard.is_live for shard in shards), self._host.error)

    def close(self, deadline: float) -> None:
        self._in_loop(self._host.http.close())
        for consumer in sorted(self._deregister):
            if time.monotonic() >= deadline:
                return
            call = partial(self._host.client.call, "deregister_stream_consumer", consumer, ConsumerARN=consumer)
            try:
                self._host.signers.submit(call).result(_STOP_SECONDS)
            except (ConnectorError, TimeoutError) as error:
                self._context.note(message_to_json(NotDeregistered(str(error))))

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self, intake: RecordsIntake) -> None:
        self._host.intake = intake
        for name in self._shards:
            self._run(name)

    async def _halt(self) -> None:
        self._host.intake = None
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_SECONDS)

    def _receive_order(self, name: str, value: Any) -> None:
        order = None if value is None else order_from_json(value)
        self._loop.call_soon_threadsafe(self._take_order, name, order)

    def _take_order(self, name: str, order: Order | Deregister | None) -> None:
        if isinstance(order, Deregister):
            self._deregister.add(order.consumer)
            return
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
        self._shards.pop(name, None)
        if order is not None:
            self._shards[name] = ShardSubscription(order, self._host)
            if self._host.intake is not None:
                self._run(name)

    def _run(self, name: str) -> None:
        task = self._loop.create_task(self._shards[name].run())
        task.add_done_callback(self._ended)
        self._tasks[name] = task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stop the fetcher when a subscription failed by a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, ConnectorError):
                error = ConnectorError("KINESIS_FETCH_FAILED", f"A subscription failed: {error!r}", "fetcher")
            self._context.fail(error)

    def _go_back(self, back: Mapping[ShardKey, tuple[Order, Position]]) -> None:
        for key, (order, position) in back.items():
            shard = self._shards.get(order_name(key))
            if shard is not None and shard.order is order:
                shard.go_back(position)


def _runs(fetched: Sequence[SubscribedRecords]) -> list[list[SubscribedRecords]]:
    """Group deliveries by shard into runs; in a run, each begins where the previous one ended."""
    runs: list[list[SubscribedRecords]] = []
    for delivery in sorted(fetched, key=lambda delivery: delivery.order.key):
        last = runs[-1][-1] if runs else delivery
        if last.order.key == delivery.order.key and delivery.after == after(last.records[-1].number):
            runs[-1].append(delivery)
        else:
            runs.append([delivery])
    return runs


def _packed(small: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in small:
        if held and (rows + len(batch) > MAX_ROWS or size + batch.nbytes > MAX_BYTES):
            yield _joined(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
    if held:
        yield _joined(held)


def _joined(held: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1:
        return held[0]
    return pa.Table.from_batches(held, ARROW_SCHEMA).combine_chunks().to_batches()[0]


def _sizes(rows: pa.RecordBatch) -> Sizes:
    lengths = [pc.binary_length(rows[name]) for name in ("data", "partitionKey", "explicitHashKey")]
    return np.asarray(pc.add(pc.add(lengths[0], lengths[1]), pc.fill_null(lengths[2], 0)), np.int64)
