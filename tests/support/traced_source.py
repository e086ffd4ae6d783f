"""A source that notes how Spark calls it: as many rows as the file ``wanted`` says, and the calls in ``calls``.

Both files are in the folder that the option ``folder`` names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from connectors.core.processes.spark import ADMISSION_CONTROL, ReadMaxRows

LIMIT = 1000


class TracedReader(DataSourceStreamReader):
    """A stream of numbers from 0, whose offset is the number of rows so far.

    Args:
        folder: with both files.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _note(self, *call: Any) -> None:
        with (self._folder / "calls").open("a") as file:
            file.write(json.dumps(call) + "\n")

    def _wanted(self) -> dict[str, int]:
        return {"row": int((self._folder / "wanted").read_text())}

    def initialOffset(self) -> dict[str, int]:
        """Return no rows."""
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # that of Spark before 4.2
        """Return the rows that are wanted."""
        self._note("latestOffset")
        return self._wanted()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one."""
        self._note("partitions", start["row"], end["row"])
        return [InputPartition((start["row"], end["row"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield the numbers."""
        yield from ((number,) for number in range(*partition.value))


class TracedReaderWithStart(TracedReader):
    """The same for a Spark that says where a batch begins."""

    def getDefaultReadLimit(self) -> Any:
        """Return a limit, without which Spark does not say it."""
        return ReadMaxRows(LIMIT)

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # type: ignore[override]
        """Return the rows that are wanted."""
        self._note("latestOffset", start["row"], limit.max_rows)
        return self._wanted()


class TracedSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "traced"

    def schema(self) -> str:
        """Return one column."""
        return "row LONG"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002 - Spark's interface
        """Return the reader for this Spark."""
        return (TracedReaderWithStart if ADMISSION_CONTROL else TracedReader)(self.options["folder"])
