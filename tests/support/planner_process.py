"""The processes that Spark's driver starts to build a source, plan a read, or commit a write, run over pipes.

`run_planner` runs PySpark's own worker as a whole, so the end of an answer is what the JVM reads: the number of
accumulator updates, and the updates.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.serializers import CPickleSerializer, SpecialLengths, UTF8Deserializer, read_int, write_int
from pyspark.serializers import write_with_length as _write
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import BinaryType, StructField, StructType

from connectors.core.processes.interpreter import python_command, python_environment

_PARTITION = StructType([StructField("partition", BinaryType())])


class PlainSource(DataSource):
    """A source that is none of this pack."""

    @classmethod
    def name(cls) -> str:
        return "plain"

    def schema(self) -> StructType:
        return StructType([StructField("value", BinaryType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's interface
        return DataSourceStreamReader()


@dataclass(frozen=True)
class Created:
    """What Spark holds of a source that was built, and what else its process has sent."""

    pickled: bytes
    schema: str
    updates: dict[int, Any]


def run_planner(worker: str, request: bytes, conf: Mapping[str, str] | None = None) -> bytes:
    """Return all that a worker of ``pyspark.sql.worker`` answers; what it logs goes to standard error."""
    prelude = io.BytesIO()
    _write(f"{sys.version_info.major}.{sys.version_info.minor}".encode(), prelude)
    _write(b"/nowhere", prelude)
    write_int(0, prelude)  # no further files to put on the path
    prelude.write(b"\0")  # no broadcast needs decryption,
    write_int(0, prelude)  # ... and there is none
    write_int(len(conf or {}), prelude)
    for text in (text for pair in (conf or {}).items() for text in pair):
        _write(text.encode(), prelude)
    end = io.BytesIO()
    write_int(SpecialLengths.END_OF_STREAM, end)
    command = python_command("-m", __name__, worker)
    whole = prelude.getvalue() + request + end.getvalue()
    done = subprocess.run(command, input=whole, capture_output=True, check=False, timeout=120, env=python_environment())
    sys.stderr.write(done.stderr.decode())
    assert done.returncode == 0, (done.stderr.decode(), done.stdout)
    return done.stdout


def create(source: type[DataSource], options: Mapping[str, str], conf: Mapping[str, str] | None = None) -> Created:
    """Build a source, as ``load()`` does."""
    request = io.BytesIO()
    CPickleSerializer()._write_with_length(source, request)
    _write(source.name().encode(), request)
    request.write(b"\0")  # no schema of the user's
    write_int(len(options), request)
    for text in (text for pair in options.items() for text in pair):
        _write(text.encode(), request)
    answer = io.BytesIO(run_planner("create_data_source", request.getvalue(), conf))
    pickled = answer.read(read_int(answer))
    assert read_int(answer) == 0, "the schema is no DDL text"
    schema = UTF8Deserializer().loads(answer)
    return Created(pickled, schema, updates(answer))


def updates(answer: Any) -> dict[int, Any]:
    """Return the accumulator updates that the rest of an answer holds, and see that nothing follows them."""
    sent = dict(CPickleSerializer()._read_with_length(answer) for _ in range(read_int(answer)))
    assert read_int(answer) == SpecialLengths.END_OF_STREAM
    return sent


def plan_stream(created: Created) -> bytes:
    """Plan the reads of a stream."""
    request = io.BytesIO()
    for block in (created.pickled, _PARTITION.json().encode(), created.schema.encode()):
        _write(block, request)
    write_int(10_000, request)
    request.write(bytes([False, True, True]))  # no filters; a stream; binary columns are bytes
    return run_planner("plan_data_source_read", request.getvalue())


def push_filters(source: DataSource) -> bytes:
    """Offer a batch read its filters, of which there are none."""
    request = io.BytesIO()
    CPickleSerializer()._write_with_length(source, request)
    _write(source.schema().json().encode(), request)
    _write(b"[]", request)
    write_int(10_000, request)
    request.write(b"\1")  # binary columns are bytes
    return run_planner("data_source_pushdown_filters", request.getvalue())


def commit_stream(source: DataSource, schema: StructType) -> bytes:
    """Commit a batch of a sink of streams."""
    request = io.BytesIO()
    CPickleSerializer()._write_with_length(source, request)
    _write(schema.json().encode(), request)
    request.write(b"\0")
    write_int(0, request)
    request.write(bytes(9))  # batch 0, and no abort
    return run_planner("python_streaming_sink_runner", request.getvalue())


def plan_write(source: type[DataSource], options: Mapping[str, str], schema: StructType, *, streaming: bool) -> bytes:
    """Plan a write."""
    request = io.BytesIO()
    CPickleSerializer()._write_with_length(source, request)
    _write(source.name().encode(), request)
    _write(schema.json().encode(), request)
    _write(_PARTITION.json().encode(), request)
    write_int(len(options), request)
    for text in (text for pair in options.items() for text in pair):
        _write(text.encode(), request)
    request.write(bytes([False, streaming, True]))
    return run_planner("write_into_data_source", request.getvalue())


def commit_batch(writer: Any) -> bytes:
    """Commit a batch write."""
    request = io.BytesIO()
    CPickleSerializer()._write_with_length(writer, request)
    write_int(0, request)
    request.write(b"\0")
    return run_planner("commit_data_source_write", request.getvalue())


def sends_no_update(answer: bytes) -> bool:
    """Return whether an answer ends without an accumulator update."""
    end = io.BytesIO()
    write_int(0, end)
    write_int(SpecialLengths.END_OF_STREAM, end)
    return answer.endswith(end.getvalue())


if __name__ == "__main__":
    output = sys.stdout.buffer
    sys.stdout = sys.stderr
    import_module(f"pyspark.sql.worker.{sys.argv[1]}").main(sys.stdin.buffer, output)
    output.flush()
