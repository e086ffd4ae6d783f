"""Errors of the Avro functions.

Spark's own have no error classes; these have codes in the form of those of the protobuf functions.
"""

from __future__ import annotations

from connectors.core.errors import ConnectorError
from connectors.core.functions.bad_rows import FunctionAnalysisError


class AvroError(ConnectorError):
    """The base of the errors of the Avro functions."""


class AvroAnalysisError(AvroError, FunctionAnalysisError):
    """Raised on the driver when a schema or an argument does not fit."""


class AvroDataError(AvroError):
    """Raised on an executor when a row cannot be converted; names the row and the reason."""
