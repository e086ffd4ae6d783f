"""Worker processes that make sources, plan reads and run read tasks, as Spark's reused Python workers do.

They run PySpark's own code for all three (`create_data_source`, `plan_data_source_read` and the read function that
the plan returns), so pickles, option keys and errors are what they are in Spark. On top of that every batch that a
task yields is compared with the declared schema; Spark checks the first one only.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import pyarrow as pa
from pyspark.serializers import CPickleSerializer, UTF8Deserializer, read_int, write_int, write_with_length
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark.sql.worker import create_data_source as creator
from pyspark.sql.worker import plan_data_source_read as planner

from connectors.core.processes.interpreter import python_command
from tests.support.spark_protocol.errors import TaskFailedError
from tests.support.spark_protocol.system import child_environment

__all__ = ["CreatedSource", "InProcessWorkers", "ReadPlan", "TaskWorkers", "Workers"]

_ROWS_PER_ARROW_BATCH = 10_000
_STANDARD_ERROR = 2
_PARTITION_SCHEMA = StructType([StructField("partition", BinaryType())])


@dataclass(frozen=True)
class CreatedSource:
    """A data source as Spark keeps it: the pickled instance, and its schema as JSON text."""

    pickled: bytes
    schema: str

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema that every batch of its rows must have."""
        return to_arrow_schema(StructType.fromJson(json.loads(self.schema)), timezone="UTC")


@dataclass(frozen=True)
class ReadPlan:
    """What planning a read gives: the pickled read function, the schema, and the partitions of a batch read."""

    command: bytes
    schema: str
    partitions: tuple[bytes, ...]


def _write_flags(stream: io.BytesIO, *flags: bool) -> None:
    stream.write(bytes(flags))


def _create(source_class: bytes, name: str, options: Mapping[str, str], schema: str | None) -> CreatedSource:
    """Make a data source, as PySpark does for ``load()``."""
    request, answer = io.BytesIO(), io.BytesIO()
    write_with_length(source_class, request)
    write_with_length(name.encode(), request)
    _write_flags(request, schema is not None)
    if schema is not None:
        write_with_length(schema.encode(), request)
    write_int(len(options), request)
    for pair in options.items():
        for text in pair:
            write_with_length(text.encode(), request)
    request.seek(0)
    creator._main(request, answer)
    answer.seek(0)
    pickled = answer.read(read_int(answer))
    if read_int(answer) == 1:
        raise TypeError("schema() returned a DDL string, which needs a SparkContext to parse; return a StructType")
    return CreatedSource(pickled, UTF8Deserializer().loads(answer))


def _plan(source: CreatedSource, *, streaming: bool) -> ReadPlan:
    """Make the reader and pickle its read function, as PySpark's planner does; a batch read is planned here too."""
    request, answer = io.BytesIO(), io.BytesIO()
    write_with_length(source.pickled, request)
    write_with_length(_PARTITION_SCHEMA.json().encode(), request)
    write_with_length(source.schema.encode(), request)
    write_int(_ROWS_PER_ARROW_BATCH, request)
    _write_flags(request, False, streaming, True)  # no filter pushdown; a stream or not; binary columns are bytes
    request.seek(0)
    planner._main(request, answer)
    answer.seek(0)
    command = answer.read(read_int(answer))
    partitions = tuple(answer.read(read_int(answer)) for _ in range(read_int(answer)))
    return ReadPlan(command, source.schema, partitions)


def _read(plan: ReadPlan, partition: bytes) -> bytes:
    """Run one task; returns its batches as an Arrow stream."""
    expected = to_arrow_schema(StructType.fromJson(json.loads(plan.schema)), timezone="UTC")
    function, _ = CPickleSerializer().loads(plan.command)  # each task unpickles its own reader
    task = pa.record_batch([pa.array([partition], pa.binary())], names=["partition"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, expected) as writer:
        for number, batch in enumerate(function(iter([task]))):
            if not batch.schema.equals(expected):
                raise TypeError(f"batch {number} of a partition has the schema\n{batch.schema}\ninstead of\n{expected}")
            writer.write_batch(batch)
    return bytes(sink.getvalue())


class InProcessWorkers:
    """Does the work of the workers in this process: no processes to start, nothing is isolated."""

    def create(
        self, source_class: type[DataSource], options: Mapping[str, str], schema: StructType | None
    ) -> CreatedSource:
        """Make a data source; option keys are lower-cased here, as Spark does.

        Raises:
            TaskFailedError: making it, or its schema, raised.
        """
        lowered = {key.lower(): value for key, value in options.items()}
        pickled = CPickleSerializer().dumps(source_class)
        name = source_class.name()
        created: CreatedSource = self._any(
            "create", (pickled, name, lowered, schema.json() if schema is not None else None)
        )
        return created

    def plan(self, source: CreatedSource, *, streaming: bool) -> ReadPlan:
        """Plan a read of it.

        Raises:
            TaskFailedError: making the reader, pickling it, or planning a batch read raised.
        """
        plan: ReadPlan = self._any("plan", (source, streaming))
        return plan

    def read(self, tasks: Sequence[tuple[ReadPlan, bytes]]) -> list[pa.Table]:
        """Run tasks, each a plan and a pickled partition; returns the rows of each, in the same order.

        Raises:
            TaskFailedError: a task raised, or yielded a batch of another schema.
        """
        return [pa.ipc.open_stream(data).read_all() for data in self._all(tasks)]

    def _any(self, kind: str, arguments: tuple[Any, ...]) -> Any:
        return _unwrap(_perform(kind, arguments))

    def _all(self, tasks: Sequence[tuple[ReadPlan, bytes]]) -> list[bytes]:
        return [self._any("read", task) for task in tasks]

    def close(self) -> None:
        """End the workers; there are none here."""


class TaskWorkers(InProcessWorkers):
    """A few worker processes that are used again and again, in turn.

    Args:
        count: how many.
        environment: changes to their environment.
    """

    def __init__(self, count: int = 1, *, environment: Mapping[str, str] | None = None) -> None:
        self._workers = [_Worker(child_environment(environment)) for _ in range(count)]
        self._turns = itertools.cycle(self._workers)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def _any(self, kind: str, arguments: tuple[Any, ...]) -> Any:
        worker = next(self._turns)
        worker.send(kind, arguments)
        return _unwrap(worker.receive())

    def _all(self, tasks: Sequence[tuple[ReadPlan, bytes]]) -> list[bytes]:
        answers: list[tuple[bool, Any]] = [(False, "the task did not run")] * len(tasks)
        waiting = iter(enumerate(tasks))
        busy: dict[Any, tuple[_Worker, int]] = {}
        for number, task in itertools.islice(waiting, len(self._workers)):
            worker = next(self._turns)
            worker.send("read", task)
            busy[worker.connection] = worker, number
        while busy:
            for connection in wait(list(busy)):
                worker, number = busy.pop(connection)
                answers[number] = worker.receive()
                if following := next(waiting, None):
                    worker.send("read", following[1])
                    busy[worker.connection] = worker, following[0]
        return [_unwrap(answer) for answer in answers]

    def close(self) -> None:
        """End the workers and wait for them."""
        for worker in self._workers:
            worker.close()


Workers = InProcessWorkers
"""Either kind of workers."""


class _Worker:
    """One worker process and the connection to it."""

    def __init__(self, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            command = python_command("-m", __name__, str(descriptor))
            self._process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=_STANDARD_ERROR,  # what a source prints is no output of the driver
            )
        self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, kind: str, arguments: tuple[Any, ...]) -> None:
        try:
            self.connection.send((kind, arguments))
        except OSError as error:
            raise TaskFailedError(f"the worker process {self.pid} has ended") from error

    def receive(self) -> tuple[bool, Any]:
        try:
            answer: tuple[bool, Any] = self.connection.recv()
        except (EOFError, OSError) as error:
            raise TaskFailedError(f"the worker process {self.pid} ended during a task") from error
        return answer

    def close(self) -> None:
        self.connection.close()
        self._process.wait()


_KINDS: dict[str, Callable[..., Any]] = {
    "create": _create,
    "plan": lambda source, streaming: _plan(source, streaming=streaming),
    "read": _read,
}


def _perform(kind: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Do one piece of work; returns whether it went well, and the answer or the traceback."""
    try:
        return True, _KINDS[kind](*arguments)
    except Exception:  # noqa: BLE001 - whatever a source raises goes back as text, as in Spark
        return False, traceback.format_exc()


def _unwrap(answer: tuple[bool, Any]) -> Any:
    well, value = answer
    if not well:
        raise TaskFailedError(value)
    return value


def _requests(connection: Connection) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Requests until the other side is gone."""
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


def main(descriptor: int) -> None:
    """Serve requests from a socket until it is closed."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    for kind, arguments in _requests(connection):
        connection.send(_perform(kind, arguments))


if __name__ == "__main__":
    # Under its real name, so that what is pickled here is known there.
    from tests.support.spark_protocol.worker import main as serve

    serve(int(sys.argv[1]))
