"""`from_protobuf` and `to_protobuf` as column functions, which need no jar.

Messages are decoded and encoded in Spark's Python workers, as Arrow columns. The first five parameters are those of
``pyspark.sql.protobuf.functions``, so that the import is all that changes.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message
from pyspark.sql import Column, SparkSession
from pyspark.sql.protobuf import functions as jvm_functions
from pyspark.sql.types import BinaryType, DataType

from connectors.core.errors import OptionError
from connectors.core.functions.calls import active_session, function_of, is_case_sensitive, session_value
from connectors.core.functions.pandas_columns import PandasFunction
from connectors.core.functions.row_columns import RowFunction
from connectors.core.processes.spark import jvm_has_class
from connectors.protobuf.confluent.registry import RegisteredSchema, protobuf_registry
from connectors.protobuf.errors import ProtobufAnalysisError, analysis_error
from connectors.protobuf.glue import framing_of
from connectors.protobuf.options import ProtobufOptions, WireFormat, parse_protobuf_options
from connectors.protobuf.ptars.decoder import unsupported
from connectors.protobuf.schema.descriptors import (
    MessageType,
    class_descriptor_set,
    read_descriptor_file,
    well_known_message,
)
from connectors.protobuf.schema.plan import compile_plan, select_fields
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine, schema_of, use_ptars
from connectors.registry.glue.options import AnyRegistryOptions, parse_schema_registry
from connectors.registry.kinds import Frame, frame_of

if TYPE_CHECKING:
    from connectors.core.processes.spark import ColumnOrName

_log = logging.getLogger(__name__)

# The ``functions`` object is there without the jar too (Spark 4.3).
_JVM_CLASS: Final = "org.apache.spark.sql.protobuf.ProtobufDataToCatalyst"
_OWN_OPTIONS: Final = {"on.error", "wire.format"}

MessageName = str | type[Message] | None
_Source = tuple[MessageName, str | None, bytes | bytearray | None, type[Message] | None]
"""The message's name, and the file, bytes or class that describes it."""


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
    isKey: bool = False,  # noqa: N803 - as Confluent's clients call it
    fields: Sequence[str] | None = None,
    engine: str = "auto",
) -> Column:
    """Convert a BINARY column of protobuf messages into a STRUCT column; NULL stays NULL.

    Args:
        data: the column, or its name.
        messageName: the short or full name of a top-level message of the descriptor set. Without a descriptor set, a
            message that comes with protobuf by its Java name; a generated class is taken as `messageClass`. With a
            schema registry also a nested message, such as ``Order.Item``; not needed for a schema with one message.
        descFilePath: a descriptor set file (``protoc --include_imports --descriptor_set_out``); the driver reads it.
        options: see `docs/reference/protobuf.md`; names in any case.
        binaryDescriptorSet: the bytes of a descriptor set.
        messageClass: a generated Python class, instead of name and descriptor set.
        schemaRegistry: a registry that speaks Confluent's interface: its ``address``, the ``subject`` whose latest
            version gives the columns (not needed with a descriptor set or a class), and how to authenticate; or, with
            ``type: glue``, AWS Glue's. See `docs/reference/protobuf.md`. Messages are then in its frames.
        headers: the column of Kafka's headers, for writers that put the schema's id or GUID there.
        isKey: whether `data` is the key of the records. The id is then read from the header ``__key_schema_id``, else
            from ``__value_schema_id``; the other is never used.
        fields: top-level columns to keep, in this order; None for all.
        engine: ``auto``, ``fast`` (ptars), ``python`` (upb), or ``jvm`` (Spark's own, which needs its jar). auto is jvm
            if the jar is there and supports everything that is asked for. Otherwise it picks the faster one for each
            batch: upb for small ones, and ptars for large ones if it is installed and can decode the message.

    Raises:
        ProtobufAnalysisError: the descriptor set, the message, its schema or the mode does not fit; with the class and
            text of Spark's error.
        OptionError: an option is unknown or not valid.
        ConnectorError: the registry does not respond, refuses access, or has no such subject.
    """
    constants = messageName, descFilePath, options, binaryDescriptorSet
    own = isKey or any(argument is not None for argument in (messageClass, fields, schemaRegistry, headers))
    parsed, chosen = checked("from_protobuf", constants, engine, own=own)
    if chosen is Engine.JVM:
        return jvm_functions.from_protobuf(data, messageName, descFilePath, options, binaryDescriptorSet)  # type: ignore[arg-type]
    source = messageName, descFilePath, binaryDescriptorSet, messageClass
    framed = headers is not None
    call, kind = decode_call(parsed, chosen, schemaRegistry, source, fields, headers=framed, is_key=isKey)
    convert = function_of(call, kind, active_session(), headers=framed)
    return convert(data) if headers is None else convert(data, headers)


def decode_call(
    parsed: ProtobufOptions,
    chosen: Engine,
    schema_registry: Mapping[str, str] | None,
    source: _Source,
    fields: Sequence[str] | None,
    *,
    headers: bool = False,
    is_key: bool = False,
) -> tuple[DecodeCall, DataType]:
    """Return the call for the arguments of `from_protobuf`, after `checked`, and its type."""
    registry = None if schema_registry is None else parse_schema_registry(schema_registry)
    if registry is not None:
        if not registry.uses_confluent and (headers or is_key):
            what = "headers and isKey are for Confluent frames, but type is glue"
            raise OptionError("OPTION_CONFLICT", what, "from_protobuf", "Leave them out.")
        parsed = dataclasses.replace(parsed, wire_format=WireFormat.CONFLUENT)
    descriptors, message, registered = _locate(registry, *source)
    schema = schema_of(descriptors)
    plan = compile_plan(schema.pool.FindMessageTypeByName(message), schema, parsed)
    _log_engine("from_protobuf", message, chosen, unsupported(plan))
    columns = None if fields is None else tuple(fields)
    result = parsed.result_type((plan if columns is None else select_fields(plan, columns)).spark_type)
    needed = _needed_files(descriptors, message, parsed)
    reader = None if registered is None else registered.migrations
    return DecodeCall(needed, message, parsed, columns, chosen, registry, is_key, reader), result


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

    Columns and fields match by name, ignoring case unless ``spark.sql.caseSensitive`` is true. Whether they fit is
    checked on the executor, with the first batch: Python does not see the type of a column earlier. On Spark 4.0 rows
    are encoded one by one, which takes far longer, and a column whose type Arrow lacks, such as an interval of months,
    raises SPARK_FEATURE_MISSING.

    The arguments are those of `from_protobuf`. With a schema registry, messages are framed with the id of the latest
    version of the subject.

    Raises:
        ProtobufAnalysisError: the descriptor set or the message cannot be found or read.
        OptionError: an option is unknown or not valid.
    """
    constants = messageName, descFilePath, options, binaryDescriptorSet
    own = messageClass is not None or schemaRegistry is not None
    parsed, chosen = checked("to_protobuf", constants, engine, own=own)
    if chosen is Engine.JVM:
        return jvm_functions.to_protobuf(data, messageName, descFilePath, options, binaryDescriptorSet)  # type: ignore[arg-type]
    source = messageName, descFilePath, binaryDescriptorSet, messageClass
    return function_of(encode_call(parsed, chosen, schemaRegistry, source), BinaryType(), active_session())(data)


def encode_call(
    parsed: ProtobufOptions, chosen: Engine, schema_registry: Mapping[str, str] | None, source: _Source
) -> EncodeCall:
    """Return the call for the arguments of `to_protobuf`, after `checked`."""
    registry = None if schema_registry is None else parse_schema_registry(schema_registry)
    if registry is None and parsed.wire_format is WireFormat.CONFLUENT:
        what = "to_protobuf cannot write Confluent frames without a schema id"
        raise ProtobufAnalysisError("PROTOBUF_SCHEMA_ID_UNKNOWN", what, "wire.format=confluent")
    if registry is not None and registry.auto_register:
        what = "schemaAutoRegistrationEnabled is true, but to_protobuf registers no schema"
        raise OptionError("OPTION_CONFLICT", what, "to_protobuf", "Register it, and leave the option out.")
    descriptors, message, frame = _written(registry, *source)
    _log_engine("to_protobuf", message, chosen, "")
    return EncodeCall(_needed_files(descriptors, message, parsed), message, parsed, chosen, frame)


def register_sql(  # noqa: PLR0913 - those of from_protobuf
    spark: SparkSession,
    suffix: str,
    messageName: MessageName = None,  # noqa: N803 - Spark's name
    descFilePath: str | None = None,  # noqa: N803 - Spark's name
    options: Mapping[str, str] | None = None,
    binaryDescriptorSet: bytes | bytearray | None = None,  # noqa: N803 - Spark's name
    *,
    messageClass: type[Message] | None = None,  # noqa: N803 - in the form of the others
    schemaRegistry: Mapping[str, str] | None = None,  # noqa: N803 - in the form of the others
    fields: Sequence[str] | None = None,
    engine: str = "auto",
) -> None:
    """Register ``from_protobuf_SUFFIX(value)`` and ``to_protobuf_SUFFIX(struct)`` as functions of Spark SQL.

        register_sql(spark, "order", "Order", "orders.desc")
        spark.sql("SELECT from_protobuf_order(value).id FROM events")

    Spark fixes the result type of a Python function when it is registered, and keeps the plain names for its own
    functions, which need a jar. So there are two functions for each message, which last as long as the session. A
    permanent view cannot use them. Frames without a schema registry can be read but not written, so only
    ``from_protobuf_SUFFIX`` is registered for them.

    On Spark 4.0, a Python function of SQL does not see the type of a column. ``to_protobuf_SUFFIX`` therefore takes the
    type too, as in ``to_protobuf_order(event, typeof(event))``, and raises SPARK_FEATURE_MISSING without it.

    The arguments are those of `from_protobuf`; the engine cannot be ``jvm``.

    Raises:
        ProtobufAnalysisError: as `from_protobuf`, or the suffix cannot be part of a name.
        OptionError: an option is unknown or not valid.
        ConnectorError: the registry does not respond, refuses access, or has no such subject.
    """
    if not (suffix.isascii() and suffix.replace("_", "a").isalnum()):
        what = f"The name of a function cannot end with {suffix!r}"
        raise ProtobufAnalysisError("PROTOBUF_FUNCTION_NAME", what, "register_sql")
    source = messageName, descFilePath, binaryDescriptorSet, messageClass
    constants = messageName, descFilePath, options, binaryDescriptorSet
    parsed, chosen = checked("from_protobuf", constants, engine, own=True)
    call, kind = decode_call(parsed, chosen, schemaRegistry, source, fields)
    made = {"from_protobuf": function_of(call, kind, active_session())}
    if schemaRegistry is not None or parsed.wire_format is not WireFormat.CONFLUENT:
        encode = encode_call(parsed, chosen, schemaRegistry, source)
        made["to_protobuf"] = function_of(encode, BinaryType(), active_session())
    for name, function in made.items():
        if isinstance(function, PandasFunction | RowFunction):
            function.register(spark, f"{name}_{suffix}")
        else:
            spark.udf.register(f"{name}_{suffix}", function)


def _log_engine(function: str, message: str, engine: Engine, obstacle: str) -> None:
    columns = Engine.FAST if use_ptars(engine, obstacle) else Engine.PYTHON
    _log.info("protobuf: %s of %s by the engine %s (%s for large batches)", function, message, engine, columns)


def _needed_files(descriptors: bytes, message: str, options: ProtobufOptions) -> bytes:
    """Return what a worker needs of a descriptor set, which may be that of a whole company."""
    # An extension, and what an Any holds, may be in a file that the message's own does not import.
    if options.extensions or options.convert_any_fields_to_json:
        return descriptors
    return class_descriptor_set(schema_of(descriptors).pool.FindMessageTypeByName(message))


def checked(
    function: str, constants: tuple[Any, Any, Any, Any], engine: str, *, own: bool
) -> tuple[ProtobufOptions, Engine]:
    """Return the options and the engine of a call; `own` says whether it has what Spark's own function has not.

    Columns where constants belong are refused in the text of Spark's SQL functions.
    """
    name, path, options, data = constants
    is_class = isinstance(name, type) and issubclass(name, Message)
    is_path = path is None or isinstance(path, str) or hasattr(path, "__fspath__")
    is_map = isinstance(options, Mapping) and all(
        isinstance(key, str) and isinstance(value, str | bool | int) for key, value in options.items()
    )
    purpose = f"the options to use for converting the value {function.partition('_')[0]} Protobuf format"
    is_name = name is None or is_class or isinstance(name, str)
    is_set = is_path and isinstance(data, bytes | bytearray | memoryview | None)
    for which, what, fits in (
        ("second", "string representing the Protobuf message name", is_name),
        ("third", "string or binary data representing the Protobuf descriptor file path", is_set),
        ("fourth", f"map of strings to strings containing {purpose}", options is None or is_map),
    ):
        if not fits:
            text = f"The {which} argument of the {function.upper()} SQL function must be a constant {what}"
            raise ProtobufAnalysisError("DATATYPE_MISMATCH.TYPE_CHECK_FAILURE_WITH_HINT", text, function)
    parsed = dataclasses.replace(
        parse_protobuf_options(options, function),
        extensions=session_value("spark.sql.function.protobufExtensions.enabled", "false").lower() == "true",
        case_sensitive=is_case_sensitive(),
    )
    own = own or is_class or any(key.lower() in _OWN_OPTIONS for key in options or {})
    return parsed, _engine(function, engine, own=own)


def _locate(
    registry: AnyRegistryOptions | None,
    name: MessageName,
    path: str | None,
    data: bytes | bytearray | None,
    message_class: type[Message] | None,
    *,
    writing: bool = False,
) -> tuple[bytes, str, RegisteredSchema | None]:
    """Return descriptor set and full name, and the schema of the registry's subject if only that says what they are."""
    if isinstance(name, type):
        message_class, name = name, None
    descriptor: MessageType | None = None if message_class is None else message_class.DESCRIPTOR
    without_set = data is None and path is None
    if registry is not None and without_set and descriptor is None:
        return _from_registry(registry, name, writing=writing)
    if descriptor is None and name is None:
        raise analysis_error("PROTOBUF_MESSAGE_NOT_FOUND", messageName="''")
    if descriptor is None and without_set:
        descriptor = well_known_message(str(name))
        if descriptor is None:
            why = "Java classes can only be loaded by Spark's own function, which needs its jar"
            raise analysis_error("CANNOT_LOAD_PROTOBUF_CLASS", protobufClassName=name, explanation=why)
    if descriptor is not None:
        return class_descriptor_set(descriptor), descriptor.full_name, None
    descriptors = bytes(data) if data is not None else read_descriptor_file(path or "")
    return descriptors, schema_of(descriptors).find(str(name), nested=registry is not None).full_name, None


def _from_registry(
    registry: AnyRegistryOptions, name: MessageName, *, writing: bool
) -> tuple[bytes, str, RegisteredSchema]:
    """Return the descriptor set and the full name of a subject's message, the only one where there is no name."""
    if registry.named_subject is None:
        what = "The option schema.registry.subject is required"
        action = "Give the subject, or a descriptor set with a message name and, for to_protobuf, the subject too."
        raise OptionError("OPTION_MISSING", what, "schemaRegistry", action)
    registered = protobuf_registry(registry).latest(registry.named_subject, writing=writing)
    where = f"the subject {registry.subject}"
    message = schema_of(registered.files).find_in(registered.main, None if name is None else str(name), where)
    return registered.files, message.full_name, registered


def _written(registry: AnyRegistryOptions | None, *source: Any) -> tuple[bytes, str, Frame | None]:
    descriptors, message, registered = _locate(registry, *source, writing=True)
    if registry is None:
        return descriptors, message, None
    # Asked once: a version that is registered meanwhile must not lend its id to messages of another.
    registered = registered or _from_registry(registry, message, writing=True)[2]
    begin = framing_of(registry).prefix(registered, message)
    return descriptors, message, frame_of(registered.schema_id, registry, begin)


def _engine(function: str, wanted: str, *, own: bool) -> Engine:
    try:
        engine = Engine(str(wanted).lower())
    except ValueError:
        what, action = f"The engine cannot be {wanted!r}", f"Give {', '.join(Engine)}."
        raise ProtobufAnalysisError("PROTOBUF_ENGINE", what, "from_protobuf and to_protobuf", action) from None
    if engine is Engine.JVM:
        if own:
            what = (
                "Spark's own function does not support messageClass, fields, schemaRegistry, headers, isKey, "
                "register_sql, or the options on.error and wire.format"
            )
            raise ProtobufAnalysisError("PROTOBUF_ENGINE", what, "engine=jvm")
        if not _has_jar():
            raise analysis_error("PROTOBUF_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE", functionName=function.upper())
    elif engine is Engine.AUTO and not own and _has_jar():
        _log.info("protobuf: engine=auto takes Spark's own function, because its jar is there")
        return Engine.JVM
    return engine


def _has_jar() -> bool:
    """Return whether the class behind Spark's own function is on the class path."""
    return jvm_has_class(active_session(), _JVM_CLASS)
