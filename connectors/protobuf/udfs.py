"""The functions of Spark that carry calls to workers, kept so that a call that is made again sends nothing anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import DataType

from connectors.core.pool import Cache
from connectors.protobuf.worker import DecodeCall, EncodeCall

__all__ = ["function_of"]

_KEPT: Final = 32
"""Each may hold a file on the driver."""
_functions: Final = Cache(_KEPT)


def function_of(
    call: DecodeCall | EncodeCall, kind: DataType, session: SparkSession | None, *, headers: bool = False
) -> Callable[..., Column]:
    """The function of Spark for a call; the same one for the same call.

    Spark sends a large function by a file on the driver, one for each function that is made: within foreachBatch that
    would be one for each batch. The file is of a Spark context, so no other one gets the function.

    Args:
        call: what to do.
        kind: the type of its result, which the call decides.
        session: the active one. Through Spark Connect nothing is kept: there each plan holds its functions.
        headers: whether it also takes Kafka's headers.
    """

    def make() -> Callable[..., Column]:
        arrow_udf: Any = spark_functions.arrow_udf  # type: ignore[attr-defined]  # its stub leaves it out
        function = _decoding(call, headers=headers) if isinstance(call, DecodeCall) else _encoding(call)
        made: Callable[..., Column] = arrow_udf(function, kind)
        return made

    context: Any = getattr(session, "_sc", None)
    return make() if context is None else _functions.get((context.applicationId, call, headers), make)


# The names of these functions are the names of the columns.


def _decoding(call: DecodeCall, *, headers: bool) -> Any:
    def from_protobuf(messages: pa.Array) -> pa.Array:
        return call(messages)

    def with_headers(messages: pa.Array, given: pa.Array) -> pa.Array:
        return call(messages, given)

    with_headers.__name__ = "from_protobuf"
    return with_headers if headers else from_protobuf


def _encoding(call: EncodeCall) -> Any:
    def to_protobuf(structs: pa.Array) -> pa.Array:
        return call(structs)

    return to_protobuf
