"""Errors of the functions for topics with several record types."""

from __future__ import annotations

from typing import Final

from connectors.core.errors import ConnectorError
from connectors.core.functions.bad_rows import FunctionAnalysisError

SEVERAL: Final = "MIXED_TYPES_SEVERAL"
UNKNOWN: Final = "MIXED_TYPE_UNKNOWN"


class MixedAnalysisError(FunctionAnalysisError):
    """Raised on the driver when a member or its arguments do not fit."""


class MixedDataError(ConnectorError):
    """Raised on an executor for a message of no member's type."""
