"""Reading several ranges in one task: while one waits for its turn to ask the service, the others give rows.

The order of the rows follows from the rows alone, whatever came first and however the service cut its pages: the ranges
take turns, and a turn has a number of rows and bytes. So each attempt of a task, and each replay of a batch, gives the
same rows in the same order. A turn is about half a second of what a shard gives, in records or bytes, so that no range
is ahead of the others for long. In memory are, of each range that is being read, what is left of one batch, the next
one, and the page that is read ahead.

How many ranges share a task follows from the rate at which the service gives them: a core decodes 40 MB a second and
more, and has to do what the query does with the rows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from connectors.kinesis.options.source import KinesisReadOptions

_TASK_RATE: Final = 30.0
"""MB a second, of ranges that each give ``maxFetchRate``."""
_RANGES_AT_A_TIME: Final = 16
_TURN_ROWS: Final = 10_000
_TURN_BYTES: Final = 1_000_000


def task_count(ranges: int, options: KinesisReadOptions) -> int:
    """Return how many tasks read so many ranges: as few as can keep up with their shards on a core each."""
    return min(ranges, max(math.ceil(ranges * options.max_fetch_rate / _TASK_RATE), options.min_partitions or 1))


def interleaved(
    ranges: Sequence[Callable[[], Iterator[pa.RecordBatch]]], closed: threading.Event
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ranges, which are read at the same time, up to 16 of them; each has its rows in order.

    ``closed`` is set when no more rows are wanted: what waits in a range is to end then.
    """
    waiting = iter(ranges)
    with ThreadPoolExecutor(min(len(ranges), _RANGES_AT_A_TIME), "kinesis-range") as pool:
        active = [_Range(pool, read()) for _, read in zip(range(_RANGES_AT_A_TIME), waiting, strict=False)]
        try:
            while active:
                following = []
                for one in active:
                    yield from one.turn()
                    if not one.ended:
                        following.append(one)
                    elif (read := next(waiting, None)) is not None:
                        following.append(_Range(pool, read()))
                active = following
        finally:
            closed.set()


class _Range:
    """The rows of one range, of which the next batch is made ahead."""

    def __init__(self, pool: ThreadPoolExecutor, batches: Iterator[pa.RecordBatch]) -> None:
        self._pool = pool
        self._batches = batches
        self._next: Future[pa.RecordBatch | None] = pool.submit(next, batches, None)
        self._rest: pa.RecordBatch | None = None
        self.ended = False

    def turn(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a turn."""
        rows, size = _TURN_ROWS, _TURN_BYTES
        while rows > 0 and size > 0:
            batch = self._rest if self._rest is not None else self._take()
            if batch is None:
                return
            ends = _ends(batch)
            count = min(rows, int(np.searchsorted(ends, size)) + 1, len(batch))
            rows, size = rows - count, size - int(ends[count - 1])
            self._rest = batch.slice(count) if count < len(batch) else None
            yield batch.slice(0, count)

    def _take(self) -> pa.RecordBatch | None:
        batch = self._next.result()
        if batch is None:
            self.ended = True
        else:
            self._next = self._pool.submit(next, self._batches, None)
        return batch


def _ends(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the bytes of data and keys up to the end of each row."""
    import pyarrow.compute as pc  # noqa: PLC0415 - it takes 30 ms, and a task that reads one range does without

    sizes = pc.add(pc.binary_length(batch.column("data")), pc.binary_length(batch.column("partitionKey")))
    return np.cumsum(np.asarray(sizes, np.int64))
