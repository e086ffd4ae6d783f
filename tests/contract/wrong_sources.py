"""Readers that break one rule of the contract each, to show that the suite catches it."""

from __future__ import annotations

import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from connectors.core.offsets import START_KEY, is_sentinel, ordered
from tests.contract.reference_source import (
    NO_LIMIT,
    Lines,
    LiveCount,
    ReferenceBatchReader,
    ReferenceSource,
    ReferenceStreamReader,
    count_lines,
    cut,
    read_lines,
)


class WrongSource(ReferenceSource):
    """The reference source with another reader."""

    stream_reader: ClassVar[type[ReferenceStreamReader]] = ReferenceStreamReader
    batch_reader: ClassVar[type[ReferenceBatchReader]] = ReferenceBatchReader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's signature
        return self.stream_reader(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature
        return self.batch_reader(dict(self.options))


class ThreadInConstructor(ReferenceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


class ConnectionInConstructor(ReferenceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        with socket.socket() as tried:
            tried.connect_ex(("127.0.0.1", 1))


class ChildInConstructor(ReferenceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        subprocess.run(["true"], check=True)


class NotPicklable(ReferenceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.lock = threading.Lock()


class CaseSensitiveKeys(ReferenceStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        assert self.options["partitionRows"]
        return super().latestOffset(start, limit)


class InitialOffsetMoves(ReferenceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"position": count_lines(self.options["log"]), "v": 1}


class StartMissing(ReferenceStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        answer = super().latestOffset(start, limit)
        return {"position": answer["position"], "v": 1} if is_sentinel(start) else answer

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Lines]:
        return super().partitions({"position": 0} if is_sentinel(start) else start, end)


class StartInEveryOffset(ReferenceStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        answer = super().latestOffset(start, limit)
        return answer if answer == start else ordered(answer | {START_KEY: answer.get(START_KEY, 0)})


class StartIgnored(ReferenceStreamReader):
    """Plans from the first line, whatever the resolved start was."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Lines]:
        return super().partitions(start, end if is_sentinel(end) else end | {START_KEY: 0})


class SentinelsNotPlanned(ReferenceStreamReader):
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Lines]:
        return cut(self.options, 0, 1) if is_sentinel(end) else super().partitions(start, end)


class SentinelNotCommitted(ReferenceStreamReader):
    def commit(self, end: dict[str, Any]) -> None:
        assert end["position"] >= 0


class PlansToTheHead(ReferenceStreamReader):
    """Plans everything there is by now, instead of up to the end it was given."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Lines]:
        return super().partitions(start, end | {"position": count_lines(self.options["log"])})


class LatestNotPinned(ReferenceStreamReader):
    """Returns the sentinel as long as there is nothing to read."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        answer = super().latestOffset(start, limit)
        return start if answer.get(START_KEY) == answer["position"] else answer


class LatestNotPinnedLater(ReferenceStreamReader):
    """Returns the sentinel when it was already logged, as if only batch 0 could start there."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        later = is_sentinel(start) and self.options.get("startat") == "latest" and self.committed
        return start if later else super().latestOffset(start, limit)

    @property
    def committed(self) -> bool:
        return (Path(self.options["log"]).parents[1] / "checkpoint" / "commits" / "0").exists()


class NoneWhenIdle(ReferenceStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any] | None:
        answer = super().latestOffset(start, limit)
        return None if answer == start else answer


class OtherOffsetWhenIdle(ReferenceStreamReader):
    """Counts its calls in the offset, as one with a time in it does."""

    calls = itertools.count()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return super().latestOffset(start, limit) | {"w": next(self.calls)}


class UnsortedKeys(ReferenceStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return dict(reversed(super().latestOffset(start, limit).items()))


class ReadAllAsLimit(ReferenceStreamReader):
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(int(self.options["maxrows"])) if "maxrows" in self.options else ReadAllAvailable()


class LimitIgnored(ReferenceStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return super().latestOffset(start, limit if isinstance(limit, ReadAllAvailable) else ReadMaxRows(NO_LIMIT))


class StaleFirstAnswer(ReferenceStreamReader):
    def head(self, *, wait: bool) -> int:
        if self.live is None:
            self.open()
            return 0
        return super().head(wait=wait)


class AvailableNowGoesOn(ReferenceStreamReader):
    def prepareForTriggerAvailableNow(self) -> None:
        self.open()

    def head(self, *, wait: bool) -> int:  # noqa: ARG002 - always waits
        return self.open().fresh_lines()


class AvailableNowTooEarly(ReferenceStreamReader):
    """Takes what is known when it is prepared, before anything was asked."""

    def prepareForTriggerAvailableNow(self) -> None:
        self.open()
        self.target = 0


class OnceWithLimit(ReferenceStreamReader):
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        own = self.getDefaultReadLimit() if isinstance(limit, ReadAllAvailable) else limit
        return super().latestOffset(start, own)


class PlanningNeedsLatestOffset(ReferenceStreamReader):
    known = -1

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        answer = super().latestOffset(start, limit)
        self.known = answer["position"]
        return answer

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Lines]:
        return super().partitions(start, end) if end["position"] <= self.known else []


class OtherLayoutAfterRestart(ReferenceStreamReader):
    """Cuts a batch in another way than before when it is planned in another process."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Lines]:
        size = 1 if self.live is None else 2
        return [
            Lines(part.log, first, min(first + size, part.end))
            for part in super().partitions(start, end)
            for first in range(part.first, part.end, size)
        ]


class OtherRowsWhenReadAgain(ReferenceStreamReader):
    def read(self, partition: Lines) -> Iterator[pa.RecordBatch]:
        for batch in read_lines(partition):
            column = pa.array([str(time.monotonic_ns())] * batch.num_rows)
            values = column if partition.first % 2 else batch.column("value")
            yield batch.set_column(1, batch.schema.field(1), values)


class OtherSchemaInLaterBatches(ReferenceStreamReader):
    """Only the first batch has the declared schema, and Spark looks only at that."""

    def read(self, partition: Lines) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(read_lines(partition)):
            yield batch.drop_columns(["attributes"]) if number else batch


class IdleAsksTheService(ReferenceStreamReader):
    def head(self, *, wait: bool) -> int:
        super().head(wait=wait)
        return count_lines(self.options["log"])


class ForgetsOnCommit(ReferenceStreamReader):
    """Frees on commit what the batch under way still needs."""

    floor = 0

    def commit(self, end: dict[str, Any]) -> None:
        self.floor = end["position"] + 1

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Lines]:
        planned = super().partitions(start, end)
        return [part for part in planned if part.first >= self.floor]


class OrphanedChild(LiveCount):
    def _start_child(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "20"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


class ChildStays(ReferenceStreamReader):
    def open(self) -> LiveCount:
        self.live = self.live or OrphanedChild(self.options["log"])
        return self.live


class UncheckedParent(LiveCount):
    def check_parent(self) -> None:
        """Wait for ever, whoever lives."""


class WaitsForever(ReferenceStreamReader):
    def open(self) -> LiveCount:
        self.live = self.live or UncheckedParent(self.options["log"])
        return self.live


class ThreadStays(ReferenceStreamReader):
    """A thread that is no daemon keeps the process after its main thread has ended."""

    def open(self) -> LiveCount:
        if self.live is None:
            threading.Thread(target=time.sleep, args=(20,)).start()
        return super().open()


class SlowLock(ReferenceStreamReader):
    """Holds a lock by name that outlives it, so that the next start is refused."""

    def open(self) -> LiveCount:
        if self.live is None:
            Path(f"{self.options['log']}.lock").mkdir()  # fails when it is there
        return super().open()


class PlansAtRead(ReferenceBatchReader):
    def partitions(self) -> list[Lines]:
        return [Lines(self.options["log"], 0, NO_LIMIT)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Lines)
        return read_lines(Lines(partition.log, 0, count_lines(partition.log)))


def _source_of(reader: type[ReferenceStreamReader | ReferenceBatchReader]) -> type[DataSource]:
    """A source class for a reader, under a name that workers can import."""
    kind = "batch_reader" if issubclass(reader, ReferenceBatchReader) else "stream_reader"
    return type(f"{reader.__name__}Source", (WrongSource,), {kind: reader, "__module__": __name__})


WRONG_READERS = [
    found
    for found in list(globals().values())
    if isinstance(found, type)
    and issubclass(found, ReferenceStreamReader | ReferenceBatchReader)
    and found.__module__ == __name__
]
globals().update({f"{reader.__name__}Source": _source_of(reader) for reader in WRONG_READERS})
