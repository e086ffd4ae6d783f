"""The columns that the sink takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import BinaryType, DataType, MapType, StringType

from connectors.core.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from connectors.pubsub.write_options import PubSubWriteOptions

__all__ = ["SINK", "SinkColumns", "check_columns"]

SINK: Final = "pubsub sink"


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Which columns a sink reads, by their names.

    Attributes:
        payload: of the payload.
        attributes: of the attributes; None without.
        ordering_key: of the ordering key; None without.
        topic_column: of the topic; None when one is given for all rows.
        topic: full path of the topic of all rows; None takes the column.
        project: of topics that are given by their ids.
    """

    payload: str
    attributes: str | None
    ordering_key: str | None
    topic_column: str | None
    topic: str | None
    project: str | None


def check_columns(schema: StructType, options: PubSubWriteOptions) -> SinkColumns:
    """Find the columns of a sink; others are not looked at. Names count in any case, as in Spark SQL.

    Args:
        schema: of the rows.
        options: of the sink.

    Raises:
        OptionError: a column is missing, is there twice, or has a type that cannot be written.
    """
    found: dict[str, str] = {}
    types: dict[str, DataType] = {}
    for field in schema:
        name = field.name.lower()
        if name in {"payload", "data", "attributes", "orderingkey", "topic"}:
            if name in found:
                raise _illegal(f"There are two columns {field.name}", "Drop or rename one of them.")
            found[name], types[name] = field.name, field.dataType
    if "payload" in found and "data" in found:
        raise _illegal("There is a column payload and a column data", "Drop or rename one of them.")
    payload = "payload" if "payload" in found else "data"
    if payload not in found:
        raise _illegal("There is no column payload, nor data", "Name the column with the bytes of the message payload.")
    use_topic = options.topic is None
    if use_topic and "topic" not in found:
        raise _illegal("There is neither an option topicId nor a column topic", "Give one of them.")
    _check_type(types, payload, "binary or string")
    _check_type(types, "attributes", "map<string,string>")
    _check_type(types, "orderingkey", "string")
    if use_topic:
        _check_type(types, "topic", "string")
    return SinkColumns(
        payload=found[payload],
        attributes=found.get("attributes"),
        ordering_key=found.get("orderingkey"),
        topic_column=found["topic"] if use_topic else None,
        topic=options.topic,
        project=options.project_id,
    )


def _check_type(types: Mapping[str, DataType], name: str, legal: str) -> None:
    kind = types.get(name)
    if kind is None:
        return
    if legal == "map<string,string>":
        fits = isinstance(kind, MapType) and all(
            isinstance(each, StringType) for each in (kind.keyType, kind.valueType)
        )
    else:
        fits = isinstance(kind, StringType) or ("binary" in legal and isinstance(kind, BinaryType))
    if not fits:
        raise _illegal(f"The column {name} is {kind.simpleString()}, and it must be {legal}", f"Cast {name}.")


def _illegal(what: str, action: str) -> OptionError:
    return OptionError("PUBSUB_SINK_COLUMNS", what, SINK, action)
