"""A run of the demo whose publisher fails is no run: its error comes out, and what was created is removed."""

from __future__ import annotations

import errno
import queue
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from connectors.cli.demo.count import Message
from connectors.cli.demo.plan import DemoPlan, Query, Service
from connectors.cli.demo.run import run_demo
from connectors.core.errors import ServiceUnavailableError


class Failing(Service):
    """A service whose portions after the first ones cannot be published."""

    def __init__(self, folder: Path, error: Exception, portions: int) -> None:
        super().__init__(DemoPlan(folder, messages=5_000, kills=0))
        self._error, self._portions = error, portions
        self.removed = False

    def open(self, stack: ExitStack) -> None:
        self.removing(stack, "all", self._remove)

    def _remove(self) -> None:
        self.removed = True

    def queries(self) -> list[Query]:
        return [Query("files", "rate", {}, ("CAST(value AS STRING)", "''", "''"))]

    def publish(self, messages: Sequence[Message]) -> None:  # noqa: ARG002 - as the service declares it
        if not self._portions:
            raise self._error
        self._portions -= 1


@pytest.mark.parametrize("portions", [0, 2])
@pytest.mark.parametrize(
    "error",
    [
        queue.Empty(),
        OSError(errno.ENOSPC, "no space left"),
        RuntimeError("a bug"),
        ServiceUnavailableError("KAFKA_UNAVAILABLE", "Kafka has not confirmed the records", "orders"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_publisher_ends_the_run_and_what_was_created_is_removed(
    error: Exception, portions: int, tmp_path: Path
) -> None:
    service = Failing(tmp_path, error, portions)
    with pytest.raises(type(error)) as raised:
        run_demo(service, lambda _: None)
    assert raised.value is error
    assert service.removed
