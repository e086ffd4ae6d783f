"""`from_protobuf` and `to_protobuf` as column functions, with the signatures of Spark's own.

    from connectors.protobuf import from_protobuf, to_protobuf

    events = raw.select(from_protobuf("value", "Event", "events.desc").alias("event"))

They need no jar: messages are decoded and encoded in Spark's Python workers, as Arrow columns. The first five
parameters are those of ``pyspark.sql.protobuf.functions``, so that the import is all that changes.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from google.protobuf.message import Message
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.protobuf import functions as jvm_functions
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from connectors.core.errors import OptionError
from connectors.core.pool import Cache
from connectors.protobuf.confluent.frames import indexes_of, message_at
from connectors.protobuf.confluent.registry import RegisteredSchema, Registry
from connectors.protobuf.errors import ProtobufAnalysisError, analysis_error
from connectors.protobuf.options import (
    ProtobufOptions,
    RegistryOptions,
    WireFormat,
    parse_protobuf_options,
    parse_registry_options,
)
from connectors.protobuf.ptars.decoder import unsupported
from connectors.protobuf.schema.descriptors import (
    MessageType,
    class_descriptor_set,
    read_descriptor_file,
    well_known_class,
)
from connectors.protobuf.schema.plan import compile_plan, select_fields
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine, schema_of, use_ptars

if TYPE_CHECKING:
    from pyspark.sql._typing import ColumnOrName

__all__ = ["from_protobuf", "function_of", "to_protobuf"]


_log = logging.getLogger(__name__)

_JVM_CLASS: Final = "org.apache.spark.sql.protobuf.ProtobufDataToCatalyst"
_OWN_OPTIONS: Final = {"on.error", "use.deprecated.format", "wire.format"}

MessageName = str | type[Message] | None

_functions: Final = Cache(32)
"""Spark's functions by call. Each may hold a file on the driver."""


def function_of(
    call: DecodeCall | EncodeCall, kind: DataType, session: SparkSession | None, *, headers: bool = False
) -> Callable[..., Column]:
    """Return Spark's function for a call; the same one for the same call.

    Spark sends a large function by a file on the driver, one for each function that is made: within foreachBatch that
    would be one for each batch. The file is of a Spark context, so no other one gets the function.

    Through Spark Connect nothing is cached: there a plan holds its functions. The call decides its result type `kind`;
    with `headers` the function also takes Kafka's headers.
    """

    # Columns get the names of these functions.
    def from_protobuf(messages: pa.Array) -> pa.Array:
        return call(messages)

    def with_headers(messages: pa.Array, kafka_headers: pa.Array) -> pa.Array:
        return call(messages, kafka_headers)  # type: ignore[call-arg]  # only of a DecodeCall

    def to_protobuf(structs: pa.Array) -> pa.Array:
        return call(structs)

    with_headers.__name__ = "from_protobuf"
    decode = with_headers if headers else from_protobuf

    def make() -> Callable[..., Column]:
        arrow_udf: Any = spark_functions.arrow_udf  # type: ignore[attr-defined]  # its stub leaves it out
        function: Callable[..., Column] = arrow_udf(decode if isinstance(call, DecodeCall) else to_protobuf, kind)
        return function

    context: Any = getattr(session, "_sc", None)
    return make() if context is None else _functions.get((context.applicationId, call, headers), make)


def from_protobuf(  # noqa: PLR0913 - Spark's five, and what it has not
    data: ColumnOrName,
    messageName: MessageName = None,  # noqa: N803 - Spark's name
    descFilePath: str | None = None,  # noqa: N803 - Spark's name
    options: Mapping[str, str] | None = None,
    binaryDescriptorSet: bytes | bytearray | None = None,  # noqa: N803 - Spark's name
    *,
    messageClass: type[Message] | None = None,  # noqa: N803 - in the form of the others
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
    headers: ColumnOrName | None = None,
    fields: Sequence[str] | None = None,
    engine: str = "auto",
) -> Column:
    """Convert a BINARY column of protobuf messages into a STRUCT column; NULL stays NULL.

    Args:
        data: the column, or its name.
        messageName: the short or full name of a top-level message of the descriptor set. Without a descriptor set, a
            message that comes with protobuf by its Java name; a generated class is taken as `messageClass`.
        descFilePath: a descriptor set file (``protoc --include_imports --descriptor_set_out``); the driver reads it.
        options: see `docs/reference/protobuf.md`; names in any case.
        binaryDescriptorSet: the bytes of a descriptor set.
        messageClass: a generated Python class, instead of name and descriptor set.
        schemaRegistry: a registry that speaks Confluent's interface: its ``address``, the ``subject`` whose latest
            version gives the columns (not needed with a descriptor set or a class), and how to log in; see
            `docs/reference/protobuf.md`. Messages are then in Confluent's frames.
        headers: the column of Kafka's headers, for writers that put the schema's id there.
        fields: top-level columns to keep, in this order; None for all.
        engine: ``auto``, ``fast`` (ptars), ``python`` (upb), or ``jvm`` (Spark's own, which needs its jar). auto is
            jvm where the jar is there and nothing is asked for that it has not; else it takes what is faster for each
            batch: upb for small ones, ptars for large ones, where it is installed and can decode the message.

    Raises:
        ProtobufAnalysisError: the descriptor set, the message, its schema or a mode does not fit; with the class and
            text of Spark's error.
        OptionError: an option is unknown or illegal.
        ConnectorError: the registry does not answer, refuses access, or has no such subject.
    """
    _check_constants("FROM_PROTOBUF", messageName, descFilePath, options, binaryDescriptorSet)
    parsed = _session_options(parse_protobuf_options(options, "from_protobuf"))
    own = any(argument is not None for argument in (messageClass, fields, schemaRegistry, headers))
    chosen = _engine("FROM_PROTOBUF", engine, options, own=own, name=messageName)
    if chosen is Engine.JVM:
        return jvm_functions.from_protobuf(data, messageName, descFilePath, options, binaryDescriptorSet)  # type: ignore[arg-type]
    registry = None if schemaRegistry is None else parse_registry_options(schemaRegistry)
    if registry is not None:
        parsed = dataclasses.replace(parsed, wire_format=WireFormat.CONFLUENT)
    descriptors, message, _ = _locate(registry, messageName, descFilePath, binaryDescriptorSet, messageClass)
    schema = schema_of(descriptors)
    plan = compile_plan(schema.pool.FindMessageTypeByName(message), schema, parsed)
    _log_engine("from_protobuf", message, chosen, unsupported(plan))
    columns = None if fields is None else tuple(fields)
    result = (plan if columns is None else select_fields(plan, columns)).spark_type
    if parsed.error_column:
        result = StructType([StructField("value", result), StructField("error", StringType())])
    call = DecodeCall(_needed_files(descriptors, message, parsed), message, parsed, columns, chosen, registry)
    arguments = (data,) if headers is None else (data, headers)
    return function_of(call, result, _session(), headers=headers is not None)(*arguments)


def to_protobuf(
    data: ColumnOrName,
    messageName: MessageName = None,  # noqa: N803 - Spark's name
    descFilePath: str | None = None,  # noqa: N803 - Spark's name
    options: Mapping[str, str] | None = None,
    binaryDescriptorSet: bytes | bytearray | None = None,  # noqa: N803 - Spark's name
    *,
    messageClass: type[Message] | None = None,  # noqa: N803 - in the form of the others
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
    engine: str = "auto",
) -> Column:
    """Convert a STRUCT column into a BINARY column of protobuf messages; NULL stays NULL.

    Columns and fields match by name, without regard to case unless ``spark.sql.caseSensitive`` is true. That they fit
    is checked when the first batch is there, on the executor: Python does not see the type of a column before.

    Args:
        data: the column, or its name.
        messageName: as in `from_protobuf`.
        descFilePath: as in `from_protobuf`.
        options: as in `from_protobuf`.
        binaryDescriptorSet: as in `from_protobuf`.
        messageClass: as in `from_protobuf`.
        schemaRegistry: as in `from_protobuf`; messages are framed with the id of the latest version of the subject.
        engine: as in `from_protobuf`.

    Raises:
        ProtobufAnalysisError: the descriptor set or the message cannot be found or read.
        OptionError: an option is unknown or illegal.
    """
    _check_constants("TO_PROTOBUF", messageName, descFilePath, options, binaryDescriptorSet)
    parsed = _session_options(parse_protobuf_options(options, "to_protobuf"))
    own = messageClass is not None or schemaRegistry is not None
    chosen = _engine("TO_PROTOBUF", engine, options, own=own, name=messageName)
    if chosen is Engine.JVM:
        return jvm_functions.to_protobuf(data, messageName, descFilePath, options, binaryDescriptorSet)  # type: ignore[arg-type]
    registry = None if schemaRegistry is None else parse_registry_options(schemaRegistry)
    if registry is None and parsed.wire_format is WireFormat.CONFLUENT:
        raise ProtobufAnalysisError(
            "PROTOBUF_SCHEMA_ID_UNKNOWN",
            "to_protobuf cannot write Confluent frames without a schema id",
            "wire.format=confluent",
            "Give schemaRegistry with an address and a subject.",
        )
    descriptors, message, frame = _written(registry, messageName, descFilePath, binaryDescriptorSet, messageClass)
    _log_engine("to_protobuf", message, chosen, "")
    call = EncodeCall(_needed_files(descriptors, message, parsed), message, parsed, chosen, frame)
    return function_of(call, BinaryType(), _session())(data)


def _log_engine(function: str, message: str, engine: Engine, obstacle: str) -> None:
    columns = Engine.FAST if use_ptars(engine, obstacle) else Engine.PYTHON
    _log.info("protobuf: %s of %s by the engine %s (%s for large batches)", function, message, engine, columns)


def _needed_files(descriptors: bytes, message: str, options: ProtobufOptions) -> bytes:
    """Return what a worker needs of a descriptor set, which may be that of a whole company.

    An extension, and what an Any holds, may be in a file that the message's own does not import.
    """
    if options.extensions or options.convert_any_fields_to_json:
        return descriptors
    return class_descriptor_set(schema_of(descriptors).pool.FindMessageTypeByName(message))


def _check_constants(function: str, name: Any, path: Any, options: Any, data: Any) -> None:
    """Refuse columns where constants belong, in the text of Spark's SQL functions."""

    def refusal(which: str, what: str) -> ProtobufAnalysisError:
        return ProtobufAnalysisError(
            "DATATYPE_MISMATCH.TYPE_CHECK_FAILURE_WITH_HINT",
            f"The {which} argument of the {function} SQL function must be {what}",
            function.lower(),
        )

    is_class = isinstance(name, type) and issubclass(name, Message)
    if name is not None and not is_class and not isinstance(name, str):
        raise refusal("second", "a constant string representing the Protobuf message name")
    if (path is not None and not isinstance(path, str) and not hasattr(path, "__fspath__")) or (
        data is not None and not isinstance(data, bytes | bytearray | memoryview)
    ):
        raise refusal("third", "a constant string or binary data representing the Protobuf descriptor file path")
    if options is not None and (
        not isinstance(options, Mapping)
        or any(not isinstance(key, str) or not isinstance(value, str | bool | int) for key, value in options.items())
    ):
        direction = "from" if function.startswith("FROM") else "to"
        raise refusal(
            "fourth",
            "a constant map of strings to strings containing the options to use for converting the value "
            f"{direction} Protobuf format",
        )


def _session_options(options: ProtobufOptions) -> ProtobufOptions:
    """Return the options with what the session's configuration says."""
    session = _session()
    if session is None:
        return options

    def is_true(key: str) -> bool:
        return str(session.conf.get(key, "false")).lower() == "true"

    return dataclasses.replace(
        options,
        extensions=is_true("spark.sql.function.protobufExtensions.enabled"),
        case_sensitive=is_true("spark.sql.caseSensitive"),
    )


def _session() -> SparkSession | None:
    """Return the active session, and in a thread that has none the default one."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _resolve(
    name: MessageName, path: str | None, data: bytes | bytearray | None, message_class: type[Message] | None
) -> tuple[bytes, str]:
    """Return the descriptor set and the full name of the message."""
    if isinstance(name, type):
        message_class, name = name, None
    if message_class is not None:
        descriptor: MessageType = message_class.DESCRIPTOR
        return class_descriptor_set(descriptor), descriptor.full_name
    if name is None:
        raise analysis_error(
            "PROTOBUF_MESSAGE_NOT_FOUND", messageName="''", action="Give messageName, or messageClass."
        )
    if data is None and path is None:
        well_known = well_known_class(name)
        if well_known is None:
            raise analysis_error(
                "CANNOT_LOAD_PROTOBUF_CLASS",
                protobufClassName=name,
                explanation="Java classes can only be loaded by Spark's own function, which needs its jar",
                action="Give descFilePath or binaryDescriptorSet, or a generated Python class as messageClass.",
            )
        return class_descriptor_set(well_known.DESCRIPTOR), well_known.DESCRIPTOR.full_name
    descriptors = bytes(data) if data is not None else read_descriptor_file(path or "")
    return descriptors, schema_of(descriptors).find(name).full_name


def _locate(
    registry: RegistryOptions | None,
    name: MessageName,
    path: str | None,
    data: bytes | bytearray | None,
    message_class: type[Message] | None,
) -> tuple[bytes, str, RegisteredSchema | None]:
    """Return descriptor set and full name, and the schema of the registry's subject if only that says what they are."""
    if registry is None or isinstance(name, type) or (path, data, message_class) != (None, None, None):
        return *_resolve(name, path, data, message_class), None
    return _from_registry(registry, name)


def _from_registry(registry: RegistryOptions, name: MessageName) -> tuple[bytes, str, RegisteredSchema]:
    """Return the descriptor set and the full name of a subject's message, the first one where there is no name."""
    if registry.subject is None:
        raise OptionError(
            "OPTION_MISSING",
            "The option schema.registry.subject is required",
            "schemaRegistry",
            "Give the subject, or a descriptor set with a message name and, for to_protobuf, the subject too.",
        )
    registered = Registry(registry).latest(registry.subject)
    message = message_at(registered, (0,)) if name is None else schema_of(registered.files).find(str(name))
    return registered.files, message.full_name, registered


def _written(registry: RegistryOptions | None, *source: Any) -> tuple[bytes, str, tuple[int, tuple[int, ...]] | None]:
    """Return descriptor set, full name, and for a frame the schema id and the message indexes.

    A registry is asked once: a version that is registered meanwhile must not lend its id to messages of another.
    """
    descriptors, message, registered = _locate(registry, *source)
    if registry is None:
        return descriptors, message, None
    registered = registered or _from_registry(registry, message)[2]
    return descriptors, message, (registered.schema_id, indexes_of(registered, message))


def _engine(function: str, wanted: str, options: Mapping[str, str] | None, *, own: bool, name: MessageName) -> Engine:
    """Return the engine of a call.

    Raises:
        ProtobufAnalysisError: ENGINE_UNKNOWN; PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE for jvm without the jar; or
            PROTOBUF_ENGINE for jvm with what Spark's function has not.
    """
    try:
        engine = Engine(str(wanted).lower())
    except ValueError:
        raise ProtobufAnalysisError(
            "PROTOBUF_ENGINE",
            f"The engine cannot be {wanted!r}",
            "from_protobuf and to_protobuf",
            f"Give {', '.join(Engine)}.",
        ) from None
    own = own or isinstance(name, type) or any(key.lower() in _OWN_OPTIONS for key in options or {})
    if engine is Engine.JVM:
        if own:
            raise ProtobufAnalysisError(
                "PROTOBUF_ENGINE",
                "Spark's own function has no messageClass, fields, schemaRegistry and headers, and none of the options "
                "on.error, wire.format and use.deprecated.format",
                "engine=jvm",
                "Leave them out, or let engine be auto.",
            )
        if not _has_jar():
            raise analysis_error("PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE", functionName=function)
    elif engine is Engine.AUTO and not own and _has_jar():
        _log.info("protobuf: engine=auto takes Spark's own function, because its jar is there")
        return Engine.JVM
    return engine


def _has_jar() -> bool:
    """Return whether Spark's own function can be used: the class that does the work must be on the class path.

    The ``functions`` object is there without the jar too (Spark 4.3), so that says nothing. Through Spark Connect the
    class path of the server cannot be seen: then it counts as absent.
    """
    jvm: Any = getattr(_session(), "_jvm", None)
    if jvm is None:
        return False
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 - not with Spark Connect

    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(_JVM_CLASS, False, loader)
    except Py4JJavaError:
        return False
    return True
