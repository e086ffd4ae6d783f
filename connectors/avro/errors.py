"""Errors of the Avro functions.

Spark's own have no error classes; these have codes in the form of those of the protobuf functions.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException

from connectors.core.errors import ConnectorError

__all__ = ["AvroAnalysisError", "AvroDataError", "AvroError"]


class AvroError(ConnectorError):
    """The base of the errors of the Avro functions."""


class AvroAnalysisError(AvroError, AnalysisException):
    """Raised on the driver when a schema or an argument does not fit."""

    def __init__(self, code: str, what: str, where: str = "", action: str = "") -> None:
        AvroError.__init__(self, code, what, where, action)
        place, advice = f" ({self.where})" if where else "", f" {self.action}" if action else ""
        text = f"{self.what}{place}.{advice}"
        AnalysisException.__init__(self, message=text, errorClass=code, messageParameters={})


class AvroDataError(AvroError):
    """Raised on an executor when a row cannot be converted; names the row and the reason."""
