"""Spark's function for a call, on each Spark; the call itself travels to the workers and builds its codec there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import DataType

from connectors.core.functions.call import Call
from connectors.core.functions.pandas_columns import PandasFunction
from connectors.core.functions.row_columns import RowFunction
from connectors.core.processes.pool import Cache
from connectors.core.processes.spark import classic_context

_functions: Final = Cache(32)  # Spark's functions by call. Each may hold a file on the driver


def active_session() -> SparkSession | None:
    """Return the active session, and in a thread that has none the default one."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def session_value(name: str, default: str) -> str:
    """Return what the session's configuration says; the default too where there is no session."""
    session = active_session()
    return default if session is None else str(session.conf.get(name, default))


def is_case_sensitive() -> bool:
    return session_value("spark.sql.caseSensitive", "false").lower() == "true"


def function_of(
    call: Call, kind: DataType, session: SparkSession | None, *, headers: bool = False, types: bool = False
) -> Callable[..., Column]:
    """Return Spark's function for a call, with the result type `kind`; the same one for the same call.

    It takes the column of messages or values, then that of Kafka's `headers`, then a column of `types` as strings.

    Spark sends a large function by a file on the driver, one for each function that is made: within foreachBatch that
    would be one for each batch. The file is of a Spark context, so no other one gets the function. Through Spark
    Connect nothing is cached: there a plan holds its functions.
    """

    def convert(column: pa.Array) -> pa.Array:
        return call(column)

    def convert_with_headers(messages: pa.Array, kafka_headers: pa.Array) -> pa.Array:
        return call(messages, kafka_headers)

    def convert_with_both(messages: pa.Array, kafka_headers: pa.Array, types_column: pa.Array) -> pa.Array:
        return call(messages, kafka_headers, types_column)

    function: Any = (convert, convert_with_headers, convert_with_both)[headers + types]
    function.__name__ = call.function

    def make() -> Callable[..., Column]:
        arrow_udf: Any = getattr(spark_functions, "arrow_udf", None)  # Spark 4.0 has none
        if arrow_udf is None:
            return RowFunction(call) if call.encodes else PandasFunction(call, kind, headers=headers, types=types)
        made: Callable[..., Column] = arrow_udf(function, kind)
        return made

    context = classic_context(session)
    return make() if context is None else _functions.get((context.applicationId, call, headers, types), make)
