"""The base of errors of functions whose codes are ours; those of protobuf have Spark's."""

from __future__ import annotations

from pyspark.errors import AnalysisException

from connectors.core.errors import ConnectorError


class FunctionAnalysisError(ConnectorError, AnalysisException):
    """Raised on the driver when a schema or an argument does not fit; Spark's too, with the same code and text."""

    def __init__(self, code: str, what: str, where: str = "", action: str = "") -> None:
        ConnectorError.__init__(self, code, what, where, action)
        place, advice = f" ({self.where})" if where else "", f" {self.action}" if action else ""
        text = f"{self.what}{place}.{advice}"
        AnalysisException.__init__(self, message=text, errorClass=code, messageParameters={})
