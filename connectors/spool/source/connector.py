"""What a source on a spool says of its service. Everything else is the same for all of them, and is the spool's."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from connectors.spool.options import SpoolOptions, parse_spool_options, place_spool
from connectors.spool.segments.rows import RowSchema
from connectors.spool.segments.segment import SpoolRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

S = TypeVar("S", bound=SpoolOptions)


@dataclass(frozen=True, slots=True)
class Feed:
    """What the fetchers of one source need to know, and what its service promises.

    Attributes:
        settings: a JSON object for the target. It goes to the fetchers by a pipe, so it may hold secrets.
        horizon: seconds for which ids are stored, from the publish time and since a message was read: as long as the
            service may deliver it again. The option ``dedupHorizon`` replaces it.
        ordered: whether the rows keep an order. Then one process fetches, and each begins when everything that earlier
            ones have received is in the ledger or was handed back (rule R3).
        seek: where the options move the source; empty when it stays.
    """

    settings: Mapping[str, Any] = field(repr=False)
    horizon: float
    ordered: bool = False
    seek: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpoolStart:
    """The start of a query, before anything is fetched.

    Attributes:
        is_new: whether the spool was made by this start, so that nothing was fetched into it before.
        seek: moves the source once for each place; see `connectors.spool.stream.micro_batch.carry_out_seek`.
    """

    is_new: bool
    seek: Callable[[Mapping[str, Any], Callable[[Mapping[str, Any]], None]], bool]


class SpoolConnector(ABC, Generic[S]):
    """A Spark source for a service that forgets what was acknowledged. An instance has no state.

    It is pickled into tasks by the name of its class, which every executor can import.

    Attributes:
        format: the name for ``spark.readStream.format``.
        options: the class of its options, a frozen dataclass.
        rows: the columns that its target decodes, and their version.
        target: the `FetchTarget` of the service as ``MODULE:CLASS``. It is called with `Feed.settings` and a
            `FetchContext`, in a process of its own.
        offset_column, source_column, time_column: the columns with the position, the name of the source and the publish
            time; filters of a batch read use them; empty if there is none.
    """

    format: ClassVar[str]
    options: ClassVar[type[Any]]
    rows: ClassVar[RowSchema]
    target: ClassVar[str]
    offset_column: ClassVar[str] = ""
    source_column: ClassVar[str] = ""
    time_column: ClassVar[str] = ""

    @abstractmethod
    def sources(self, options: S) -> tuple[str, ...]:
        """Return the full names of the sources of one spool, in a fixed order: rows hold their indexes."""

    @abstractmethod
    def feeds(self, options: S, start: SpoolStart | None) -> Sequence[Feed]:
        """Return what to fetch for each of the `sources`. It may call the service, and wait.

        `start` is None for fetchers outside of the query (``fetch=external``), which create and move nothing.

        Raises:
            ConnectorError: an `AccessDeniedError`, `CredentialsError` or `SourceGoneError` lets the query read what the
                spool has, any other permanent one ends it at once.
        """

    def read_options(self, raw: Mapping[str, str], *, streaming: bool | None) -> S:
        """Parse the options as Spark passes them; raises `OptionError`."""
        options: S = parse_spool_options(self.options, raw, os.environ, self.format, streaming=streaming)
        return place_spool(options, raw, os.environ, self.format, " ".join(self.sources(options)))

    def imports(self) -> AbstractContextManager[None]:
        """Return a context for reading in a task, where a package may be missing."""
        return nullcontext()

    def has_own_ids(self, options: S) -> bool:  # noqa: ARG002 - a connector may need them
        """Return whether the target gives ids of its own (`Block.other_ids`), so that equal messages are expected."""
        return False

    def view(self, options: S) -> Any:  # noqa: ARG002 - as above
        """Return what `columns` needs of the options; it goes to the tasks, so it holds no secret."""
        return None

    def schema(self, options: S) -> StructType:  # noqa: ARG002 - as above
        """Return the columns as Spark sees them: those of `rows`, then ``offset``, the position in the spool."""
        from connectors.core.processes.spark import spark_schema  # noqa: PLC0415 - fetchers do without Spark

        return spark_schema(self.rows.columns.append(pa.field("offset", pa.int64())))

    def columns(self, rows: SpoolRows, sources: tuple[str, ...], view: Any) -> pa.RecordBatch:  # noqa: ARG002 - as above
        """Return rows of the spool in the columns of `schema`; a pure function, called in tasks."""
        return rows.with_columns({})
