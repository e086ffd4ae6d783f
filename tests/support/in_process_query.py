"""The protocol driver with its reader in the same process: for tests that start a query hundreds of times.

A kill, and a reader that outlives its driver, are seen only with a process of its own.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming import python_streaming_source_runner as runner
from pyspark.sql.types import StructType

from tests.support.spark_protocol.driver import ReaderFailedError, Step, StreamingQuery, offset_text


class InProcessReader:
    """What the driver calls, as `ReaderProcess`; offsets go in and out as JSON text."""

    def __init__(self, data_source: bytes, schema: str) -> None:
        source = CPickleSerializer().loads(data_source)
        self.reader = self._call(source.streamReader, StructType.fromJson(json.loads(schema)))

    @staticmethod
    def _call(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise ReaderFailedError(traceback.format_exc()) from error

    def supported_features(self) -> int:
        return runner.SUPPORTS_ADMISSION_CONTROL | runner.SUPPORTS_TRIGGER_AVAILABLE_NOW

    def initial_offset(self) -> str:
        return offset_text(self._call(self.reader.initialOffset))

    def latest_offset(self, start: str, limit: str) -> str:
        asked = runner.READ_LIMIT_REGISTRY.get(json.loads(limit))
        return offset_text(self._call(self.reader.latestOffset, json.loads(start), asked))

    def default_read_limit(self) -> dict[str, Any]:
        limit = self._call(self.reader.getDefaultReadLimit)
        return asdict(limit) | {"_type": type(limit).__name__}

    def report_latest_offset(self) -> str:
        return offset_text(self._call(self.reader.reportLatestOffset))

    def prepare_for_trigger_available_now(self) -> None:
        self._call(self.reader.prepareForTriggerAvailableNow)

    def partitions(self, start: str, end: str) -> list[bytes]:
        parts = self._call(self.reader.partitions, json.loads(start), json.loads(end))
        return [CPickleSerializer().dumps(part) for part in parts]

    def commit(self, end: str) -> None:
        self._call(self.reader.commit, json.loads(end))


class InProcessQuery(StreamingQuery):
    """A query whose reader lives in this process; every end of the query calls the reader's `stop`.

    Attributes:
        on_step: called at each step of a batch.
    """

    on_step: Callable[[], None] = staticmethod(lambda: None)

    def _step(self, step: Step) -> None:
        self.on_step()
        super()._step(step)

    def _make_reader(self, made: Any) -> Any:
        return InProcessReader(made.pickled, made.schema)

    def _end(self, _how: Any) -> None:
        if self._running:
            self._running = False
            for stream in self._streams:
                stream.reader.reader.stop()
