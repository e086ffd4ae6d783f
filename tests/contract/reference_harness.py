"""The harness of the reference source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.contract.harness import SourceHarness


class ReferenceHarness(SourceHarness):
    """A log file; lines are published by appending them."""

    name = "reference"
    source = "tests.contract.reference_source:ReferenceSource"
    key = "value"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log = folder / "log"
        self.log.touch()
        self.published = 0

    def options(self) -> dict[str, str]:
        return {"log": str(self.log), "partitionRows": "3"}

    def latest_options(self) -> dict[str, str]:
        return self.options() | {"startAt": "latest"}

    def limited_options(self, rows: int) -> dict[str, str]:
        return self.options() | {"maxRows": str(rows)}

    def publish(self, count: int) -> list[str]:
        values = [f"value {number}" for number in range(self.published, self.published + count)]
        self.published += count
        with self.log.open("a") as log:
            log.write("".join(f"{value}\n" for value in values))
        return values

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        stall = Path(f"{self.log}.stall")
        stall.touch()
        try:
            yield
        finally:
            stall.unlink()
