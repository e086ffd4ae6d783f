"""The filters that Spark pushes to a batch read. They only spare reading: Spark applies each of them again."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader

from connectors.core.processes.spark import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TESTS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    In: lambda own, value: own in value,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: str.startswith,
}
_LEAST: Final[dict[type[Filter], Callable[[Any], Any]]] = {
    EqualTo: lambda value: value,
    EqualNullSafe: lambda value: value,
    In: lambda values: min(_without_nulls(values), default=None),
    GreaterThan: lambda value: value + 1 if isinstance(value, int) else value,
    GreaterThanOrEqual: lambda value: value,
}
_MOST: Final[dict[type[Filter], Callable[[Any], Any]]] = {
    EqualTo: lambda value: value,
    EqualNullSafe: lambda value: value,
    In: lambda values: max(_without_nulls(values), default=None),
    LessThan: lambda value: value - 1 if isinstance(value, int) else value,
    LessThanOrEqual: lambda value: value,
}


class PushFilters:
    """The method ``pushFilters`` of a reader, disguised as the one that PySpark's base class defines.

    With ``spark.sql.python.filterPushdown.enabled`` off, which is the default, PySpark refuses a reader that overrides
    the method, by comparing its ``__func__``; and a reader cannot read that setting.
    """

    def __init__(self, take: Callable[[tuple[Filter, ...]], None]) -> None:
        self._take = take
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters; all are left to Spark as well."""
        self._take(tuple(filters))
        return filters


def allows(filters: Iterable[Filter], **values: Any) -> bool:
    """Return whether a row with these values, by column, can match filters that must all hold."""
    return all(
        kind not in _TESTS or column not in values or _TESTS[kind](values[column], value)
        for kind, column, value in _conditions(filters)
    )


def interval(filters: Iterable[Filter], column: str) -> tuple[Any, Any]:
    """Return the least and the most value of a column that filters leave, both included; None for no bound."""
    named = [(kind, value) for kind, name, value in _conditions(filters) if name == column]
    least = [_LEAST[kind](value) for kind, value in named if kind in _LEAST]
    most = [_MOST[kind](value) for kind, value in named if kind in _MOST]
    return max(_without_nulls(least), default=None), min(_without_nulls(most), default=None)


def time_interval(filters: Iterable[Filter], column: str) -> tuple[int | None, int | None]:
    """Return what `interval` does of a column of timestamps, in microseconds since 1970."""
    least, most = interval(filters, column)
    return (None if least is None else _microseconds(least)), (None if most is None else _microseconds(most))


def _conditions(filters: Iterable[Filter]) -> Iterator[tuple[type[Filter], str, Any]]:
    """Yield kind, column and value of each filter that compares a column of the top level with a value."""
    for condition in filters:
        match getattr(condition, "attribute", ()), getattr(condition, "value", None):
            case (str(column),), value if value is not None:
                yield type(condition), column, value


def _without_nulls(values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if value is not None)


def _microseconds(value: dt.datetime) -> int:
    return ((value if value.tzinfo else value.astimezone()) - _EPOCH) // dt.timedelta(microseconds=1)
