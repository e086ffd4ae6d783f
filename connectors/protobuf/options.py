"""The options of `from_protobuf` and `to_protobuf`, and those of a schema registry, declared once.

Names and defaults are Spark's (``utils/ProtobufOptions.scala`` in its connector/protobuf); ``on.error`` and the
options of the wire format are this pack's own. Parsed on the driver; workers get the frozen dataclasses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option, parse_options
from connectors.core.options.kinds import BOOLEAN, DURATION, INTEGER, SECRET, STRING, Kind, Secret, choice
from connectors.core.options.transport import refuse_plaintext
from connectors.protobuf.errors import analysis_error

__all__ = [
    "CA_OPTION",
    "CERTIFICATE_OPTION",
    "MAX_DEPTH",
    "Mode",
    "OnError",
    "ProtobufOptions",
    "RegistryOptions",
    "WireFormat",
    "parse_protobuf_options",
    "parse_registry_options",
    "registry_option_error",
]

MAX_DEPTH: Final = 10  # the deepest recursion that Spark follows


class Mode(StrEnum):
    """What happens to a row that cannot be read."""

    FAILFAST = "failfast"
    PERMISSIVE = "permissive"


class OnError(StrEnum):
    """How a row that cannot be read shows under PERMISSIVE."""

    NULL = "null"
    COLUMN = "column"


class WireFormat(StrEnum):
    """How messages are framed."""

    RAW = "raw"
    CONFLUENT = "confluent"


def _parse_mode(text: str) -> Mode:
    if text.upper() == "DROPMALFORMED":
        raise analysis_error("PARSE_MODE_UNSUPPORTED", funcName="from_protobuf", mode="DROPMALFORMED")
    return choice(Mode).parse(text)


_MODE: Final = Kind("choice", "FAILFAST or PERMISSIVE", _parse_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufOptions:
    """The options of both functions, made by `parse_protobuf_options`."""

    mode: Mode = option(
        "mode",
        _MODE,
        "FAILFAST ends the query at a row that cannot be read; PERMISSIVE gives NULL for it.",
        default="FAILFAST",
    )
    on_error: OnError = option(
        "on.error",
        choice(OnError),
        "With mode=PERMISSIVE. column returns STRUCT<value, error> instead of the value alone: error says why a row "
        "could not be read, in at most 1,000 bytes, and is NULL for the others. Not in Spark.",
        default="null",
    )
    recursive_fields_max_depth: int = option(
        "recursive.fields.max.depth",
        INTEGER,
        "How deep recursive messages are followed: 1 drops the recursive field, 2 keeps one level of it, and so on up "
        "to 10. With 0 or less, recursion is an error. A message of more than 50,000 columns is one at any depth.",
        default="-1",
    )
    convert_any_fields_to_json: bool = option(
        "convert.any.fields.to.json",
        BOOLEAN,
        "A google.protobuf.Any becomes a STRING of JSON. The types in it must be in the descriptor set.",
        default="false",
    )
    emit_default_values: bool = option(
        "emit.default.values",
        BOOLEAN,
        "A scalar without presence that is absent, or zero, is its zero value instead of NULL. Messages, members of "
        "a oneof, optional fields and those of proto2 are left as they are.",
        default="false",
    )
    enums_as_ints: bool = option(
        "enums.as.ints",
        BOOLEAN,
        "Enums are INT instead of STRING, also in the JSON of an Any.",
        default="false",
    )
    upcast_unsigned_ints: bool = option(
        "upcast.unsigned.ints",
        BOOLEAN,
        "uint32 becomes BIGINT and uint64 DECIMAL(20,0), so that large values are not negative. fixed32 and fixed64 "
        "are not upcast, as in Spark.",
        default="false",
    )
    unwrap_primitive_wrapper_types: bool = option(
        "unwrap.primitive.wrapper.types",
        BOOLEAN,
        "A wrapper such as google.protobuf.Int32Value becomes the value in it. A wrapped zero is NULL, unless "
        "emit.default.values is true; in a list, in a map and in a required field, which hold no NULL, it is zero.",
        default="false",
    )
    retain_empty_message_types: bool = option(
        "retain.empty.message.types",
        BOOLEAN,
        "A message without fields is kept, with the column __dummy_field_in_empty_struct STRING; else it is dropped.",
        default="false",
    )
    wire_format: WireFormat = option(
        "wire.format",
        choice(WireFormat),
        "confluent: messages stand in Confluent's frames (magic byte, schema id, message indexes). Set by itself "
        "where schemaRegistry is given. Not in Spark.",
        default="raw",
    )
    deprecated_format: bool = option(
        "use.deprecated.format",
        BOOLEAN,
        "Read Confluent frames whose message indexes are plain varints, as old clients wrote them. Not in Spark.",
        default="false",
    )
    extensions: bool = False  # derived: the SQL configuration spark.sql.function.protobufExtensions.enabled
    case_sensitive: bool = False  # derived: spark.sql.caseSensitive, by which to_protobuf matches names

    def key(self, name: str) -> str:
        """Return what the name of a column or field is compared by."""
        return name if self.case_sensitive else name.lower()

    @property
    def permissive(self) -> bool:
        """Whether rows that cannot be read are NULL."""
        return self.mode is Mode.PERMISSIVE

    @property
    def error_column(self) -> bool:
        """Whether the result is STRUCT<value, error>."""
        return self.permissive and self.on_error is OnError.COLUMN


def parse_protobuf_options(raw: Mapping[str, str] | None, function: str) -> ProtobufOptions:
    """Parse the options of a call of this function; names in any case, as Spark takes them."""
    options = parse_options(ProtobufOptions, raw or {}, os.environ, function)
    if options.on_error is OnError.COLUMN and not options.permissive:
        raise conflict(
            function, "on.error", "mode", "under FAILFAST there is no bad row to tell of", "Set mode to PERMISSIVE."
        )
    return options


_REGISTRY: Final = "schemaRegistry"
_PREFIX: Final = "confluent.schema.registry."
_URL: Final = "schema.registry.address"
_USER_INFO: Final = f"{_PREFIX}basic.auth.user.info"
_BEARER: Final = f"{_PREFIX}bearer.auth.token"
_SOURCE_NAME: Final = f"{_PREFIX}basic.auth.credentials.source"
CA_OPTION: Final = f"{_PREFIX}ssl.ca.location"
CERTIFICATE_OPTION: Final = f"{_PREFIX}ssl.certificate.location"
_KEY: Final = f"{_PREFIX}ssl.key.location"
_KEY_PASSWORD: Final = f"{_PREFIX}ssl.key.password"
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


def _parse_address(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ValueError("it is no http or https URL")
    if url.username or url.password:
        raise ValueError("it holds a user's name; give basic.auth.user.info instead")
    if re.search(r"[\s,?#\\]", text) or not text.isprintable() or (url.port is not None and not url.port):
        raise ValueError("it is not one URL of scheme, host, port and path")
    return text.rstrip("/")


def _parse_source(text: str) -> str:
    if text.upper() != "USER_INFO":
        raise ValueError("the login can come from nowhere else")
    return text


_ADDRESS: Final = Kind("URL", "an http:// or https:// URL", _parse_address)
_SOURCE: Final = Kind("string", "USER_INFO", _parse_source)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """Where a registry is; made by `parse_registry_options`. Names as on Databricks, and short ones."""

    address: str = option(_URL, _ADDRESS, "The URL of the registry.", aliases=("address", "url", "schema.registry.url"))
    subject: str | None = option(
        "schema.registry.subject",
        STRING,
        "The subject whose latest version says what the columns are, for from_protobuf without a descriptor set, and "
        "what to_protobuf writes.",
        default=None,
        aliases=("subject",),
    )
    user_info: Secret | None = option(
        _USER_INFO,
        SECRET,
        "User and password for basic authentication: user:password. Not with a bearer token.",
        default=None,
        aliases=("basic.auth.user.info",),
    )
    token: Secret | None = option(_BEARER, SECRET, "A bearer token.", default=None, aliases=("bearer.auth.token",))
    credentials_source: str | None = option(
        _SOURCE_NAME,
        _SOURCE,
        "Only USER_INFO is possible; taken so that options of Databricks can be used as they are.",
        default=None,
        aliases=("basic.auth.credentials.source",),
    )
    ca_file: str | None = option(
        CA_OPTION,
        STRING,
        "A file of certificates (PEM) that the registry's own must descend from; it must be on driver and executors.",
        default=None,
        aliases=("ssl.ca.location",),
        instead_of=("confluent.schema.registry.ssl.truststore.location",),
    )
    certificate_file: str | None = option(
        CERTIFICATE_OPTION,
        STRING,
        "A file with the client's certificate (PEM), and its key where there is no other file for that; it must be on "
        "driver and executors.",
        default=None,
        aliases=("ssl.certificate.location",),
        instead_of=("confluent.schema.registry.ssl.keystore.location",),
    )
    key_file: str | None = option(
        _KEY, STRING, "A file with the key of that certificate (PEM).", default=None, aliases=("ssl.key.location",)
    )
    key_password: Secret | None = option(
        _KEY_PASSWORD,
        SECRET,
        "The password of that key.",
        default=None,
        aliases=("ssl.key.password",),
        instead_of=("confluent.schema.registry.ssl.keystore.password",),
    )
    allow_insecure: bool = option(
        "allow.insecure",
        BOOLEAN,
        "Send the authentication over plain http to another machine, where anyone on the way can read it.",
        default="false",
        aliases=("allowInsecure",),
    )
    timeout: float = option(
        "request.timeout",
        DURATION,
        "How long one request may take: connecting, redirects and the whole response included.",
        default="10s",
        minimum="1ms",
        maximum="5m",
    )
    retry_timeout: float = option(
        "retry.timeout",
        DURATION,
        "How long a registry that does not answer, or answers 429 or 5xx, is asked again.",
        default="60s",
        minimum="0",
        maximum="1h",
    )


def parse_registry_options(raw: Mapping[str, str]) -> RegistryOptions:
    """Parse the dictionary passed as schemaRegistry; raises OptionError, also for options that contradict another."""
    options = parse_options(RegistryOptions, raw, os.environ, _REGISTRY)
    if options.user_info is not None and options.token is not None:
        raise conflict(_REGISTRY, _USER_INFO, _BEARER, "a request has one authentication", "Give one of them.")
    if options.user_info is not None or options.token is not None:
        refuse_plaintext(
            options.address,
            f"With {_USER_INFO if options.user_info else _BEARER} the option {_URL}",
            _REGISTRY,
            "Give an https:// address, or allow it with the option allow.insecure=true.",
            allowed=options.allow_insecure,
        )
    tls = (
        (CA_OPTION, options.ca_file),
        (CERTIFICATE_OPTION, options.certificate_file),
        (_KEY, options.key_file),
        (_KEY_PASSWORD, options.key_password),
    )
    for name, value in tls:
        if value is not None and urlsplit(options.address).scheme == "http":
            raise conflict(_REGISTRY, name, _URL, "http has no TLS", "Give an https:// address.")
        if value is not None and name in {_KEY, _KEY_PASSWORD} and options.certificate_file is None:
            raise conflict(
                _REGISTRY, name, CERTIFICATE_OPTION, "a key is nothing without its certificate", "Give both."
            )
    if options.credentials_source is not None and options.user_info is None:
        raise conflict(
            _REGISTRY, _SOURCE_NAME, _USER_INFO, "the source is USER_INFO, and that is not given", "Give both."
        )
    if options.user_info is not None and options.user_info.reveal().find(":") < 1:
        raise registry_option_error(_USER_INFO, "must be a user, a colon and a password", "Give user:password.")
    if options.token is not None and not _TOKEN.fullmatch(options.token.reveal()):
        raise registry_option_error(
            _BEARER, "holds white space, or a character that is not ASCII", "Give the token alone."
        )
    return options


def registry_option_error(name: str, what: str, action: str) -> OptionError:
    """Return the error for an option of a registry whose value cannot be used."""
    return OptionError("OPTION_ILLEGAL", f"The option {name} {what}", _REGISTRY, action)
