"""Subjects of a schema registry that messages are written by: named by a strategy of Confluent's serializers, or given.

A part of the options of every function that writes messages; the names are those of Confluent's serializers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from connectors.core.errors import OptionError
from connectors.core.options.declaration import conflict, option
from connectors.core.options.kinds import BOOLEAN, STRING, Kind, choice
from connectors.registry.azure import AzureOptions
from connectors.registry.glue.options import AnyRegistryOptions
from connectors.registry.lookups import context_of, name_of, qualified

_TOPIC: Final = "topic"
_STRATEGY: Final = "subject.name.strategy"
_REGISTER: Final = "auto.register.schemas"
_LATEST: Final = "use.latest.version"
_ID_PLACE: Final = "schema.id.serializer"


class SubjectNames(StrEnum):
    """How a subject is named."""

    TOPIC = "TopicNameStrategy"
    RECORD = "RecordNameStrategy"
    TOPIC_RECORD = "TopicRecordNameStrategy"


class IdPlace(StrEnum):
    """Where the schema of a registry is named."""

    PREFIX = "prefix"
    HEADER = "header"


def _parse_strategy(text: str) -> SubjectNames:
    """Return the strategy of this name; Java's clients give it with its package."""
    try:
        return SubjectNames(text.rpartition(".")[2])
    except ValueError:
        raise ValueError(f"it is not one of {', '.join(SubjectNames)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectOptions:
    """What is written by, where there is a registry."""

    auto_register: bool = option(
        _REGISTER,
        BOOLEAN,
        "With a registry and a schema: add the schema to its subject where it is not in it. Else a schema that the "
        "subject does not have is an error. In Confluent's serializers the default is true.",
        default="false",
    )
    use_latest: bool = option(
        _LATEST,
        BOOLEAN,
        "With a registry and a schema: write by the latest version of the subject, which the schema then only names.",
        default="false",
    )
    strategy: SubjectNames = option(
        _STRATEGY,
        Kind("choice", f"{', '.join(SubjectNames)}, with or without a package of Java", _parse_strategy),
        "How the subject is named, where none is given: TOPIC-value (TOPIC-key with isKey), the full name of the "
        "schema's record, or TOPIC-RECORD.",
        default=SubjectNames.TOPIC.value,
    )
    topic: str | None = option(
        _TOPIC,
        STRING,
        "The topic that messages are written to; the subject is named after it. A context may precede it, as in "
        ":.staging:orders.",
        default=None,
    )

    id_place: IdPlace | None = option(
        _ID_PLACE,
        choice(IdPlace),
        "With a registry. prefix: the id of the schema stands before each message. header: its GUID goes into a header "
        "of Kafka, and the message stands alone; the column is a STRUCT of value and headers. These are Confluent's "
        "PrefixSchemaIdSerializer and HeaderSchemaIdSerializer. When absent: prefix; with type=azure header.",
        default=None,
    )

    def check(self, function: str, registry: AnyRegistryOptions | None, *, has_schema: bool) -> None:
        """Raise OptionError for options that contradict another, or that nothing is there for."""
        chosen = {
            _REGISTER: self.auto_register,
            _LATEST: self.use_latest,
            _STRATEGY: self.strategy is not SubjectNames.TOPIC,
            _TOPIC: self.topic is not None,
            _ID_PLACE: self.id_place not in {None, IdPlace.PREFIX},
        }
        for name in (name for name, is_given in chosen.items() if is_given):
            if registry is None:
                what = f"{name} needs a schema registry, and none is given"
                raise OptionError("OPTION_MISSING", what, function, "Give schemaRegistry, or schemaRegistryAddress.")
            azure = isinstance(registry, AzureOptions)
            if not registry.uses_confluent and name not in ({_LATEST, _REGISTER, _ID_PLACE} if azure else {_LATEST}):
                why = "it is an option of Confluent's serializers"
                more = "" if azure else ", and schemaAutoRegistrationEnabled to register,"
                action = f"Give schemaName{more} among the options of {registry.type}."
                raise conflict(function, name, f"type={registry.type}", why, action)
            if registry.named_subject is not None and name in {_STRATEGY, _TOPIC}:
                raise conflict(function, name, "schema.registry.subject", "both name the subject", "Give one.")
        contexts = {context_of(self.topic), None if registry is None else context_of(registry.subject)} - {None}
        if len(contexts) > 1:
            raise conflict(function, _TOPIC, "schema.registry.subject", "they name two contexts", "Give one.")
        if self.auto_register and self.use_latest:
            raise conflict(function, _REGISTER, _LATEST, "the latest version is registered", "Give one.")
        if self.auto_register and not has_schema:
            what = f"The option {_REGISTER} needs a schema to register"
            raise OptionError("OPTION_MISSING", what, function, "Give the schema.")


def subject_of(options: SubjectOptions, registry: AnyRegistryOptions, record: str, *, is_key: bool) -> str:
    """Return the subject that messages are written by; `record` is the full name of their record, if there is one.

    Raises:
        OptionError: there is no subject, and nothing to name one by.
    """
    if registry.named_subject is not None:
        return registry.named_subject
    if isinstance(registry, AzureOptions) and record:
        return record  # as Azure's serializers name it
    if not registry.uses_confluent or (options.strategy is not SubjectNames.RECORD and options.topic is None):
        raise registry.subject_missing()
    topic = name_of(options.topic or "")
    context = context_of(registry.subject) or context_of(options.topic)
    if options.strategy is SubjectNames.TOPIC:
        return qualified(f"{topic}-{'key' if is_key else 'value'}", context)
    if not record:
        what = f"{options.strategy} needs the name of a record, and none is given"
        raise OptionError("OPTION_MISSING", what, _STRATEGY, "Give the schema of a record, or give the subject.")
    return qualified(record if options.strategy is SubjectNames.RECORD else f"{topic}-{record}", context)
