"""The program that `connectors.kafka.client.fast_path` runs: it imports the source and the sink, which import that."""

from __future__ import annotations

import ctypes
import resource
from typing import Final

import numpy as np
import pyarrow as pa

from connectors.kafka.client.librdkafka import library, new_client
from connectors.kafka.offsets import TopicPartition
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.sink.native_writer import NativeSink
from connectors.kafka.sink.rows import Columns
from connectors.kafka.source.native_records import NativeSource

_READ_SECONDS: Final = 10.0
_TOPIC: Final = "fast-path"
_VALUES: Final = (b"", None, b"short", b"x" * 12, b"y" * 13, bytes(range(256)) * 40)


def check_fast_path() -> None:
    """Write records to a mock cluster of librdkafka and read them, both on the fast path; raises if others come."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    functions = library()
    mock = new_client(0, {"test.mock.num.brokers": "1", "log_level": "0"})
    cluster, servers = functions.rd_kafka_handle_mock_cluster, functions.rd_kafka_mock_cluster_bootstraps
    cluster.restype, cluster.argtypes = servers.restype, servers.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    servers.restype = ctypes.c_char_p
    endpoint = servers(cluster(mock)).decode()
    settings = ClientSettings((("bootstrap.servers", endpoint), ("log_level", "0"), ("enable.idempotence", "true")))
    columns = {"key": [*reversed(_VALUES)], "value": [*_VALUES]}
    rows = len(_VALUES)
    batch = pa.RecordBatch.from_pydict(
        {name: pa.array(values, pa.binary()) for name, values in columns.items()}
        | {"partition": pa.array(np.zeros(rows, np.int32))}
    )
    sink = NativeSink(settings)
    sink.send(batch, Columns(_TOPIC, key=True, partition=True, headers=False, timestamp=False))
    sink.finish()
    sink.discard()
    source = NativeSource(settings, {"group.id": "check", "fetch.wait.max.ms": "5"})
    partition = TopicPartition(_TOPIC, 0)
    source.assign(partition, 0)
    fetched = source.fetch(rows, _READ_SECONDS)
    read = fetched.batch([fetched], partition, headers=True).to_pydict()
    fetched.free()
    source.close()
    functions.rd_kafka_destroy(mock)
    if {name: read[name] for name in columns} != columns or read["offset"] != [*range(rows)]:
        raise ValueError("other records came back")
