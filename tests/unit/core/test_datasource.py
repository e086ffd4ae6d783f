"""The columns of a source are its own: a schema of the user is refused where Spark makes a reader."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from connectors.core.datasource import BatchReader, ReadingSource, StreamReader
from connectors.core.errors import OptionError
from connectors.kafka.datasource import KafkaDataSource
from connectors.kinesis.datasource import KinesisDataSource
from connectors.pubsub.datasource import PubSubDataSource
from tests.support.spark_protocol.driver import is_running
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

SOURCES: list[tuple[type[DataSource], dict[str, Any]]] = [
    (KafkaDataSource, {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders"}),
    (KafkaDataSource, {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders", "includeheaders": "true"}),
    (KinesisDataSource, {"streamname": "orders", "region": "eu-west-1"}),
    (PubSubDataSource, {"projectid": "shop", "subscriptionid": "orders", "spoollocation": "/spool"}),
]


@pytest.mark.parametrize(("kind", "options"), SOURCES)
def test_the_sources_own_schema_is_taken_and_any_other_refused(kind: type[DataSource], options: dict[str, str]) -> None:
    source = kind(options)
    own = source.schema()
    assert isinstance(own, StructType)
    nullable = StructType([StructField(each.name, each.dataType) for each in own])
    retyped = StructType([StructField(own[0].name, LongType()), *own.fields[1:]])
    for make in (source.streamReader, source.reader):
        make(own)
        make(nullable)  # Spark may hand over such a copy
        for other in (
            StructType([]),
            StructType([*own.fields, StructField("more", StringType())]),
            StructType(own.fields[:-1]),
            StructType(own.fields[::-1]),
            retyped,
        ):
            with pytest.raises(OptionError) as caught:
                make(other)
            assert caught.value.code == "SCHEMA_NOT_SUPPORTED"
            assert f"{kind.name()} source has a fixed schema and cannot be set with a custom one" in caught.value.what


class CountedFormat:
    """Notes each time that options are parsed."""

    format = "counted"
    imports = nullcontext

    def __init__(self) -> None:
        self.parsed: list[bool | None] = []

    def read_options(self, raw: Mapping[str, str], *, streaming: bool | None) -> dict[str, str]:
        self.parsed.append(streaming)
        return {**raw, "secret": "read from a file"}


class CountedStreamReader(StreamReader[dict[str, str], Any]):
    connector = CountedFormat()
    open_stream = is_bounded = latestOffset = partitions = None  # type: ignore[assignment]

    def max_rows(self) -> int:
        return int(self.options["limit"])


class CountedBatchReader(BatchReader[Any]):
    connector = CountedStreamReader.connector
    partitions = None  # type: ignore[assignment]


class CountedSource(ReadingSource):
    connector = CountedStreamReader.connector

    def new_stream_reader(self) -> CountedStreamReader:
        return CountedStreamReader(self.options)

    def new_batch_reader(self) -> CountedBatchReader:
        return CountedBatchReader(self.options)

    def row_schema(self, options: dict[str, str]) -> StructType:
        return StructType([StructField(name, StringType()) for name in sorted(options)])


def test_options_are_parsed_once_for_load_and_once_where_a_reader_is_made_and_stay_out_of_tasks() -> None:
    source = CountedSource({"limit": "7"})
    schema = source.schema()
    assert CountedSource.connector.parsed == [None]
    for make, streaming in ((source.streamReader, True), (source.reader, False)):
        CountedSource.connector.parsed.clear()
        reader = make(schema)
        assert reader.options == reader.options == {"limit": "7", "secret": "read from a file"}
        assert CountedSource.connector.parsed == [streaming]
        assert b"read from a file" not in pickle.dumps(reader)
        assert vars(pickle.loads(pickle.dumps(reader))) == {"_options": {"limit": "7"}}


SOURCE_PROCESS = """
import os, time
from connectors.core.datasource import StreamReader

class Reader(StreamReader):
    latestOffset = partitions = max_rows = is_bounded = None

    def __init__(self):
        pass

    def open_stream(self):
        print(os.getpid(), flush=True)
        time.sleep(600)  # a call of an SDK that nobody answers

Reader().stream
"""


def test_a_source_process_ends_with_the_jvm_that_started_it_whatever_call_it_is_in() -> None:
    jvm = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen([sys.executable, "-c", jvm, SOURCE_PROCESS], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        source = int(parent.stdout.readline())
        assert is_running(source)
        parent.kill()
        wait_for(lambda: not is_running(source))
