"""Offsets of groups, as other clients may have committed them."""

from __future__ import annotations

import ctypes

import pytest

from connectors.core.errors import OffsetError
from connectors.kafka.client.group_offsets import read_group_offset
from connectors.kafka.native import client_extension
from connectors.kafka.native.library import new_client
from connectors.kafka.options.client import ClientSettings
from connectors.kafka.sink.commit_markers import Marker
from connectors.testing.kafka.mock import MockKafka


class _TopicPartition(ctypes.Structure):
    """rd_kafka_topic_partition_t of librdkafka."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("error", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


def _commit(mock: MockKafka, group: str, offset: int, metadata: bytes) -> None:
    """Commit an offset with any bytes as its metadata, which confluent-kafka does not."""
    functions, pointer = ctypes.CDLL(str(client_extension())), ctypes.c_void_p
    functions.rd_kafka_topic_partition_list_new.restype = pointer
    functions.rd_kafka_topic_partition_list_add.restype = ctypes.POINTER(_TopicPartition)
    functions.rd_kafka_topic_partition_list_add.argtypes = [pointer, ctypes.c_char_p, ctypes.c_int32]
    functions.rd_kafka_commit.argtypes = [pointer, pointer, ctypes.c_int]
    functions.rd_kafka_destroy.argtypes = [pointer]
    offsets = functions.rd_kafka_topic_partition_list_new(1)
    entry = functions.rd_kafka_topic_partition_list_add(offsets, b"t", 0).contents
    entry.offset = offset
    content = ctypes.create_string_buffer(metadata)
    entry.metadata, entry.metadata_size = ctypes.addressof(content), len(metadata)
    client = new_client(1, {"bootstrap.servers": mock.endpoint, "group.id": group})
    assert functions.rd_kafka_commit(client, offsets, 0) == 0
    functions.rd_kafka_destroy(client)


def test_metadata_of_another_client_that_is_no_text_is_a_foreign_marker() -> None:
    with MockKafka() as mock:
        mock.create_topic("t", 1)
        _commit(mock, "g", 5, b"caf\xe9")
        settings = ClientSettings((("bootstrap.servers", mock.endpoint),))
        offset, metadata = read_group_offset(settings, "g", "t")
    assert offset == 5
    with pytest.raises(OffsetError, match="KAFKA_MARKER_FOREIGN"):
        Marker.read(offset, metadata, "g")
