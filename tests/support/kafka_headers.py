"""Sends a record to topic ``t`` whose header has a key of any bytes, which confluent-kafka does not."""

from __future__ import annotations

import ctypes

from connectors.kafka.native import client_extension
from connectors.kafka.native.library import library, new_client
from connectors.testing.kafka.mock import MockKafka


class _Argument(ctypes.Structure):
    """rd_kafka_vu_t of librdkafka, with what a pointer and a length need."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_size_t),
        ("rest", ctypes.c_char * 48),
    )


def send_header(mock: MockKafka, key: bytes) -> None:
    """Send a record with a header whose key is any bytes, which confluent-kafka does not."""
    functions, pointer = ctypes.CDLL(str(client_extension())), ctypes.c_void_p
    functions.rd_kafka_headers_new.restype = functions.rd_kafka_produceva.restype = pointer
    text = (ctypes.c_char_p, ctypes.c_ssize_t)
    functions.rd_kafka_header_add.argtypes = [pointer, *text, *text]
    functions.rd_kafka_produceva.argtypes = [pointer, pointer, ctypes.c_size_t]
    headers = functions.rd_kafka_headers_new(ctypes.c_size_t(1))
    assert functions.rd_kafka_header_add(headers, key, len(key), b"1", 1) == 0
    topic, value = ctypes.create_string_buffer(b"t"), ctypes.create_string_buffer(b"v")
    arguments = (_Argument * 3)(
        _Argument(1, ctypes.addressof(topic)),  # RD_KAFKA_VTYPE_TOPIC
        _Argument(4, ctypes.addressof(value), 1),  # RD_KAFKA_VTYPE_VALUE
        _Argument(10, headers),  # RD_KAFKA_VTYPE_HEADERS, which go over to the client
    )
    client = new_client(0, {"bootstrap.servers": mock.endpoint})
    assert not functions.rd_kafka_produceva(client, arguments, 3)
    assert library().rd_kafka_flush(client, 10_000) == 0
    library().rd_kafka_destroy(client)
