"""Decodes on a Spark without Arrow functions, which is 4.0: by a function of pandas, around Arrow's columns.

A function of pandas that returns a struct cannot return NULL for it, so the struct is inside of another one. pandas
itself converts nothing: its column is a view of Arrow's, which Spark then takes as it is.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.functions import PandasUDFType, pandas_udf  # type: ignore[attr-defined]  # documented, not typed
from pyspark.sql.types import DataType, StructField, StructType

from connectors.core.formats import PANDAS, packages_missing
from connectors.core.functions.bad_rows import headers_type_error
from connectors.core.functions.call import Call
from connectors.core.processes.spark import require_pandas

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from connectors.core.processes.spark import ColumnOrName

_VALUE: Final = "value"
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@cache
def _view() -> Any:
    """Return the class of a pandas column that hands Spark the Arrow array below it."""
    import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415 - Spark 4.0 needs it, newer ones do not

    class View(pd.arrays.ArrowExtensionArray):  # type: ignore[misc]  # has no types
        def map(self, mapper: Any, na_action: Any = None) -> Any:  # noqa: ARG002 - of pandas
            """Return the column: Spark asks for one Python value after the other, of types that Arrow has already."""
            return self

        def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:  # noqa: A002 - of Arrow's protocol
            array = self._pa_array.combine_chunks()
            return array if type is None or type == array.type else array.cast(type)

    return View


class _Pandas:
    """Brings pandas: to where it is made, and to each worker, which gets it with the function of its task.

    Args:
        function: the name of the function that needs pandas.

    Raises:
        ConnectorError: PACKAGES_MISSING.
    """

    def __init__(self, function: str) -> None:
        self._function = function
        try:
            require_pandas()
        except ImportError as error:
            where = f"{function} on Spark {pyspark.__version__}, which runs it by pandas; Spark 4.1 or newer does not"
            raise packages_missing([PANDAS], where, "pandas") from error

    def __reduce__(self) -> tuple[type[_Pandas], tuple[str]]:
        return _Pandas, (self._function,)

    def frame(self, values: pa.Array) -> Any:
        import pandas as pd  # noqa: PLC0415 - Spark 4.0 needs it, newer ones do not

        return pd.DataFrame({_VALUE: pd.Series(_view()(values))})


class PandasFunction:
    """A function of columns that decodes.

    Args:
        call: decodes.
        kind: the type of the result.
        headers: whether it takes the column of Kafka's headers too.
        types: whether it takes a column of types too, which are strings.

    Raises:
        ConnectorError: PACKAGES_MISSING, without pandas; where a worker has none, the query ends with it.
    """

    def __init__(self, call: Call, kind: DataType, *, headers: bool, types: bool = False) -> None:
        self._name = call.function
        pandas = _Pandas(self._name)
        wrapped = StructType([StructField(_VALUE, kind)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # asks for type hints, for which the driver would load pandas
            decoding = _decoding(call, pandas, headers=headers, types=types)
            self._wrapped: Any = pandas_udf(decoding, wrapped, PandasUDFType.SCALAR)

    def __call__(self, *columns: ColumnOrName) -> Column:
        return named(self._wrapped(*columns).getField(_VALUE), self._name, *columns)

    def register(self, spark: SparkSession, name: str) -> None:
        """Make it a function of SQL, which takes what it has from a further one."""
        spark.udf.register(f"wrapped_{name}", self._wrapped)
        result = f"wrapped_{name}(message).{_VALUE}"
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {name}(message BINARY) RETURN {result}")


def named(column: Column, function: str, *arguments: ColumnOrName) -> Column:
    """Return the column with the name that Spark would give to this function of these columns."""
    texts = [
        argument if isinstance(argument, str) else repr(argument)[len("Column<'") : -len("'>")]
        for argument in arguments
    ]
    if any("columnnodeexpression" in text for text in texts):  # what Spark 4.0 has for a function of Python
        return column
    return column.alias(f"{function}({', '.join(texts)})")


def _decoding(call: Call, pandas: _Pandas, *, headers: bool, types: bool) -> Any:
    """Return the function of pandas columns; Spark takes the number of its parameters from its signature."""

    def decode(messages: Any, *others: Any) -> Any:
        columns = [pa.array([kafka_headers(row) for row in column], _HEADERS) for column in others[:headers]]
        columns += [pa.array(column, pa.string(), from_pandas=True) for column in others[headers:]]
        decoded = call(pa.array(messages, pa.binary(), from_pandas=True), *columns)
        return pandas.frame(decoded)

    def decode_alone(messages: Any) -> Any:
        return decode(messages)

    def decode_with_one(messages: Any, other: Any) -> Any:
        return decode(messages, other)

    def decode_with_both(messages: Any, headers_column: Any, types_column: Any) -> Any:
        return decode(messages, headers_column, types_column)

    return (decode_alone, decode_with_one, decode_with_both)[headers + types]


def kafka_headers(row: Any) -> list[dict[str, Any]] | None:
    """Return the headers of a record as they are in Kafka's column, from what pandas has of an array or a map.

    Raises:
        ColumnTypeError: they are not in the form of Kafka's.
    """
    if row is None:
        return None
    try:
        present = [header for header in row if header is not None]
        pairs = row.items() if isinstance(row, dict) else [(header["key"], header["value"]) for header in present]
    except (TypeError, KeyError, IndexError):
        raise headers_type_error(type(row).__name__) from None
    headers = [{"key": key, "value": value} for key, value in pairs]
    if any(not isinstance(header["value"], bytes | None) for header in headers):
        raise headers_type_error("STRING, or another one, in their values")
    return headers
