"""Bad records of a stream, apart from the good ones: each is written once, with its bytes, its place and the reason.

    from connectors.bad_records import split_bad_records

    orders = from_avro("value", schemaRegistry=registry, options={"on.error": "details"})
    query = (events.withColumn("order", orders).writeStream
             .foreachBatch(split_bad_records(write, "order", badRecordsPath="/data/bad/orders"))
             .option("checkpointLocation", "/data/checkpoints/orders").start())

`write` gets the good rows of each batch.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it
from pyspark.sql.types import MapType, StructType

from connectors.core.errors import OptionError
from connectors.core.functions.options import DETAILS
from connectors.core.processes.spark import running_query

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["bad_records_of", "split_bad_records"]

_log = logging.getLogger(__name__)
_COLUMN: Final = "bad_record"
_FUNCTION: Final = "split_bad_records"
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_TEXTS: Final = "array<struct<key:string,value:string>>"
_PAYLOADS: Final = ("value", "payload", "data")
_SAID: Final = ("code", "reason", "schema", "subject", "column", "query", "batch")
_PLACES: Final = ("topic", "partition", "offset", "stream", "shardId", "sequenceNumber", "subscription", "messageId")
_lock: Final = threading.Lock()
_totals: Final[dict[str, Counter[str]]] = {}


def bad_records_of(query: str) -> dict[str, int]:
    """Return how many bad records of a query this driver has written, by the code of the error.

    Args:
        query: its id, which stays with the checkpoint.
    """
    with _lock:
        return dict(_totals.get(query, {}))


def split_bad_records(
    write: Callable[[DataFrame, int], object],
    columns: str | Sequence[str],
    *,
    badRecordsPath: str | None = None,  # noqa: N803 - Databricks' name
    badRecordsTable: str | None = None,  # noqa: N803 - as above
    badRecordsTo: Mapping[str, str] | None = None,  # noqa: N803 - as above
    query: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes bad records elsewhere, and the good ones as you write them.

    A record is bad if one of the columns could not be decoded. Where it goes, it has the columns of the batch that were
    not decoded, such as ``key``, ``value``, ``headers``, ``topic``, ``partition`` and ``offset``, and a struct
    ``bad_record`` of ``column``, ``code``, ``reason``, ``schema``, ``subject``, ``query`` and ``batch``.

    Bad records are written before the good ones. A batch that Spark repeats writes them once: into a folder of its own,
    which it replaces; into a table only if they are not in it; into a topic of Kafka in transactions.

    Args:
        write: is called for each batch with its good rows and its number. The columns hold what was decoded.
        columns: the columns that ``from_avro``, ``from_protobuf`` or ``from_json_registry`` gave with the option
            ``on.error=details``.
        badRecordsPath: a folder for Parquet files, with ``query=ID/batch=NUMBER`` below it.
        badRecordsTable: a table, made if it is absent. It takes a batch as a whole or not at all, as those of Delta and
            Iceberg do.
        badRecordsTo: a sink's ``format`` and options, such as ``kafka_py`` with ``topic``. Others than ``kafka_py``
            write the bad records of a repeated batch again.
        query: the name of the query in these places. By default Spark's id of it, which Spark Connect does not tell.

    Raises:
        OptionError: there is not one place, or no column is named.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    places = {"badRecordsPath": badRecordsPath, "badRecordsTable": badRecordsTable, "badRecordsTo": badRecordsTo}
    named = [name for name, place in places.items() if place]
    if len(named) != 1 or not names:
        what = f"There must be one place for bad records, and {' and '.join(named) or 'none'} was named"
        action = "Give badRecordsPath, badRecordsTable or badRecordsTo, and columns."
        raise OptionError("BAD_RECORDS_PLACE", what, _FUNCTION, action)
    if badRecordsPath:
        place = _Place(badRecordsPath.rstrip("/"), _replace_files, replaces=True)
    elif badRecordsTable:
        place = _Place(badRecordsTable, _append_to_table)
    else:
        place = _sink(dict(badRecordsTo or {}))
    return _Splitter(write, names, place, query)


@dataclass(eq=False)
class _Splitter:
    """What ``foreachBatch`` calls; Spark Connect pickles it."""

    write: Callable[[DataFrame, int], object]
    columns: tuple[str, ...]
    place: _Place
    query: str | None
    may_be_repeated: bool = True  # only the first batch after a start was perhaps written before

    def __call__(self, batch: DataFrame, number: int) -> None:
        _check_columns(batch, self.columns)
        query = self.query or running_query(batch.sparkSession)
        if query is None:
            raise OptionError("BAD_RECORDS_QUERY", "Spark Connect does not say which query a batch is of", _FUNCTION)
        batch.persist()
        try:
            bad = _bad_records(batch, self.columns, query, number)
            counts = {row[0]: row[1] for row in bad.groupBy(f"{_COLUMN}.code").count().collect()}
            if counts or (self.may_be_repeated and self.place.replaces):
                self.place.write(bad, self.place.name, query, number, may_be_repeated=self.may_be_repeated)
            if counts:
                _note(query, number, counts, self.place.name)
            self.write(_good_rows(batch, self.columns), number)
            self.may_be_repeated = False
        finally:
            batch.unpersist()


def _check_columns(batch: DataFrame, columns: Sequence[str]) -> None:
    types = {field.name: field.dataType for field in batch.schema}
    for name in columns:
        kind = types.get(name)
        shape = {field.name: field.dataType.simpleString() for field in kind} if isinstance(kind, StructType) else {}
        if [*shape] != ["value", "error"] or shape["error"] != DETAILS.simpleString():
            what = f"The column {name} is {'absent' if kind is None else kind.simpleString():.200}"
            functions = "from_avro, from_protobuf or from_json_registry"
            action = f"Give the column of {functions} with the option on.error=details."
            raise OptionError("BAD_RECORDS_COLUMN", what, _FUNCTION, action)


def _error_of(column: str) -> Column:
    return F.col(f"`{column}`").getField("error")


def _bad_records(batch: DataFrame, columns: Sequence[str], query: str, number: int) -> DataFrame:
    error = F.coalesce(*(_error_of(name) for name in columns))
    which = F.coalesce(*(F.when(_error_of(name).isNotNull(), F.lit(name)) for name in columns))
    details = [error.getField(name).alias(name) for name in DETAILS.names]
    struct = F.struct(which.alias("column"), *details, F.lit(query).alias("query"), F.lit(number).alias("batch"))
    others = [F.col(f"`{name}`") for name in batch.columns if name not in columns]
    return batch.where(error.isNotNull()).select(*others, struct.alias(_COLUMN))


def _good_rows(batch: DataFrame, columns: Sequence[str]) -> DataFrame:
    good = batch.where(F.coalesce(*(_error_of(name) for name in columns)).isNull())
    return good.withColumns({name: F.col(f"`{name}`").getField("value") for name in columns})


def _note(query: str, number: int, counts: Mapping[str, int], place: str) -> None:
    with _lock:
        _totals.setdefault(query, Counter()).update(counts)
    shown = ", ".join(f"{count} of {code}" for code, count in sorted(counts.items()))
    _log.warning("[BAD_RECORDS] Batch %d has records that cannot be read: %s; they went to %s.", number, shown, place)


class _Place(NamedTuple):
    """A folder, a table or a sink; `replaces` where a batch replaces its earlier attempt, also without a bad record."""

    name: str
    write: Callable[..., None]
    replaces: bool = False


def _replace_files(bad: DataFrame, path: str, query: str, number: int, **_: bool) -> None:
    bad.write.mode("overwrite").parquet(f"{path}/query={query}/batch={number}")


def _append_to_table(bad: DataFrame, name: str, query: str, number: int, *, may_be_repeated: bool) -> None:
    if may_be_repeated and bad.sparkSession.catalog.tableExists(name):
        own = (F.col(f"{_COLUMN}.query") == query) & (F.col(f"{_COLUMN}.batch") == number)
        if not bad.sparkSession.table(name).where(own).isEmpty():
            return
    # Delta skips a version of an application that it has; other formats ignore both.
    once = {"txnAppId": f"{query} {_COLUMN}", "txnVersion": str(number)}
    bad.write.mode("append").options(**once).saveAsTable(name)


def _sink(options: dict[str, str]) -> _Place:
    """Return a sink by its format; those of messages get them as they came, with the struct's fields beside them."""
    name = options.pop("format", "")
    refused = {"": "no format", "kinesis": "kinesis, and a record of Kinesis has no place for a reason"}
    if name in refused:
        action = "Give the format kafka_py or pubsub, one of files or tables, or badRecordsPath."
        raise OptionError("BAD_RECORDS_PLACE", f"badRecordsTo names {refused[name]}", _FUNCTION, action)

    def write(bad: DataFrame, name: str, query: str, number: int, **_: bool) -> None:
        rows = _as_messages(bad, name) if name in {"kafka_py", "pubsub"} else bad
        once = {}
        if name == "kafka_py":  # recognizes what is repeated
            once = {"deliveryGuarantee": "exactly_once", "onMissingMarker": "write"}
            once |= {"txnAppId": f"{query}-{_COLUMN}", "txnVersion": str(number)}
        rows.write.format(name).options(**{**once, **options}).mode("append").save()

    return _Place(name, write)


def _as_messages(bad: DataFrame, sink: str) -> DataFrame:
    """Return the messages with their bytes and keys as they came, and all that is known as headers or attributes."""
    payload = next((name for name in _PAYLOADS if name in bad.columns), None)
    if payload is None:
        what = f"The batch has none of the columns {', '.join(_PAYLOADS)}, and so no bytes to write"
        raise OptionError("BAD_RECORDS_COLUMN", what, _FUNCTION, "Leave the column of the source in the batch.")
    texts = {name: F.col(_COLUMN).getField(name).cast("string") for name in _SAID}
    texts |= {name: F.col(f"`{name}`").cast("string") for name in _PLACES if name in bad.columns}
    pairs = [F.struct(F.lit(f"{_COLUMN}.{name}").alias("key"), text.alias("value")) for name, text in texts.items()]
    added = F.filter(F.array(*pairs), lambda pair: pair["value"].isNotNull())
    is_map = "attributes" in bad.columns and isinstance(bad.schema["attributes"].dataType, MapType)
    theirs = F.map_entries("attributes") if is_map else F.array().cast(_TEXTS)
    if sink == "kafka_py":
        value, keys, kind = "value", ["key", "orderingKey", "partitionKey"], _HEADERS
        theirs = F.col("headers") if "headers" in bad.columns else theirs
    else:
        value, keys, kind = "payload", ["orderingKey"], _TEXTS  # a text, which the bytes of another key need not be
        theirs = F.filter(theirs, lambda pair: ~pair["key"].startswith(f"{_COLUMN}."))  # of a map: each key once
    more = F.concat(F.coalesce(theirs.cast(kind), F.array().cast(kind)), added.cast(kind))
    more = more.alias("headers") if kind == _HEADERS else F.map_from_entries(more).alias("attributes")
    key = [F.col(f"`{name}`").alias(keys[0]) for name in keys if name in bad.columns][:1]
    return bad.select(F.col(f"`{payload}`").alias(value), more, *key)
