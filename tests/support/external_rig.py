"""A rig whose query has ``fetch=external``: ``connectors fetch`` fetches, and outlives the reader."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tests.support.fetch_program import FetchProgram
from tests.support.pubsub_rig import PubSubRig


class ExternalRig(PubSubRig):
    """A `PubSubRig` with fetchers outside of the query; a context manager that ends them."""

    _program: FetchProgram | None = None
    _failpoints = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._program is not None:
            self._program.kill()

    def options(self, **changes: str) -> dict[str, str]:
        """The options of query and fetchers."""
        return super().options(**{"fetch": "external", "startTimeout": "2s", **changes})

    def portion_of(self, messages: int) -> int:
        """All of them, if not too many: as the reader lists an object store each 5 s, portions would take minutes."""
        return messages if messages <= 1200 else super().portion_of(messages)

    def before_crash(self, failpoints: str, options: dict[str, str]) -> None:
        """Have fetchers with these failpoints: those that run are killed, with their program, if they have others."""
        if self._program is not None and failpoints == self._failpoints:
            return
        if self._program is not None:
            self._program.kill()
        self._failpoints = failpoints
        environment = {"CONNECTORS_FAILPOINTS": failpoints}
        self._program = FetchProgram(self.folder, self.options(**options), environment=environment)
        self._program.start()
