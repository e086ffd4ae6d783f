"""The columns of a source are its own: a schema of the user is refused where Spark makes a reader."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from connectors.core.errors import OptionError
from connectors.kafka.datasource import KafkaDataSource
from connectors.kinesis.datasource import KinesisDataSource
from connectors.pubsub.datasource import PubSubDataSource
from connectors.testing.spark_protocol.driver import is_running
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
