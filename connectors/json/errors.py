"""Errors of the JSON functions, with codes in the form of those of the other formats."""

from __future__ import annotations

from typing import Final

from connectors.core.errors import ConnectorError
from connectors.core.functions.bad_rows import FunctionAnalysisError

MALFORMED: Final = "MALFORMED_JSON_MESSAGE"


class JsonError(ConnectorError):
    """The base of the errors of the JSON functions."""


class JsonAnalysisError(JsonError, FunctionAnalysisError):
    """Raised on the driver when a schema or an argument does not fit."""


class JsonDataError(JsonError):
    """Raised on an executor when a row cannot be read; names the row and the reason."""
