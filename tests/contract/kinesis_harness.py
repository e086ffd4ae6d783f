"""The harness of the Kinesis source."""

from __future__ import annotations

import contextlib
import functools
import itertools
from pathlib import Path

from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.contract.harness import SourceHarness
from tests.support.kinesis_rig import FAST, SOURCE

_numbers = itertools.count()


@functools.cache
def _server() -> KinesisServerProcess:
    """One server for all tests; it ends with this process. A process of its own, so that it can be made to stall."""
    return start_server_process()


class KinesisHarness(SourceHarness):
    """A stream of three shards of our own server, of which two share a task."""

    name = "kinesis"
    source = SOURCE
    key = "data"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = _server()
        self.stream = f"orders-{next(_numbers)}"
        self.server.create_stream(self.stream, 3)
        self.published = itertools.count()

    def options(self) -> dict[str, str]:
        return FAST | {
            "streamName": self.stream,
            "endpointUrl": self.server.url,
            "initialPosition": "trim_horizon",
            "maxFetchRate": "2",
            "minPartitions": "2",
        }

    def latest_options(self) -> dict[str, str]:
        self.server.jump(5)  # latest begins a little earlier: the service tells its time in whole seconds
        return self.options() | {"initialPosition": "latest"}

    def limited_options(self, rows: int) -> dict[str, str]:
        return self.options() | {"maxRecordsPerTrigger": str(rows)}

    def publish(self, count: int) -> list[bytes]:
        values = [b"value %d" % number for number in itertools.islice(self.published, count)]
        self.server.put(self.stream, [(f"key-{value.decode()}", value) for value in values])
        return values

    def stalled(self) -> contextlib.AbstractContextManager[None]:
        return self.server.process.stalled()


class KinesisEfoHarness(KinesisHarness):
    """The same by subscriptions of a consumer."""

    name = "kinesis-efo"
    batch_read = False
    long = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server.set_takeover(0)

    def options(self) -> dict[str, str]:
        return super().options() | {
            "consumerMode": "efo",
            "consumerName": "contract",
            "spoolLocation": str(self.folder / "spool"),
        }
