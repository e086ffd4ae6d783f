"""Decodes on a Spark without Arrow functions, which is 4.0: by a function of pandas, whose columns become Arrow's.

A function of pandas that returns a struct cannot return NULL for it, so the struct is inside of another one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.functions import PandasUDFType, pandas_udf
from pyspark.sql.types import DataType, StructField, StructType

from connectors.core.errors import ConnectorError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from connectors.protobuf.worker import DecodeCall

__all__ = ["arrow_functions_missing", "pandas_function"]

_VALUE: Final = "value"
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def pandas_function(call: DecodeCall, kind: DataType, *, headers: bool) -> Callable[..., Column]:
    """Return Spark's function for a call that decodes, with the result type `kind`."""

    def decode(messages: Any, *kafka_headers: Any) -> Any:
        import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415 - Spark 4.0 needs it, newer ones do not

        columns = [pa.array([_headers_of(row) for row in column], _HEADERS) for column in kafka_headers]
        decoded = call(pa.array(messages, pa.binary(), from_pandas=True), *columns)
        return pd.DataFrame({_VALUE: pd.Series(decoded.to_pylist(maps_as_pydicts="strict"), dtype=object)})

    def decode_with_headers(messages: Any, kafka_headers: Any) -> Any:
        return decode(messages, kafka_headers)

    def decode_alone(messages: Any) -> Any:
        return decode(messages)

    wrapped = StructType([StructField(_VALUE, kind)])
    function: Any = decode_with_headers if headers else decode_alone
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # asks for type hints, for which the driver would load pandas
        made: Any = pandas_udf(function, wrapped, PandasUDFType.SCALAR)

    def column_of(*columns: Any) -> Column:
        column: Column = made(*columns).getField(_VALUE)
        return column

    return column_of


def _headers_of(row: Any) -> list[dict[str, Any]] | None:
    """Return the headers of a record as they are in Kafka's column, from what pandas has of them."""
    return None if row is None else [{"key": header["key"], "value": header["value"]} for header in row]


def arrow_functions_missing(needed_by: str) -> ConnectorError:
    """Return the error for what a Spark without Arrow functions cannot do."""
    return ConnectorError(
        "SPARK_FEATURE_MISSING",
        "This needs Arrow functions, which this Spark does not have",
        needed_by,
        "Use Spark 4.1 or newer.",
    )
