"""The process in which Spark keeps a stream reader, driven over the same socket as by Spark's JVM.

The process runs PySpark's own ``pyspark.sql.streaming.python_streaming_source_runner``. So offsets, limits, partitions
and errors cross here as they do in Spark, and the process sees what a reader sees there: a socket, a standard input
that stays open as long as its driver lives, and an output that somebody reads. Unlike in Spark it is forked from a
process that has imported PySpark; that process is its parent, and ends when the driver does.

Seen on Spark 4.3: when a query stops, the process gets SIGTERM and its socket is closed at the same moment. A reader
that raises in a call gets `stop()`, then its process ends. A reader that is inside a call while its parent dies runs
on until that call ends.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.serializers import SpecialLengths, UTF8Deserializer, read_int, write_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as runner

from tests.support.spark_protocol.errors import (
    ProtocolError,
    ReaderDiedError,
    ReaderFailedError,
    ReaderTimeoutError,
)
from tests.support.spark_protocol.system import OutputReader, child_environment, descendants, resident_bytes
from tests.support.spark_protocol.template import fork_reader

__all__ = [
    "ReaderProcess",
    "offset_text",
]

_LOG_LINES = 1000
_ARROW_ROWS = 10_000
"""Spark's default of ``spark.sql.execution.arrow.maxRecordsPerBatch``; it sizes only batches made of tuples."""
_START_SECONDS = 60.0


def offset_text(offset: str | Mapping[str, Any] | None) -> str:
    """The JSON text of an offset, made as PySpark makes it; text is returned as it is."""
    return offset if isinstance(offset, str) else json.dumps(offset)


class ReaderProcess:
    """One reader in a process of its own, and every call that Spark makes.

    Offsets go in and come out as JSON text, as they stand in the checkpoint; dictionaries are accepted too.

    Args:
        data_source: the pickled data source, as Spark passes it.
        schema: the JSON text of the schema of its rows.
        environment: changes to the environment of the process, for example ``CONNECTORS_FAILPOINTS``.
        call_timeout: seconds after which a call raises `ReaderTimeoutError`.

    Raises:
        ReaderFailedError: the reader could not be made.
        ReaderDiedError: the process ended before that.
    """

    def __init__(
        self,
        data_source: bytes,
        schema: str,
        *,
        environment: Mapping[str, str] | None = None,
        call_timeout: float = 60.0,
    ) -> None:
        self.call_timeout = call_timeout
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        """The last lines that the process wrote to its standard output and error."""
        self._folder = tempfile.TemporaryDirectory(prefix="protocol-")
        try:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            address = str(Path(self._folder.name) / "socket")
            self._listener.bind(address)
            self._listener.listen(1)
            factory = {"PYTHON_WORKER_FACTORY_SOCK_PATH": address}
            self._process = fork_reader(child_environment({**(environment or {}), **factory}))
            self._output = OutputReader(self._process.stdout, self.log)
            self._socket = self._accept()
            self._stream = self._socket.makefile("rwb", 65536)
        except BaseException:
            self._give_up()
            raise
        try:
            self._begin(data_source, schema)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The id of the reader's process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def _give_up(self) -> None:
        if hasattr(self, "_output"):
            self._process.kill()
            self._process.wait()
            self._close_pipes()
        self._listener.close()
        self._folder.cleanup()

    def _accept(self) -> socket.socket:
        """Wait until the process connects."""
        self._listener.settimeout(0.1)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if not self.alive:
                    raise self._death() from None
                if time.monotonic() > deadline:
                    raise ReaderTimeoutError(f"the reader process did not connect in {_START_SECONDS} s") from None
            else:
                connection.settimeout(self.call_timeout)
                return connection

    def _begin(self, data_source: bytes, schema: str) -> None:
        """What the JVM sends before the first call."""
        with self._call("start"):
            read_int(self._stream)  # its own process id
            for text in (f"{sys.version_info.major}.{sys.version_info.minor}", self._folder.name):
                write_with_length(text.encode(), self._stream)
            write_int(0, self._stream)  # no further files to put on the path
            write_with_length(data_source, self._stream)
            write_with_length(schema.encode(), self._stream)
            write_int(_ARROW_ROWS, self._stream)
            self._stream.flush()
            self._read_number()

    def _death(self) -> ReaderDiedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._output.close()
        tail = "\n".join(list(self.log)[-20:])
        return ReaderDiedError(f"the reader process {self.pid} ended with {self._process.returncode}\n{tail}")

    @contextlib.contextmanager
    def _call(self, what: str) -> Any:
        try:
            yield
        except TimeoutError as error:
            raise ReaderTimeoutError(f"{what} took longer than {self.call_timeout} s") from error
        except (EOFError, OSError, struct.error) as error:
            raise self._death() from error

    def _read_number(self) -> int:
        """A number that is an answer or a length; raises what the reader has raised."""
        number = read_int(self._stream)
        if number == SpecialLengths.PYTHON_EXCEPTION_THROWN:
            raise ReaderFailedError(self._read_text())
        return int(number)

    def _read_text(self) -> str:
        return str(UTF8Deserializer().loads(self._stream))

    def _read_bytes(self) -> bytes:
        length = self._read_number()
        data: bytes = self._stream.read(length)
        if len(data) < length:
            raise EOFError
        return data

    def _send(self, function: int, *texts: str) -> None:
        write_int(function, self._stream)
        for text in texts:
            write_with_length(text.encode(), self._stream)
        self._stream.flush()

    def supported_features(self) -> int:
        """Bit 0: admission control (`latestOffset(start, limit)`); bit 1: `SupportsTriggerAvailableNow`."""
        with self._call("the check of features"):
            self._send(runner.CHECK_SUPPORTED_FEATURES_ID)
            return self._read_number()

    def initial_offset(self) -> str:
        """Call `initialOffset()`; returns the JSON text of the offset."""
        with self._call("initialOffset"):
            self._send(runner.INITIAL_OFFSET_FUNC_ID)
            return self._read_bytes().decode()

    def latest_offset(
        self, start: str | Mapping[str, Any] | None = None, limit: str | Mapping[str, Any] | None = None
    ) -> str:
        """Call `latestOffset(start, limit)`, or `latestOffset()` without both; returns JSON text, ``null`` for None.

        Args:
            start: the start offset.
            limit: a read limit as `default_read_limit` returns it, for example ``{"_type": "ReadAllAvailable"}``.
        """
        with self._call("latestOffset"):
            if limit is None:
                self._send(runner.LATEST_OFFSET_FUNC_ID)
            else:
                function = runner.LATEST_OFFSET_ADMISSION_CONTROL_FUNC_ID
                self._send(function, offset_text(start), offset_text(limit))
            return self._read_bytes().decode()

    def default_read_limit(self) -> dict[str, Any]:
        """Call `getDefaultReadLimit()`; returns for example ``{"_type": "ReadMaxRows", "max_rows": 5}``."""
        with self._call("getDefaultReadLimit"):
            self._send(runner.GET_DEFAULT_READ_LIMIT_FUNC_ID)
            limit: dict[str, Any] = json.loads(self._read_bytes())
            return limit

    def report_latest_offset(self) -> str | None:
        """Call `reportLatestOffset()`; returns JSON text, or None."""
        with self._call("reportLatestOffset"):
            self._send(runner.REPORT_LATEST_OFFSET_FUNC_ID)
            length = self._read_number()
            return self._stream.read(length).decode() if length else None

    def prepare_for_trigger_available_now(self) -> None:
        """Call `prepareForTriggerAvailableNow()`."""
        with self._call("prepareForTriggerAvailableNow"):
            self._send(runner.PREPARE_FOR_TRIGGER_AVAILABLE_NOW_FUNC_ID)
            self._read_number()

    def partitions(self, start: str | Mapping[str, Any], end: str | Mapping[str, Any] | None) -> list[bytes]:
        """Call `partitions(start, end)`; returns the pickled partitions."""
        with self._call("partitions"):
            self._send(runner.PARTITIONS_FUNC_ID, offset_text(start), offset_text(end))
            partitions = [self._read_bytes() for _ in range(self._read_number())]
            prefetched = self._read_number()
        if prefetched != runner.PREFETCHED_RECORDS_NOT_FOUND:
            raise ProtocolError("simple stream readers are not driven: their rows come with the plan, without tasks")
        return partitions

    def commit(self, end: str | Mapping[str, Any]) -> None:
        """Call `commit(end)`."""
        with self._call("commit"):
            self._send(runner.COMMIT_FUNC_ID, offset_text(end))
            self._read_number()

    def resident_bytes(self) -> int:
        """The memory that the process holds, in bytes."""
        return resident_bytes(self.pid)

    def descendants(self) -> list[int]:
        """The processes that the reader has started and that still run, at any depth."""
        return descendants(self.pid)

    def wait(self, seconds: float) -> bool:
        """Wait until the process has ended, at most so long; returns whether it has."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """End the process as Spark does when a query stops: SIGTERM, and its socket is closed.

        Raises:
            ReaderTimeoutError: it does not end within ``call_timeout``; it is killed then.
        """
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        self.hang_up()
        if not self.wait(self.call_timeout):
            self.kill()
            raise ReaderTimeoutError(f"the reader process {self.pid} ignored SIGTERM for {self.call_timeout} s")

    def kill(self) -> None:
        """End the process at once with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the socket and the pipes, as happens when Spark's JVM dies; the process is not touched."""
        for opened in ("_stream", "_socket"):
            if hasattr(self, opened):
                with contextlib.suppress(OSError, ValueError):
                    getattr(self, opened).close()
        self._listener.close()
        self._close_pipes()
        self._folder.cleanup()

    def _close_pipes(self) -> None:
        self._process.stdin.close()
        self._output.close()
