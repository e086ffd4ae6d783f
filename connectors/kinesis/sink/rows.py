"""The columns that the sink takes, and its rows as records of the service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from connectors.core.arrow import not_utf8
from connectors.core.errors import ConnectorError, OptionError
from connectors.kinesis.aggregates import LONGEST_KEY, is_hash_key
from connectors.kinesis.options.client import STREAM
from connectors.kinesis.sink.requests import RequestEntry, key_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BAD_ROW: Final = "KINESIS_BAD_ROW"
_SINK: Final = "kinesis sink"
_SHOWN_CHARACTERS: Final = 100


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a sink reads beside ``data`` and ``partitionKey``; ``stream`` is None when it is a column."""

    stream: str | None
    explicit_hash_key: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a stream, each with its bytes of data and key, as the service counts them."""

    stream: str
    records: Sequence[RequestEntry]
    sizes: Sequence[int]


def check_columns(schema: StructType, stream: str | None) -> Columns:
    """Find the sink's columns by their exact names; any collation will do, other columns are ignored.

    Raises an `OptionError` for a column that is missing, exists twice, or has an illegal type.
    """
    kinds = {field.name: field.dataType for field in schema}
    types = {name: "string" if kind.typeName() == "string" else kind.simpleString() for name, kind in kinds.items()}
    legal = {"data": ("binary", "string"), "partitionKey": ("string",)}
    if stream is None:
        if "stream" not in types:
            raise _illegal("Neither the option streamName nor a column stream says where rows go")
        legal["stream"] = ("string",)
    if missing := [name for name in legal if name not in types]:
        raise _illegal(f"The column {missing[0]} is missing")
    if "explicitHashKey" in types:
        legal["explicitHashKey"] = ("string", "void")
    names = [field.name for field in schema]
    for name, kinds_of_column in legal.items():
        if names.count(name) > 1:
            raise _illegal(f"There are two columns {name}")
        if types[name] not in kinds_of_column:
            choice = " or ".join(kinds_of_column)
            raise _illegal(f"The column {name} is a {types[name]}, and must be a {choice}")
    return Columns(stream, "explicitHashKey" in types)


def _illegal(what: str) -> OptionError:
    return OptionError("KINESIS_SINK_COLUMNS", what, _SINK)


def rows_by_stream(batch: pa.RecordBatch, columns: Columns, first: int) -> Iterator[Rows]:
    """Yield a batch's rows by stream; ``first`` is the number of its first row in the partition.

    Raises a `ConnectorError` (`BAD_ROW`) that names the key of a row that cannot be a record.
    """
    if not batch.num_rows:
        return
    _require_utf8(batch, columns, first)
    if not _all_legal(batch, columns):
        _refuse(batch, columns)
    if columns.stream is not None:
        yield _rows(batch, columns.stream, columns)
        return
    streams = batch.column("stream")
    for stream in streams.unique():
        yield _rows(batch.filter(pc.equal(streams, stream)), stream.as_py(), columns)


def _rows(batch: pa.RecordBatch, stream: str, columns: Columns) -> Rows:
    keys, data = batch.column("partitionKey"), batch.column("data").cast(pa.binary())
    sizes = pc.add(pc.binary_length(keys), pc.binary_length(data)).to_pylist()
    fields = zip(data.to_pylist(), keys.to_pylist(), strict=True)
    hash_keys = batch.column("explicitHashKey") if columns.explicit_hash_key else None
    if hash_keys is None or hash_keys.null_count == len(hash_keys):
        return Rows(stream, list(starmap(RequestEntry, fields)), sizes)
    records = [
        RequestEntry(value, key, msgspec.UNSET if hash_key is None else hash_key)
        for (value, key), hash_key in zip(fields, hash_keys.to_pylist(), strict=True)
    ]
    return Rows(stream, records, sizes)


def _require_utf8(batch: pa.RecordBatch, columns: Columns, first: int) -> None:
    """Refuse texts that Python cannot decode, and the service would not take."""
    names = ["partitionKey"]
    names += ["stream"] if columns.stream is None else []
    names += ["explicitHashKey"] if columns.explicit_hash_key else []
    for name in names:
        if bad := not_utf8(batch.column(name)):
            key = batch.column("partitionKey")[bad[0]].cast(pa.binary()).as_py() or b""
            what = f"Row {first + bad[0]} of its partition has a {name} that is not UTF-8"
            action = "Give bytes that are not text as base64 or hex, or filter out such rows. Rows are counted from 0."
            raise _bad_row(what, key.decode(errors="backslashreplace"), action)


def _all_legal(batch: pa.RecordBatch, columns: Columns) -> bool:
    """Return whether each row can be a record; if not, `_refuse` finds the one that cannot."""
    keys = batch.column("partitionKey")
    lengths = pc.min_max(pc.utf8_length(keys))
    streams = [columns.stream] if columns.stream is not None else batch.column("stream").unique().to_pylist()
    hash_keys = batch.column("explicitHashKey").unique().to_pylist() if columns.explicit_hash_key else ()
    return (
        keys.null_count == batch.column("data").null_count == 0
        and lengths["min"].as_py() > 0
        and lengths["max"].as_py() <= LONGEST_KEY
        and all(map(_is_stream, streams))
        and all(key is None or is_hash_key(key) for key in hash_keys)
    )


def _is_stream(stream: str | None) -> bool:
    return stream is not None and STREAM.fullmatch(stream) is not None


def _refuse(batch: pa.RecordBatch, columns: Columns) -> None:
    rows = batch.num_rows
    streams = [columns.stream] * rows if columns.stream is not None else batch.column("stream").to_pylist()
    hash_keys = batch.column("explicitHashKey").to_pylist() if columns.explicit_hash_key else [None] * rows
    no_data = batch.column("data").is_null().to_pylist()
    keys = batch.column("partitionKey").to_pylist()
    for stream, key, without, hash_key in zip(streams, keys, no_data, hash_keys, strict=True):
        if not key or len(key) > LONGEST_KEY:
            length = "no partitionKey" if not key else f"a partitionKey of {len(key)} characters"
            raise _bad_row(f"A row has {length}", key or "", f"A key has 1 to {LONGEST_KEY} characters.")
        if without:
            raise _bad_row("A row has no data", key, "Filter out rows without data, or give them empty data.")
        if not _is_stream(stream):
            what = "A row has no stream" if stream is None else "A row has a stream that is neither a name nor an ARN"
            raise _bad_row(what, key, "Fill the column stream, or give the option streamName.")
        if hash_key is not None and not is_hash_key(hash_key):
            action = "Give a whole number from 0 to 2^128-1 without leading zeros, or null."
            raise _bad_row(f"A row has the explicitHashKey {hash_key[:_SHOWN_CHARACTERS]!r}", key, action)


def _bad_row(what: str, key: str, action: str) -> ConnectorError:
    return ConnectorError(BAD_ROW, what, key_name(key), action)
