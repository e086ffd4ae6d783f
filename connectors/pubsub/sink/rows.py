"""From the rows of a task to PublishRequests: the columns, what a row must be, and its bytes.

The bytes are those of google.pubsub.v1
(https://github.com/googleapis/googleapis/blob/master/google/pubsub/v1/pubsub.proto)::

    message PublishRequest { string topic = 1; repeated PubsubMessage messages = 2; }
    message PubsubMessage { bytes data = 1; map<string, string> attributes = 2; string ordering_key = 5; }

and a map is a repeated message of a key (1) and a value (2). No Python object is made for a row, but for its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql.types import DataType, MapType, StringType

from connectors.core.arrow import not_utf8
from connectors.core.errors import ConnectorError, OptionError
from connectors.pubsub.client.wire import concatenate, cut, delimited, lengths, prefixes, string_field, values_and_ends
from connectors.pubsub.options.kinds import full_path, is_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from connectors.pubsub.options.sink import PubSubWriteOptions

_SINK: Final = "pubsub sink"

# https://cloud.google.com/pubsub/quotas#resource_limits
MAX_REQUEST_BYTES: Final = 10_000_000
"""Most bytes of a PublishRequest."""
_MAX_REQUEST_MESSAGES: Final = 1000
_MAX_ATTRIBUTES: Final = 100
_MAX_KEY_BYTES: Final = 256
MAX_VALUE_BYTES: Final = 1024
_MAX_ORDERING_KEY_BYTES: Final = 1024

_COLUMN_TYPES: Final = {
    "payload": "binary or string",
    "data": "binary or string",
    "attributes": "map<string,string>",
    "orderingkey": "string",
    "topic": "string",
}

_SLICE_BYTES: Final = 32 << 20
"""Rows encoded at once: far below the 2 GB that a column of Arrow's binaries can hold."""

_GATHERED_BYTES: Final = 8 << 20
"""Gathered from small batches, so that requests are full, and those of one ordering key few."""

_DATA, _ATTRIBUTES, _ORDERING_KEY = 1, 2, 5
_KEY, _VALUE = 1, 2
_TOPIC, _MESSAGES = 1, 2
_EMPTY: Final = pa.scalar(b"", pa.binary())

_DIGITS: Final = 16
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
"""The two digits of each byte, as one number."""
_ROWS_AT_ONCE: Final = 128
"""Few enough for their copies as Python's bytes to stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns that a sink reads, by their names; None for an absent column.

    `topic` is the full path of the topic of all rows; None takes the column. `project` is that of topics that are
    given by their ids.
    """

    payload: str
    attributes: str | None
    ordering_key: str | None
    topic_column: str | None
    topic: str | None
    project: str | None


def check_columns(schema: StructType, options: PubSubWriteOptions) -> SinkColumns:
    """Find the columns of a sink, in any case, as Spark SQL does, and ignore others; refuse what cannot be written."""
    names: dict[str, str] = {}
    types: dict[str, DataType] = {}
    for field in schema:
        name = field.name.lower()
        if name in _COLUMN_TYPES:
            if name in names:
                raise _illegal(f"There are two columns {field.name}")
            names[name], types[name] = field.name, field.dataType
    if "payload" in names and "data" in names:
        raise _illegal("There is a column payload and a column data")
    payload = "payload" if "payload" in names else "data"
    if payload not in names:
        raise _illegal("There is no column payload, nor data")
    if options.topic is not None:
        types.pop("topic", None)
    elif "topic" not in names:
        raise _illegal("There is neither an option topicId nor a column topic")
    for name, kind in types.items():
        legal = _COLUMN_TYPES[name]
        if _type_name(kind) not in legal.split(" or "):
            raise _illegal(f"The column {name} is {kind.simpleString()}, and it must be {legal}")
    return SinkColumns(
        payload=names[payload],
        attributes=names.get("attributes"),
        ordering_key=names.get("orderingkey"),
        topic_column=names["topic"] if options.topic is None else None,
        topic=options.topic,
        project=options.project_id,
    )


def _type_name(kind: DataType) -> str:
    """Return the name of a type, for a string without its collation."""
    if isinstance(kind, MapType):
        return f"map<{_type_name(kind.keyType)},{_type_name(kind.valueType)}>"
    return "string" if isinstance(kind, StringType) else kind.simpleString()


def _illegal(what: str) -> OptionError:
    return OptionError("PUBSUB_SINK_COLUMNS", what, _SINK)


@dataclass(frozen=True, slots=True)
class RowStamp:
    """The attribute that names a row for good; an empty one for none. The partition is for errors.

    After the prefix of its value come the number of the row in its partition and a digest of its content: a number
    that is used again, as after a restore of the checkpoint, gives a row of other content another name.
    """

    attribute: str
    prefix: str
    partition: int


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as messages: of each row the bytes that it adds to a ``PublishRequest``, and its number.

    Topics are full paths, or None when all rows have the same; ordering keys are None when no row can have one.
    """

    messages: pa.Array
    topics: pa.Array | None
    ordering_keys: pa.Array | None
    numbers: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PublishRequest:
    """Messages that are sent together, with the numbers of their rows; the ordering key may be empty.

    `messages` has the encoded messages of more requests than this one; `ends` is where in them each of these begins
    and, last, where they end.
    """

    topic: str
    ordering_key: str
    messages: memoryview
    ends: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lane(self) -> tuple[str, str]:
        """Topic and ordering key: requests with an equal one are sent one after the other."""
        return self.topic, self.ordering_key

    @property
    def size(self) -> int:
        return int(self.ends[-1] - self.ends[0])

    def encode(self) -> bytes:
        return b"".join((string_field(_TOPIC, self.topic), self.messages[self.ends[0] : self.ends[-1]]))

    def part(self, first: int, last: int) -> PublishRequest:
        return PublishRequest(
            self.topic, self.ordering_key, self.messages, self.ends[first : last + 1], self.numbers[first:last]
        )


@dataclass(frozen=True, slots=True)
class _Attributes:
    """All attributes of some rows: those of row i are from ``offsets[i]`` to before ``offsets[i + 1]``."""

    offsets: npt.NDArray[np.int32]
    keys: pa.Array
    values: pa.Array

    @property
    def counts(self) -> npt.NDArray[np.int32]:
        return np.diff(self.offsets)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int64), self.counts)

    def without(self, dropped: npt.NDArray[np.bool_]) -> _Attributes:
        counts = np.bincount(self.rows[~dropped], minlength=len(self.offsets) - 1)
        mask = pa.array(~dropped)
        return _Attributes(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), self.keys.filter(mask), self.values.filter(mask)
        )


def publish_requests(
    batches: Iterable[pa.RecordBatch], columns: SinkColumns, stamp: RowStamp
) -> Iterator[PublishRequest]:
    """Yield the requests for all rows of a task; the rows of a topic and ordering key stay in their order."""
    gathered: list[EncodedRows] = []
    size = first = 0
    for batch in batches:
        for encoded in encode_rows(batch, columns, stamp, first):
            gathered.append(encoded)
            size += encoded.messages.nbytes
            if size >= _GATHERED_BYTES:
                yield from _requests(gathered, columns)
                gathered, size = [], 0
        first += batch.num_rows
    if gathered:
        yield from _requests(gathered, columns)


def _requests(parts: list[EncodedRows], columns: SinkColumns) -> Iterator[PublishRequest]:
    messages = _concatenated([part.messages for part in parts])
    numbers = np.concatenate([part.numbers for part in parts])
    topics, topic_codes = _codes([part.topics for part in parts], columns.topic or "", len(numbers))
    keys, key_codes = _codes([part.ordering_keys for part in parts], "", len(numbers))
    groups = topic_codes * len(keys) + key_codes
    starts = np.flatnonzero(np.diff(groups)) + 1
    if len(starts):
        # Stable, so that the rows of a group stay in their order.
        order = np.argsort(groups, kind="stable")
        groups, numbers, messages = groups[order], numbers[order], messages.take(pa.array(order))
        starts = np.flatnonzero(np.diff(groups)) + 1
    data, ends = values_and_ends(messages)
    for begin, end in pairwise([0, *starts.tolist(), len(groups)]):
        topic, key = topics[int(groups[begin]) // len(keys)], keys[int(groups[begin]) % len(keys)]
        whole = PublishRequest(topic, key, data, ends[begin : end + 1], numbers[begin:end])
        room = MAX_REQUEST_BYTES - len(string_field(_TOPIC, topic))
        for first, last in cut(whole.ends, _MAX_REQUEST_MESSAGES, room):
            yield whole.part(first, last)


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _codes(parts: list[pa.Array | None], constant: str, rows: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct values, and the index of each row's; without a column all rows have the same value."""
    columns = [part for part in parts if part is not None]
    if not columns:
        return [constant], np.zeros(rows, np.int64)
    encoded = pc.dictionary_encode(_concatenated(columns))
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def encode_rows(batch: pa.RecordBatch, columns: SinkColumns, stamp: RowStamp, first: int) -> Iterator[EncodedRows]:
    """Yield the messages of a batch, some tens of megabytes at a time; `first` is the number of its first row.

    Raises ConnectorError, ``PUBSUB_BAD_ROW``, with the number of a row that cannot be published, and the reason.
    """
    if batch.num_rows > 1 and batch.nbytes > _SLICE_BYTES:
        middle = batch.num_rows // 2
        yield from encode_rows(batch.slice(0, middle), columns, stamp, first)
        yield from encode_rows(batch.slice(middle), columns, stamp, first + middle)
    elif batch.num_rows:
        yield _encode(batch, columns, stamp, first)


def _encode(batch: pa.RecordBatch, columns: SinkColumns, stamp: RowStamp, first: int) -> EncodedRows:
    check = _Check(stamp.partition, first)
    payloads = pc.fill_null(batch.column(columns.payload).cast(pa.binary()), b"")
    topics = None if columns.topic_column is None else _topics(batch.column(columns.topic_column), columns, check)
    keys = None
    if columns.ordering_key is not None:
        keys = pc.fill_null(batch.column(columns.ordering_key).cast(pa.string()), "")
        check.refuse(_not_utf8(keys), "its ordering key is not UTF-8")
        check.refuse(
            lengths(keys) > _MAX_ORDERING_KEY_BYTES, f"its ordering key has more than {_MAX_ORDERING_KEY_BYTES} bytes"
        )
    attributes = None
    if columns.attributes is not None:
        attributes = _attributes(batch.column(columns.attributes), stamp.attribute)
        _check_attributes(attributes, _MAX_ATTRIBUTES - bool(stamp.attribute), check)
    if not stamp.attribute:
        bare = lengths(payloads) == 0
        check.refuse(
            bare if attributes is None else bare & (attributes.counts == 0), "it has neither payload nor attributes"
        )
    check.finish()
    parts = [] if attributes is None else [_encode_attributes(attributes)]
    if keys is not None:
        parts.append(pc.if_else(pc.equal(pc.binary_length(keys), 0), _EMPTY, delimited(_ORDERING_KEY, keys)))
    if stamp.attribute:
        others = parts if topics is None else [*parts, topics]
        parts.append(_encode_stamps(stamp, first, _content_digests(payloads, others)))
    heads = prefixes(_DATA, pc.binary_length(payloads))
    sizes = sum((lengths(part) for part in parts), lengths(heads) + lengths(payloads))
    framing = prefixes(_MESSAGES, pa.array(sizes))
    longest = MAX_REQUEST_BYTES - len(string_field(_TOPIC, columns.topic or "x" * 600))
    check.refuse(lengths(framing) + sizes > longest, f"its message has more than the {MAX_REQUEST_BYTES} bytes allowed")
    check.finish()
    # The payload is copied once, here.
    messages = concatenate(framing, heads, payloads, *parts)
    return EncodedRows(messages, topics, keys, np.arange(first, first + len(payloads), dtype=np.int64))


class _Check:
    """Collects what is wrong with rows, to name the first one."""

    def __init__(self, partition: int, first: int) -> None:
        self._partition = partition
        self._first = first
        self._bad: tuple[int, str] | None = None

    def refuse(self, bad: npt.NDArray[np.bool_], reason: str) -> None:
        if bad.any():
            row = int(np.argmax(bad))
            if self._bad is None or row < self._bad[0]:
                self._bad = row, reason

    def refuse_attributes(self, attributes: _Attributes, bad: npt.NDArray[np.bool_], reason: str) -> None:
        """Note that some attributes keep their rows from being published; a brace pair in the reason is the key."""
        if bad.any():
            at = int(np.argmax(bad))
            rows = np.zeros(len(attributes.offsets) - 1, np.bool_)
            rows[attributes.rows[at]] = True
            self.refuse(rows, reason.format(repr(_shown(attributes.keys[at])[:40])))

    def finish(self) -> None:
        if self._bad is not None:
            row, reason = self._bad
            raise ConnectorError(
                "PUBSUB_BAD_ROW",
                f"Row {self._first + row} of partition {self._partition} cannot be published: {reason}",
                _SINK,
            )


def _topics(column: pa.Array, columns: SinkColumns, check: _Check) -> pa.Array:
    check.refuse(_bools(pc.is_null(column)), "it has no topic, and the option topicId is not set")
    encoded = pc.fill_null(column.cast(pa.string()), "").dictionary_encode()
    # A name that is not UTF-8 is none; it is shown with backslashes.
    names = [_shown(name) for name in encoded.dictionary]
    for code, name in enumerate(names):
        bare = not name.startswith("projects/")
        bad = not is_name("topics", name) or (bare and columns.project is None)
        if bad:
            why = (
                "is not a full path, and the option projectId is not set"
                if is_name("topics", name)
                else "is not a name"
            )
            check.refuse(encoded.indices.to_numpy() == code, f"its topic {name[:80]!r} {why}")
    paths = pa.array([full_path(columns.project, "topics", name) for name in names], pa.string())
    return paths.take(encoded.indices)


def _attributes(column: pa.Array, replaced: str) -> _Attributes:
    """Return the attributes of a column of maps, without the one that the stamp replaces."""
    offsets = column.offsets.to_numpy().astype(np.int32)
    first, last = int(offsets[0]), int(offsets[-1])
    attributes = _Attributes(
        offsets - first,
        column.keys.slice(first, last - first).cast(pa.string()),
        column.items.slice(first, last - first).cast(pa.string()),
    )
    # A map that is null may still have entries, which then do not count.
    dropped = _bools(pc.is_null(column))[attributes.rows]
    if replaced:
        dropped |= _bools(pc.equal(attributes.keys, replaced))
    return attributes.without(dropped) if dropped.any() else attributes


def _check_attributes(attributes: _Attributes, most: int, check: _Check) -> None:
    check.refuse(attributes.counts > most, f"it has more than {most} attributes of its own")
    keys, values = attributes.keys, attributes.values
    # Google's own clients publish a trace context under such keys, and a row may pass it on.
    reserved = _bools(pc.starts_with(keys, "goog")) & ~_bools(pc.starts_with(keys, "googclient_"))
    key_bytes, value_bytes = lengths(keys), lengths(pc.fill_null(values, ""))
    for bad, reason in (
        (_not_utf8(keys), "the key {} of an attribute is not UTF-8"),
        (_not_utf8(values), "the attribute {} is not UTF-8"),
        (key_bytes == 0, "an attribute has an empty key"),
        (key_bytes > _MAX_KEY_BYTES, f"the key {{}}... has more than {_MAX_KEY_BYTES} bytes"),
        (reserved, "the key {} begins with goog, which is reserved"),
        (_bools(pc.is_null(values)), "the attribute {} is null"),
        (
            value_bytes > MAX_VALUE_BYTES,
            f"the attribute {{}} has more than {MAX_VALUE_BYTES} bytes",
        ),
    ):
        check.refuse_attributes(attributes, bad, reason)


def _encode_attributes(attributes: _Attributes) -> pa.Array:
    entries = delimited(
        _ATTRIBUTES, concatenate(delimited(_KEY, attributes.keys), delimited(_VALUE, attributes.values))
    )
    listed = pa.ListArray.from_arrays(pa.array(attributes.offsets), entries)
    return pc.binary_join(listed, _EMPTY)


def _encode_stamps(stamp: RowStamp, first: int, digests: pa.Array) -> pa.Array:
    numbers = pa.array(np.arange(first, first + len(digests), dtype=np.int64)).cast(pa.string()).cast(pa.binary())
    prefix, slash = pa.scalar(stamp.prefix.encode(), pa.binary()), pa.scalar(b"/", pa.binary())
    values = concatenate(prefix, numbers, slash, digests)
    key = pa.scalar(string_field(_KEY, stamp.attribute), pa.binary())
    return delimited(_ATTRIBUTES, concatenate(key, delimited(_VALUE, values)))


def _content_digests(payloads: pa.Array, others: Sequence[pa.Array]) -> pa.Array:
    """Return a digest of each row: 16 hexadecimal digits (xxh3, 64 bits), of the payload and the other columns."""
    seeds = _digests(concatenate(*(part.cast(pa.binary()) for part in others))) if others else None
    digits = _HEX[np.array(_digests(payloads, seeds), np.uint64).astype(">u8").view(np.uint8)]
    buffers = [None, pa.py_buffer(digits.tobytes())]
    return pa.Array.from_buffers(pa.binary(_DIGITS), digits.nbytes // _DIGITS, buffers).cast(pa.binary())


def _digests(values: pa.Array, seeds: Sequence[int] | None = None) -> list[int]:
    digests: list[int] = []
    for first in range(0, len(values), _ROWS_AT_ONCE):
        rows = values[first : first + _ROWS_AT_ONCE].to_pylist()
        row_seeds = repeat(0) if seeds is None else seeds[first : first + _ROWS_AT_ONCE]
        digests += map(xxhash.xxh3_64_intdigest, rows, row_seeds)
    return digests


def _not_utf8(texts: pa.Array) -> npt.NDArray[np.bool_]:
    bad = np.zeros(len(texts), np.bool_)
    bad[not_utf8(texts)] = True
    return bad


def _shown(text: pa.Scalar) -> str:
    shown: str = text.cast(pa.binary()).as_py().decode(errors="backslashreplace")
    return shown


def _bools(array: pa.Array) -> npt.NDArray[np.bool_]:
    bools: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return bools
