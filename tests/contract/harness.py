"""What the contract suite needs to know of a connector, and how it makes the connector's service do things."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar


class SourceHarness(ABC):
    """One fresh source (a topic, a stream, a log) on a service of its own, with nothing published yet.

    A new one is made for every test, in an empty folder. All readers a test makes are of this one source; what must
    be durable for them (a spool, say) lies in the folder, so that a restart finds it.

    Args:
        folder: for anything the source keeps.
    """

    name: ClassVar[str]
    """The name of the connector, shown in the ids of the tests."""
    source: ClassVar[str]
    """``"module:Class"`` of the data source."""
    key: ClassVar[str]
    """The column that holds what `publish` returns, one value a row."""
    batch_read: ClassVar[bool] = True
    """Whether there is a batch read."""
    long: ClassVar[bool] = False
    """Whether it is left to ``./dev chaos long``: another way of a connector that `./dev test` runs already."""

    patience: float = 60.0
    """Seconds within which anything the tests wait for must come; no measure of speed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def options(self) -> dict[str, str]:
        """Options under which a new query starts with the first record, without a limit."""

    @abstractmethod
    def latest_options(self) -> dict[str, str]:
        """Options under which a new query starts with what is published after its first batch was planned."""

    @abstractmethod
    def limited_options(self, rows: int) -> dict[str, str]:
        """As `options`, with a limit of rows for each batch."""

    def batch_options(self) -> dict[str, str]:
        """Options of a batch read that gives every row a query with `options` has read."""
        return self.options()

    @abstractmethod
    def publish(self, count: int) -> list[Any]:
        """Publish so many records, and return the value of `key` that each row must have; all values differ."""

    @abstractmethod
    def stalled(self) -> AbstractContextManager[None]:
        """Within, the service answers no request; requests made meanwhile may hang or fail."""

    def close(self) -> None:  # noqa: B027 - a harness may have nothing to end
        """End the service."""
