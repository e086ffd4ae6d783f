"""The options of the AWS Glue Schema Registry, declared once; those of access have the names of the ``kinesis`` format.

Parsed on the driver; workers get the frozen dataclass.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Self

from connectors.core.aws.access import AwsAccessOptions, check_access, region_from
from connectors.core.errors import OptionError
from connectors.core.options.declaration import option, parse_options, refined
from connectors.core.options.kinds import BOOLEAN, DURATION, STRING, Kind, choice
from connectors.registry.azure import AzureOptions, parse_azure_options
from connectors.registry.options import RegistryOptions, parse_registry_options

_REGISTRY: Final = "schemaRegistry"
_TYPES: Final = ("confluent", "glue")


class Compression(StrEnum):
    """How messages are compressed."""

    NONE = "none"
    ZLIB = "zlib"


def _parse_type(text: str) -> str:
    if text.lower() != "glue":
        raise ValueError("these are the options of glue")
    return text.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueOptions(AwsAccessOptions):
    """Where a registry of Glue is; made by `parse_schema_registry`."""

    uses_confluent: ClassVar = False

    type: str = option("type", Kind("choice", "glue", _parse_type), "glue: the AWS Glue Schema Registry.")
    registry_name: str = option(
        "registryName",
        STRING,
        "The registry in which schemas are looked up by their names. By their version ids they are found in all "
        "registries of the account.",
        default="default-registry",
        aliases=("registry.name",),
    )
    subject: str | None = option(
        "schemaName",
        STRING,
        "The schema whose latest version says what the columns are, where the call has no descriptor set, class or "
        "schema, and what is written.",
        default=None,
        aliases=("subject", "schema.registry.subject"),
    )
    auto_register: bool = option(
        "schemaAutoRegistrationEnabled",
        BOOLEAN,
        "Where to_avro is given a schema that the registry does not have under schemaName: add it as a version, or "
        "create the schema with the compatibility BACKWARD, as Glue's serializer does. Else that is an error.",
        default="false",
    )
    compression: Compression = option(
        "compression",
        choice(Compression),
        "How messages are compressed when written. When read, each says it itself.",
        default="none",
    )
    allow_insecure: bool = refined(AwsAccessOptions, "allow_insecure", aliases=("allow.insecure",))
    role_arn: str | None = refined(AwsAccessOptions, "role_arn", aliases=("assumeRoleArn",))
    role_session_name: str | None = refined(AwsAccessOptions, "role_session_name", aliases=("assumeRoleSessionName",))
    timeout: float = option(
        "request.timeout",
        DURATION,
        "How long the service may take to accept a connection, and how long it may be silent.",
        default="10s",
        minimum="1ms",
        maximum="5m",
    )
    retry_timeout: float = option(
        "retry.timeout",
        DURATION,
        "How long a call that was throttled, or not answered, is tried again; waits grow from 100ms to 10s and are "
        "random, as those of the kinesis format.",
        default="60s",
        minimum="0",
        maximum="1h",
    )

    @property
    def named_subject(self) -> str | None:
        """The schema's name."""
        return self.subject

    def subject_missing(self) -> OptionError:
        """Return the error for a call that writes without the name of a schema."""
        what = "The option schemaName is required to write"
        return OptionError("OPTION_MISSING", what, _REGISTRY, "Give the name of a schema in the registry.")

    def for_client(self) -> Self:
        """Return the options without those that say what is read and written: one client is for all of that."""
        return dataclasses.replace(self, subject=None, auto_register=False, compression=Compression.NONE)


AnyRegistryOptions = RegistryOptions | GlueOptions | AzureOptions


def parse_schema_registry(raw: Mapping[str, str], *, azure: bool = False) -> AnyRegistryOptions:
    """Parse the dictionary passed as schemaRegistry, for functions that take Glue's messages, and maybe Azure's, too.

    Raises:
        OptionError: an option is unknown or not valid, or contradicts another.
    """
    kind = next((str(value) for name, value in raw.items() if name.lower() == "type"), "")
    types = (*_TYPES, "azure") if azure else _TYPES
    if kind.lower() not in {"", *types}:
        what = f"The option type cannot be {kind!r:.80}"
        raise OptionError("OPTION_ILLEGAL", what, _REGISTRY, f"Give {' or '.join(types)}.")
    if kind.lower() == "azure":
        return parse_azure_options(raw)
    if kind.lower() != "glue":
        return parse_registry_options(raw)
    options = parse_options(GlueOptions, raw, os.environ, _REGISTRY)
    check_access(options, _REGISTRY)
    return dataclasses.replace(options, region=region_from(options, os.environ, "glue"))
