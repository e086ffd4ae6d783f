"""librdkafka's mock cluster: Kafka's protocol without a broker, in milliseconds, for what it does honestly.

    with MockKafka() as kafka:
        kafka.create_topic("orders", 2)
        ...                                   # clients use kafka.endpoint
        kafka.fail("Fetch", [-195])           # the next answer to a Fetch is an error

Honest: produce, fetch, metadata, the earliest and latest offsets, headers, groups. Not honest, so use
a real broker for them: offsets by time (always none), transactions (aborted records are seen,
markers are dropped, nobody is fenced), topics that are made, grown or deleted by the admin API, retention by time,
compaction.
A topic that is asked for is there, with four partitions.

`MockKafkaProcess` runs one in a process of its own, which can be made to stall.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from connectors.core.errors import ServiceUnavailableError
from connectors.kafka.native import client_extension
from connectors.testing.process import ServerProcess, announce, server_parser, stop_event

__all__ = ["MockKafka", "MockKafkaProcess"]

_PRODUCER: Final = 0
_TEXT_BYTES: Final = 512
_REQUESTS: Final = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Metadata": 3,
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "InitProducerId": 22,
}


def _library() -> Any:
    library: Any = ctypes.CDLL(str(client_extension()))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", ctypes.c_int, [pointer, text, text, pointer, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [ctypes.c_int, pointer, pointer, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, ctypes.c_int]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", ctypes.c_int, [pointer, text, ctypes.c_int, ctypes.c_int]),
        ("rd_kafka_mock_push_request_errors_array", None, [pointer, ctypes.c_int16, ctypes.c_size_t, pointer]),
        ("rd_kafka_mock_broker_set_rtt", ctypes.c_int, [pointer, ctypes.c_int32, ctypes.c_int]),
        ("rd_kafka_mock_start_request_tracking", None, [pointer]),
        ("rd_kafka_mock_clear_requests", None, [pointer]),
        ("rd_kafka_mock_get_requests", pointer, [pointer, pointer]),
        ("rd_kafka_mock_request_api_key", ctypes.c_int16, [pointer]),
        ("rd_kafka_mock_request_destroy_array", None, [pointer, ctypes.c_size_t]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockKafka:
    """A mock cluster in this process; a context manager that ends it.

    Args:
        brokers: how many.

    Raises:
        ServiceUnavailableError: librdkafka did not make it.
    """

    def __init__(self, brokers: int = 1) -> None:
        self._library = _library()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        configuration = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(configuration, b"log_level", b"0", None, 0)
        self._client = self._library.rd_kafka_new(_PRODUCER, configuration, text, _TEXT_BYTES)
        self._cluster = self._client and self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        if not self._cluster:
            raise ServiceUnavailableError("TESTING_SERVER_NOT_STARTED", f"No mock cluster: {text.value.decode()}")
        self.endpoint: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        """What clients begin with: host:port, separated by commas."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic.

        Raises:
            ValueError: it already exists.
        """
        if self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1):
            raise ValueError(f"the topic {name} already exists")

    def fail(self, request: str, errors: Sequence[int]) -> None:
        """Answer the next requests of a kind with errors, by their number in librdkafka; 0 answers one well.

        Args:
            request: such as ``Fetch``.
            errors: one for each of the next requests.
        """
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, _REQUESTS[request], len(errors), ctypes.addressof(array)
        )

    def delay(self, milliseconds: int, broker: int = 1) -> None:
        """Delay each response of a broker; the first broker is 1."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds)

    def count_requests(self) -> None:
        """Start to count requests from zero."""
        self._library.rd_kafka_mock_start_request_tracking(self._cluster)
        self._library.rd_kafka_mock_clear_requests(self._cluster)

    def requests(self, request: str) -> int:
        """How many requests of a kind have come since the last `count_requests`.

        Args:
            request: such as ``Fetch``.
        """
        count = ctypes.c_size_t()
        found = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.addressof(count))
        each: list[int] = [*(ctypes.c_void_p * count.value).from_address(found)] if found else []
        kinds = [self._library.rd_kafka_mock_request_api_key(one) for one in each]
        self._library.rd_kafka_mock_request_destroy_array(found, count.value)
        return kinds.count(_REQUESTS[request])

    def stop(self) -> None:
        """End it; does nothing the second time."""
        if self._cluster:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._client)
            self._cluster = None


class MockKafkaProcess(ServerProcess):
    """A mock cluster in a process of its own; a context manager that ends it."""

    def __init__(self) -> None:
        super().__init__(__name__, ["--exit-with-parent"])


def main(arguments: list[str] | None = None) -> int:
    """Run a mock cluster until SIGTERM or SIGINT."""
    parser = server_parser(
        "kafka-mock", "librdkafka's mock cluster, on 127.0.0.1.", "only 0: librdkafka chooses a free one"
    )
    command_line = parser.parse_args(arguments)
    if command_line.port:
        parser.error("librdkafka chooses the port of its mock cluster: leave --port out, or take kafka")
    stopping = stop_event(with_parent=command_line.exit_with_parent)
    with MockKafka() as kafka:
        announce(
            kafka.endpoint,
            {"kafka.bootstrap.servers": kafka.endpoint},
            {"KAFKA_BOOTSTRAP_SERVERS": kafka.endpoint},
        )
        stopping.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
