"""Errors of the protobuf functions, with the classes, texts and SQL states of Spark's own.

What is raised on an executor reaches the driver as the text of a PythonException: that text begins with the class in
brackets, as Spark's does. The texts are those of Spark 4.3's ``error-conditions.json``; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from connectors.core.errors import ConnectorError, one_line
from connectors.core.functions.bad_rows import FunctionAnalysisError

_TEXTS_BY_STATE: Final = {
    "22018": {
        "CANNOT_PARSE_PROTOBUF_DESCRIPTOR": "Error parsing descriptor bytes into Protobuf FileDescriptorSet.",
    },
    "22KD3": {
        "PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE": (
            "Cannot call the <functionName> SQL function because the Protobuf data source is not loaded.\nPlease "
            "restart your job or session with the 'spark-protobuf' package loaded, such as by using the --packages "
            "argument on the command line, and then retry your query or command again."
        ),
    },
    "42601": {
        "PARSE_MODE_UNSUPPORTED": (
            "The function <funcName> doesn't support the <mode> mode. Acceptable modes are PERMISSIVE and FAILFAST."
        ),
    },
    "42846": {
        "CANNOT_CONVERT_SQL_TYPE_TO_PROTOBUF_FIELD_TYPE": (
            "Cannot convert SQL <sqlColumn> to Protobuf <protobufColumn> because schema is incompatible (protobufType "
            "= <protobufType>, sqlType = <sqlType>)."
        ),
        "CANNOT_CONVERT_SQL_VALUE_TO_PROTOBUF_ENUM_TYPE": (
            "Cannot convert SQL <sqlColumn> to Protobuf <protobufColumn> because <data> is not in defined values for "
            "enum: <enumString>."
        ),
    },
    "42K03": {
        "CANNOT_LOAD_PROTOBUF_CLASS": "Could not load Protobuf class with name <protobufClassName>. <explanation>.",
    },
    "42K0G": {
        "PROTOBUF_DEPENDENCY_NOT_FOUND": "Could not find dependency: <dependencyName>.",
        "PROTOBUF_DESCRIPTOR_FILE_NOT_FOUND": "Error reading Protobuf descriptor file at path: <filePath>.",
        "PROTOBUF_FIELD_MISSING": (
            "Searching for <field> in Protobuf schema at <protobufSchema> gave <matchSize> matches. Candidates: "
            "<matches>."
        ),
        "PROTOBUF_FIELD_MISSING_IN_SQL_SCHEMA": (
            "Found <field> in Protobuf schema but there is no match in the SQL schema."
        ),
        "PROTOBUF_FIELD_TYPE_MISMATCH": "Type mismatch encountered for field: <field>.",
        "PROTOBUF_MESSAGE_NOT_FOUND": "Unable to locate Message <messageName> in Descriptor.",
        "PROTOBUF_TYPE_NOT_SUPPORT": "Protobuf type not yet supported: <protobufType>.",
        "RECURSIVE_PROTOBUF_SCHEMA": (
            "Found recursive reference in Protobuf schema, which can not be processed by Spark by default: "
            "<fieldDescriptor>. try setting the option `recursive.fields.max.depth` 1 to 10. Going beyond 10 levels of "
            "recursion is not allowed."
        ),
        "UNABLE_TO_CONVERT_TO_PROTOBUF_MESSAGE_TYPE": (
            "Unable to convert SQL type <toType> to Protobuf type <protobufType>."
        ),
    },
    "42S22": {
        "NO_SQL_TYPE_IN_PROTOBUF_SCHEMA": "Cannot find <catalystFieldPath> in Protobuf schema.",
    },
    "XX000": {
        "MALFORMED_PROTOBUF_MESSAGE": (
            "Malformed Protobuf messages are detected in message deserialization. Parse Mode: <failFastMode>. To "
            "process malformed protobuf message as null result, try setting the option 'mode' as 'PERMISSIVE'."
        ),
    },
}
CONDITIONS: Final = {code: (text, state) for state, texts in _TEXTS_BY_STATE.items() for code, text in texts.items()}
"""Class to the template of its text and its SQL state; only those that are raised here."""


class ProtobufError(ConnectorError):
    """The base of the errors of `from_protobuf` and `to_protobuf`.

    The text is Spark's, then where and what to do: ``[CLASS] text SQLSTATE: state (where). action``.
    """

    def getSqlState(self) -> str | None:  # noqa: N802 - the name of Spark's own method
        return CONDITIONS[self.code][1] if self.code in CONDITIONS else None


class ProtobufAnalysisError(ProtobufError, FunctionAnalysisError):
    """Raised when a descriptor, a schema or an option does not fit: on the driver, when the function is called.

    What depends on the type of the column of `to_protobuf`, which Python does not know before, on the executor.
    """

    parameters: Mapping[str, str] = MappingProxyType({})
    """The parts of the text that differ from error to error, by their names in `CONDITIONS`."""

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802 - the name of Spark's own method
        return dict(self.parameters)


class ProtobufDataError(ProtobufError):
    """Raised on an executor when a row cannot be converted; names the row and the reason."""


def _text(code: str, parameters: dict[str, object]) -> str:
    template, state = CONDITIONS[code]
    for name, value in parameters.items():
        template = template.replace(f"<{name}>", str(value))
    return f"{template} SQLSTATE: {state}"


def analysis_error(code: str, *, where: str = "", action: str = "", **parameters: object) -> ProtobufAnalysisError:
    """Return an analysis error of a class in `CONDITIONS`; the parameters are those of its template."""
    error = ProtobufAnalysisError(code, _text(code, parameters), where, action)
    error.parameters = {name: one_line(str(value)) for name, value in parameters.items()}
    return error


def data_error(code: str, *, where: str = "", action: str = "", **parameters: object) -> ProtobufDataError:
    return ProtobufDataError(code, _text(code, parameters), where, action)
