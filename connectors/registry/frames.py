"""What frames of all formats share: the magic byte with the schema's id or GUID, in the message or in Kafka's headers.

    00  schema id (4 bytes, big endian)  ...
    00  00000000  schema id (4 bytes)    ...
    01  schema GUID (16 bytes)           ...

The second is the id of 8 bytes that Apicurio's serializers wrote before version 3: no registry gives out the id 0.
What follows is the format's own: protobuf has message indexes before the message, Avro and JSON the message alone.
Newer clients can put all of it into a Kafka header, and the message stands alone.
(confluent-kafka-python, ``schema_registry/common/serde.py``.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from connectors.core.errors import ConnectorError, SourceGoneError
from connectors.core.functions.bad_rows import BadRowError, headers_type_error
from connectors.core.functions.columns import validity_of
from connectors.registry.batches import SchemaSource
from connectors.registry.rules import Migrations, Ruled

# The Kafka headers that hold the id or GUID of the key's and of the value's schema.
_KEY_HEADER: Final = "__key_schema_id"
_VALUE_HEADER: Final = "__value_schema_id"
ID_END: Final = 5
GUID_END: Final = 17
_LONG_ID_END: Final = 9
_FAILED_SECONDS: Final = 30.0  # a registry that lags behind may have the schema then
_MOST_REMEMBERED: Final = 10_000  # garbage may hold any id
_MOST_SCHEMAS: Final = 256  # of one batch, as many as a client retains: no writer may cost a request for each row
_MOST_FAILURES: Final = 32  # of requests in one batch: garbage may cost no request for each row

S = TypeVar("S", bound=Ruled)


def confluent_frame(schema_id: int) -> PrefixFrame:
    """Return the frame of messages that are by the schema of this id."""
    return PrefixFrame(b"\0" + schema_id.to_bytes(ID_END - 1, "big"))


def read_schema(data: bytes) -> tuple[int | str, int]:
    """Return the schema's id, or its GUID in hexadecimal digits, and where it ends; raises BadRowError."""
    if data[:ID_END] == bytes(ID_END) and len(data) >= _LONG_ID_END:
        return int.from_bytes(data[ID_END:_LONG_ID_END], "big"), _LONG_ID_END
    if data[:1] == b"\x00" and len(data) >= ID_END:
        return int.from_bytes(data[1:ID_END], "big"), ID_END
    if data[:1] == b"\x01" and len(data) >= GUID_END:
        return data[1:GUID_END].hex(), GUID_END
    raise BadRowError(f"is not a Confluent frame: it begins with {data[:6].hex(' ') or 'no byte'}")


def schema_header(headers: Mapping[str, Any], *, is_key: bool) -> bytes | None:
    """Return the header that has the schema of the key, or of the value; None where there is none."""
    value = headers.get(_KEY_HEADER if is_key else _VALUE_HEADER)
    return None if value is None else bytes(value)


def guid_header(guid: bytes, *, is_key: bool) -> tuple[str, bytes]:
    """Return the header, by its name, of a message that is by the schema of this GUID."""
    return _KEY_HEADER if is_key else _VALUE_HEADER, b"\1" + guid


def explained(error: BadRowError, headers: Mapping[str, Any], *, is_key: bool) -> BadRowError:
    """Return the error for a message without a frame; it says so if the other column has its schema in a header."""
    other = _VALUE_HEADER if is_key else _KEY_HEADER
    if headers.get(other) is None:
        return error
    column = "value" if is_key else "key"
    return BadRowError(f"{error}; if this is the {column}, give isKey={not is_key}: {other} has its id")


def headers_by_name(headers: pa.Array) -> list[Mapping[str, Any] | None]:
    """Return Kafka's headers by name, of several with one name the last; a NULL among them is none.

    Raises:
        ColumnTypeError: they are neither ARRAY<STRUCT<key STRING, value BINARY>> nor MAP<STRING, BINARY>.
    """
    kind = headers.type
    if not (kinds.is_null(kind) or (kinds.is_map(kind) and _is_header(kind.key_type, kind.item_type))):
        part = kind.value_type if kinds.is_list(kind) or kinds.is_large_list(kind) else pa.null()
        types = {field.name: field.type for field in part} if kinds.is_struct(part) else {}
        if not types.keys() >= {"key", "value"} or not _is_header(types["key"], types["value"]):
            raise headers_type_error(str(kind))

    def mapping(row: list[Any] | None) -> Mapping[str, Any] | None:
        if row is None:
            return None
        pairs = ((header["key"], header["value"]) if isinstance(header, dict) else header for header in row if header)
        return dict(pairs)

    return [mapping(row) for row in headers.to_pylist()]


def _is_header(key: pa.DataType, value: pa.DataType) -> bool:
    binary = kinds.is_binary(value) or kinds.is_large_binary(value) or kinds.is_null(value)
    return bool(binary and (kinds.is_string(key) or kinds.is_large_string(key)))


Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PrefixFrame:
    """A frame that is the same bytes before each message."""

    prefix: bytes

    def around(self, messages: pa.BinaryArray) -> pa.BinaryArray:
        """Put each message into the frame; NULL stays NULL."""
        return pc.binary_join_element_wise(pa.scalar(self.prefix, pa.binary()), messages, pa.scalar(b"", pa.binary()))


@dataclass(slots=True)
class Frames:
    """The frames of a batch, of a format whose message follows the schema's id or GUID.

    Attributes:
        schemas: the different ids and GUIDs.
        which: for each row the place of its schema in `schemas`; -1 where it is NULL or cannot be read.
        errors: why frames cannot be read, by row.
        begin: where the message of each row begins in the data of the column.
    """

    column: pa.BinaryArray
    which: Rows
    begin: Rows
    schemas: list[int | str] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def by_schema(self) -> list[Rows]:
        """Return the rows of each schema, in their order."""
        if len(self.schemas) == 1:
            return [np.flatnonzero(self.which == 0)]
        order = np.argsort(self.which, kind="stable")
        ends = np.searchsorted(self.which[order], np.arange(-1, len(self.schemas)), side="right")
        return [order[begin:end] for begin, end in pairwise(ends)]

    def chosen(self, mask: npt.NDArray[np.bool_]) -> Frames:
        """Return the frames of the rows where the mask is true; the others count as NULL."""
        present = np.flatnonzero(np.bincount(self.which[mask] + 1, minlength=len(self.schemas) + 1)[1:])
        places = np.full(len(self.schemas) + 1, -1, np.int64)
        places[present] = np.arange(len(present))
        errors = {row: reason for row, reason in self.errors.items() if mask[row]}
        which = np.where(mask, places[self.which], -1)
        return Frames(self.column, which, self.begin, [self.schemas[place] for place in present.tolist()], errors)

    def messages(self, rows: Rows) -> pa.BinaryArray:
        """Return the messages of these rows, without their frames."""
        bounds = np.empty(2 * len(self.which) + 1, np.int32)
        bounds[:-1:2], bounds[1::2] = self.begin, bounds_of(self.column)[1:]
        bounds[-1] = bounds[-2]
        gaps = pa.Array.from_buffers(
            pa.binary(), 2 * len(self.which), [None, pa.py_buffer(bounds), self.column.buffers()[2]]
        )
        return gaps.take(pa.array(2 * rows))

    def note(self, rows: Rows, schemas: Iterable[int | str], inverse: Rows) -> None:
        """Note the schemas of rows: of each its place in `schemas`."""
        place_of = {schema: place for place, schema in enumerate(self.schemas)}
        places = [place_of.setdefault(schema, len(place_of)) for schema in schemas]
        self.schemas = list(place_of)
        self.which[rows] = np.array(places, np.int64)[inverse]


def find_frames(column: pa.BinaryArray, headers: pa.Array | None = None, *, is_key: bool = False) -> Frames:
    """Take the frames of a batch apart; a row with the schema of this column in its headers is the message alone."""
    if len(column) == 0:
        return Frames(column, np.zeros(0, np.int64), np.zeros(0, np.int64))
    bounds = bounds_of(column)
    frames = Frames(column, np.full(len(column), -1, np.int64), bounds[:-1].copy())
    pending = validity_of(column)
    mappings = [] if headers is None else [mapping or {} for mapping in headers_by_name(headers)]
    named: dict[int, int | str] = {}
    for row, mapping in enumerate(mappings):
        value = schema_header(mapping, is_key=is_key)
        if value is None or not pending[row]:
            continue
        pending[row] = False
        try:
            named[row] = read_schema(value)[0]
        except BadRowError as error:
            frames.errors[row] = str(error)
    frames.note(np.fromiter(named, np.int64), named.values(), np.arange(len(named)))
    sizes, data = np.diff(bounds), np.frombuffer(column.buffers()[2] or b"", np.uint8)
    for before, end in ((bytes(ID_END), _LONG_ID_END), (b"\0", ID_END), (b"\1", GUID_END)):
        rows = np.flatnonzero(pending & (sizes >= end))
        for place, byte in enumerate(before):
            rows = rows[data[bounds[rows] + place] == byte]
        if len(rows):
            _note_prefixes(frames, rows, data[bounds[rows][:, None] + np.arange(len(before), end)])
            frames.begin[rows] += end
            pending[rows] = False
    for row in np.flatnonzero(pending).tolist():
        try:
            read_schema(column[row].as_py())
        except BadRowError as error:
            frames.errors[row] = str(explained(error, mappings[row] if mappings else {}, is_key=is_key))
    return frames


def _note_prefixes(frames: Frames, rows: Rows, prefixes: npt.NDArray[np.uint8]) -> None:
    """Note the schemas of rows by the bytes of their ids, or of their GUIDs."""
    if prefixes.shape[1] == ID_END - 1:
        ids = prefixes.view(">u4")[:, 0]
        if (ids == ids[0]).all():  # as in most batches
            frames.note(rows, ids[:1].tolist(), np.zeros(len(ids), np.int64))
            return
        different, inverse = np.unique(ids, return_inverse=True)
        frames.note(rows, different.tolist(), inverse)
    else:
        guids, inverse = np.unique(prefixes.view(">u8"), axis=0, return_inverse=True)
        frames.note(rows, [guid.tobytes().hex() for guid in guids], inverse.reshape(-1))


def bounds_of(column: pa.BinaryArray) -> Rows:
    """Return where each row begins in the data of the column, and where the last one ends."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)


class WriterSchemas(Generic[S]):
    """Fetches the schemas of frames, and remembers for a while which ones the registry cannot give.

    If `permissive`, a schema that the registry cannot give is a reason for bad rows, while it gives others; else only
    one that it does not have is. The `reader` is the schema of the columns, where that is one of a registry.
    """

    def __init__(
        self, *, permissive: bool, reader: Migrations | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._permissive, self._reader, self._clock = permissive, reader, clock
        self._failures: dict[int | str, tuple[str, float]] = {}

    def get(
        self, registry: SchemaSource[S], wanted: Iterable[int | str], rows: Mapping[int | str, int]
    ) -> dict[int | str, S | str]:
        """Return each schema, or why it cannot be had.

        Args:
            registry: is asked.
            wanted: ids and GUIDs.
            rows: how many rows have each: those of most rows come first, since garbage has another id in each row.

        Raises:
            ConnectorError: for what is wrong with the registry and not with a row.
        """
        order = sorted(wanted, key=lambda schema: -rows.get(schema, 0))
        results = self._fetch(registry, order[:_MOST_SCHEMAS])
        reasons = (
            f"the registry gives none for {_MOST_FAILURES} others of this batch",
            f"{_MOST_SCHEMAS} others of this batch have as many rows or more",
        )
        return {
            schema: results.get(schema)
            or f"has the schema {schema}, which was not asked for: {reasons[place >= _MOST_SCHEMAS]}"
            for place, schema in enumerate(order)
        }

    def _fetch(self, registry: SchemaSource[S], wanted: list[int | str]) -> dict[int | str, S | str]:
        """Return schemas, and for each that cannot be had the reason; without those that are too many to ask for."""
        now = self._clock()
        failures = {schema: self._failures[schema] for schema in wanted if schema in self._failures}
        results: dict[int | str, S | str] = {
            schema: reason for schema, (reason, until) in failures.items() if until >= now
        }
        new = [schema for schema in wanted if schema not in failures]
        failed_before = [schema for schema in failures if schema not in results]
        fetched = registry.by_ids(new, _MOST_FAILURES)
        if failed_before:
            fetched |= registry.by_ids(failed_before, _MOST_FAILURES, patience=0)
        for schema, result in fetched.items():
            if not isinstance(result, ConnectorError):
                error = self._migration_error(schema, result)
                if error is None:
                    results[schema] = result
                    continue
            else:
                error = result
            if not (self._permissive or isinstance(error, SourceGoneError)):
                raise error
            results[schema] = str(error)
            remember(self._failures, schema, (str(error), self._clock() + _FAILED_SECONDS))
        return results

    def _migration_error(self, schema: int | str, writer: S) -> ConnectorError | None:
        """Return the error for a schema whose messages the reader's could only read by rules."""
        try:
            if self._reader is not None:
                self._reader.check(writer.migrations, schema)
        except ConnectorError as error:
            return error
        return None


def remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    """Put an entry into a dictionary of bounded size."""
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value
