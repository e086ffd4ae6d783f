"""Errors of the JSON functions, with codes in the form of those of the other formats."""

from __future__ import annotations

from pyspark.errors import AnalysisException

from connectors.core.errors import ConnectorError

__all__ = ["JsonAnalysisError", "JsonDataError", "JsonError"]


class JsonError(ConnectorError):
    """The base of the errors of the JSON functions."""


class JsonAnalysisError(JsonError, AnalysisException):
    """Raised on the driver when a schema or an argument does not fit."""

    def __init__(self, code: str, what: str, where: str = "", action: str = "") -> None:
        JsonError.__init__(self, code, what, where, action)
        place, advice = f" ({self.where})" if where else "", f" {self.action}" if action else ""
        text = f"{self.what}{place}.{advice}"
        AnalysisException.__init__(self, message=text, errorClass=code, messageParameters={})


class JsonDataError(JsonError):
    """Raised on an executor when a row cannot be read; names the row and the reason."""
