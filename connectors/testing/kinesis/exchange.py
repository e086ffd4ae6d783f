"""One request and its answer, whatever the version of HTTP that carries them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Exchange", "Handler", "Request"]


@dataclass(frozen=True)
class Request:
    """A request; the names of its headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Exchange(ABC):
    """How a request is answered: `answer` at once, or `begin`, any number of `send`, and `finish`."""

    def __init__(self) -> None:
        self.when_closed: Callable[[], None] | None = None
        """Called once if the client goes away, or the connection is cut, before the answer is complete."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer."""
        self.begin(status, {**headers, "content-length": str(len(body))})
        self.send(body)
        self.finish()

    @abstractmethod
    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send a part of the body."""

    @abstractmethod
    def finish(self) -> None:
        """End the body."""

    @abstractmethod
    def cut(self) -> None:
        """Cut the connection, with all that it carries; what was sent before goes out if that needs no wait."""

    @abstractmethod
    def unsent_bytes(self) -> int:
        """How much of what was sent still waits for the client to read."""


Handler = Callable[[Request, Exchange], None]
"""What gets the requests."""
