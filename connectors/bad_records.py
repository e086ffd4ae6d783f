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
from typing import TYPE_CHECKING, Final

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
_PAYLOADS: Final = ("value", "payload", "data")
_KEYS: Final = ("key", "orderingKey", "partitionKey")
_SAID: Final = ("code", "reason", "schema", "subject", "column", "query", "batch")
_PLACES: Final = (
    "topic",
    "partition",
    "offset",
    "stream",
    "shardId",
    "sequenceNumber",
    "subscription",
    "messageId",
)
_HEADERS: Final = "array<struct<key:string,value:binary>>"
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
        raise OptionError(
            "BAD_RECORDS_PLACE", what, _FUNCTION, "Give badRecordsPath, badRecordsTable or badRecordsTo, and columns."
        )
    if badRecordsPath:
        place: _Place = _Folder(badRecordsPath)
    elif badRecordsTable:
        place = _Table(badRecordsTable)
    else:
        place = _Sink(dict(badRecordsTo or {}))
    return _Splitter(write, names, place, query)


class _Splitter:
    """What ``foreachBatch`` calls; Spark Connect pickles it."""

    def __init__(
        self, write: Callable[[DataFrame, int], object], columns: tuple[str, ...], place: _Place, query: str | None
    ) -> None:
        self._write, self._columns, self._place, self._query = write, columns, place, query
        self._may_be_repeated = True
        """Only the first batch after a start was perhaps written before."""

    def __call__(self, batch: DataFrame, number: int) -> None:
        _check_columns(batch, self._columns)
        query = self._query or running_query(batch.sparkSession)
        if query is None:
            what = "Spark Connect does not say which query a batch is of"
            raise OptionError("BAD_RECORDS_QUERY", what, _FUNCTION)
        batch.persist()
        try:
            bad = _bad_records(batch, self._columns, query, number)
            counts = {row[0]: row[1] for row in bad.groupBy(f"{_COLUMN}.code").count().collect()}
            if counts or (self._may_be_repeated and self._place.replaces):
                self._place.write(bad, query, number, may_be_repeated=self._may_be_repeated)
            if counts:
                _note(query, number, counts, self._place)
            self._write(_good_rows(batch, self._columns), number)
            self._may_be_repeated = False
        finally:
            batch.unpersist()


def _check_columns(batch: DataFrame, columns: Sequence[str]) -> None:
    types = {field.name: field.dataType for field in batch.schema}
    for name in columns:
        kind = types.get(name)
        shape = {field.name: field.dataType.simpleString() for field in kind} if isinstance(kind, StructType) else {}
        if [*shape] != ["value", "error"] or shape["error"] != DETAILS.simpleString():
            what = f"The column {name} is {'absent' if kind is None else kind.simpleString():.200}"
            action = (
                "Give the column of from_avro, from_protobuf or from_json_registry with the option on.error=details."
            )
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


def _note(query: str, number: int, counts: Mapping[str, int], place: _Place) -> None:
    with _lock:
        _totals.setdefault(query, Counter()).update(counts)
    shown = ", ".join(f"{count} of {code}" for code, count in sorted(counts.items()))
    _log.warning("[BAD_RECORDS] Batch %d has records that cannot be read: %s; they went to %s.", number, shown, place)


class _Folder:
    replaces = True
    """Whether a batch takes the place of what an earlier attempt of it wrote, also where it has no bad record now."""

    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")

    def __str__(self) -> str:
        return self._path

    def write(self, bad: DataFrame, query: str, number: int, **_: bool) -> None:
        bad.write.mode("overwrite").parquet(f"{self._path}/query={query}/batch={number}")


class _Table:
    replaces = False

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return self._name

    def write(self, bad: DataFrame, query: str, number: int, *, may_be_repeated: bool) -> None:
        spark = bad.sparkSession
        if may_be_repeated and spark.catalog.tableExists(self._name):
            own = (F.col(f"{_COLUMN}.query") == query) & (F.col(f"{_COLUMN}.batch") == number)
            if not spark.table(self._name).where(own).isEmpty():
                return
        # Delta skips a version of an application that it has; other formats ignore both.
        once = {"txnAppId": f"{query} {_COLUMN}", "txnVersion": str(number)}
        bad.write.mode("append").options(**once).saveAsTable(self._name)


class _Sink:
    """A sink by its format; those of messages get them as they came, with the struct's fields beside them."""

    replaces = False

    def __init__(self, options: dict[str, str]) -> None:
        self._format = options.pop("format", "")
        self._options = options
        refused = {"": "no format", "kinesis": "kinesis, and a record of Kinesis has no place for a reason"}
        if self._format in refused:
            what = f"badRecordsTo names {refused[self._format]}"
            action = "Give the format kafka_py or pubsub, one of files or tables, or badRecordsPath."
            raise OptionError("BAD_RECORDS_PLACE", what, _FUNCTION, action)

    def __str__(self) -> str:
        return self._format

    def write(self, bad: DataFrame, query: str, number: int, **_: bool) -> None:
        """Write the batch; what is repeated is recognized by a sink that takes ``txnAppId`` and ``txnVersion``."""
        options = dict(self._options)
        if self._format == "kafka_py":
            bad = _as_messages(bad, ("key", _KEYS), "value", ("headers", _kafka_headers))
            once = {"deliveryGuarantee": "exactly_once", "onMissingMarker": "write"}
            options = once | {"txnAppId": f"{query}-{_COLUMN}", "txnVersion": str(number)} | options
        elif self._format == "pubsub":
            # Its key is a text, which the bytes of another key need not be.
            bad = _as_messages(bad, ("orderingKey", ("orderingKey",)), "payload", ("attributes", _attributes))
        bad.write.format(self._format).options(**options).mode("append").save()


def _as_messages(
    bad: DataFrame,
    key: tuple[str, Sequence[str]],
    value: str,
    extra: tuple[str, Callable[[DataFrame, Mapping[str, Column]], Column]],
) -> DataFrame:
    """Return the messages with their bytes and keys as they came.

    Args:
        bad: the bad records.
        key: the name of the sink's column, and the columns that may be it.
        value: the name of the sink's column.
        extra: the name of the sink's column, and what puts all else that is known into it.
    """
    payload = next((name for name in _PAYLOADS if name in bad.columns), None)
    if payload is None:
        what = f"The batch has none of the columns {', '.join(_PAYLOADS)}, and so no bytes to write"
        raise OptionError("BAD_RECORDS_COLUMN", what, _FUNCTION, "Leave the column of the source in the batch.")
    texts = {name: F.col(_COLUMN).getField(name).cast("string") for name in _SAID}
    texts |= {name: F.col(f"`{name}`").cast("string") for name in _PLACES if name in bad.columns}
    columns = [F.col(f"`{payload}`").alias(value), extra[1](bad, texts).alias(extra[0])]
    columns += [F.col(f"`{name}`").alias(key[0]) for name in key[1] if name in bad.columns][:1]
    return bad.select(*columns)


def _has_attributes(bad: DataFrame) -> bool:
    return "attributes" in bad.columns and isinstance(bad.schema["attributes"].dataType, MapType)


def _kafka_headers(bad: DataFrame, texts: Mapping[str, Column]) -> Column:
    own = [
        F.struct(F.lit(f"{_COLUMN}.{name}").alias("key"), text.cast("binary").alias("value"))
        for name, text in texts.items()
    ]
    added = F.filter(F.array(*own), lambda header: header.getField("value").isNotNull())
    if "headers" in bad.columns:
        return F.concat(F.coalesce(F.col("headers"), F.array().cast(bad.schema["headers"].dataType)), added)
    if _has_attributes(bad):
        pairs = F.transform(
            F.map_entries("attributes"),
            lambda pair: F.struct(pair["key"].alias("key"), pair["value"].cast("binary").alias("value")),
        )
        return F.concat(F.coalesce(pairs, F.array().cast(_HEADERS)), added)
    return added


def _attributes(bad: DataFrame, texts: Mapping[str, Column]) -> Column:
    own = [F.struct(F.lit(f"{_COLUMN}.{name}").alias("key"), text.alias("value")) for name, text in texts.items()]
    added = F.map_from_entries(F.filter(F.array(*own), lambda pair: pair.getField("value").isNotNull()))
    if _has_attributes(bad):
        theirs = F.map_filter(F.col("attributes"), lambda key, _: ~key.startswith(f"{_COLUMN}."))
        return F.map_concat(F.coalesce(theirs, F.create_map().cast("map<string,string>")), added)
    return added


_Place = _Folder | _Table | _Sink
