"""A driver that calls the stream reader of a Python data source exactly as Spark 4.3 does, without Spark's JVM.

    from tests.support.spark_protocol.driver import FolderSink, StreamingQuery

    sink = FolderSink(tmp_path / "sink")
    with StreamingQuery(MySource, {"option": "value"}, checkpoint=tmp_path / "checkpoint", sink=sink) as query:
        batch = query.run_batch()           # polls until a batch has run
        query.kill()                        # SIGKILL of the reader process
        query.restart()                     # a new process on the same checkpoint
        query.process_available()           # until the source has nothing new

The reader lives in a process of its own (`ReaderProcess`), tasks run in workers that are used again (`TaskWorkers`),
and the order of calls, the two logs and the rules of a restart are Spark's: traces recorded from Spark hold this
driver to it. One batch costs about 2 ms beside what the source itself does.

To kill the driver as well, as when Spark's JVM dies, run it as a process of its own: see `DriverProcess` in
`tests.support.spark_protocol.program`, or ``python -m tests.support.spark_protocol --help``.
"""

from __future__ import annotations

from tests.support.spark_protocol.errors import (
    AttemptsDifferError,
    DriverCrashedError,
    NoBatchError,
    ProtocolError,
    QueryEndedError,
    ReaderDiedError,
    ReaderFailedError,
    ReaderTimeoutError,
    ReplayDiffersError,
    TaskFailedError,
    UnexpectedBatchError,
)
from tests.support.spark_protocol.process import ReaderProcess, offset_text
from tests.support.spark_protocol.program import DriverProcess
from tests.support.spark_protocol.query import StreamingQuery
from tests.support.spark_protocol.store import Checkpoint, FolderSink, LostAndDoubled, digest
from tests.support.spark_protocol.stream import STEPS, Batch, BatchRead, Source, Step, Trigger
from tests.support.spark_protocol.system import descendants, is_running, resident_bytes
from tests.support.spark_protocol.worker import InProcessWorkers, TaskWorkers

__all__ = [
    "STEPS",
    "AttemptsDifferError",
    "Batch",
    "BatchRead",
    "Checkpoint",
    "DriverCrashedError",
    "DriverProcess",
    "FolderSink",
    "InProcessWorkers",
    "LostAndDoubled",
    "NoBatchError",
    "ProtocolError",
    "QueryEndedError",
    "ReaderDiedError",
    "ReaderFailedError",
    "ReaderProcess",
    "ReaderTimeoutError",
    "ReplayDiffersError",
    "Source",
    "Step",
    "StreamingQuery",
    "TaskFailedError",
    "TaskWorkers",
    "Trigger",
    "UnexpectedBatchError",
    "descendants",
    "digest",
    "is_running",
    "offset_text",
    "resident_bytes",
]
