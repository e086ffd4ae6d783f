"""The reader's aliases, applied to a writer's schema as Java's ``Schema.applyAliases`` does.

A writer's schema that equals the reader's keeps its names. Otherwise a name that is one of the reader's aliases is
replaced, even where the reader also has a field or type of that name; two fields or branches that then have one name
are refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, Final

from connectors.avro.errors import AvroAnalysisError
from connectors.avro.schema.parser import NO_DEFAULT, AvroField, AvroType, alike

_PASSES: Final = 2  # Java's GenericDatumReader and its Resolver each apply them


def apply_aliases(writer: AvroType, reader: AvroType) -> AvroType:
    """Return the writer's schema with the reader's names; raises AVRO_SCHEMA_INCOMPATIBLE where two would be one."""
    for _ in range(_PASSES):
        if alike(writer, reader, _own, {}):
            return writer
        aliases = _Aliases(reader)
        if not (aliases.types or aliases.fields):
            return writer
        writer = aliases.applied(writer)
    return writer


class _Aliases:
    """The reader's names by their aliases: of types, and of the fields of each record."""

    def __init__(self, reader: AvroType) -> None:
        self.types: dict[str, str] = {}
        self.fields: dict[str, dict[str, str]] = {}
        self._made: dict[int, AvroType] = {}
        self._find(reader, set())

    def _find(self, schema: AvroType, seen: set[int]) -> None:
        """Collect the aliases in the order in which Java does, whose later ones replace those before them."""
        self.types |= dict.fromkeys(schema.aliases, schema.name)
        if id(schema) in seen:
            return
        if schema.kind == "record":
            seen.add(id(schema))
        for field in schema.fields:
            if field.aliases:
                self.fields.setdefault(schema.name, {}).update(dict.fromkeys(field.aliases, field.name))
            self._find(field.type, seen)
        if schema.name in self.fields:  # one dictionary for all names of a record, also if another has one of them
            self.fields |= dict.fromkeys(schema.aliases, self.fields[schema.name])
        for inner in [*schema.branches, *([] if schema.items is None else [schema.items])]:
            self._find(inner, seen)

    def applied(self, schema: AvroType) -> AvroType:
        """Return a schema with the reader's names; a shared or recursive type stays one."""
        if id(schema) in self._made:
            return self._made[id(schema)]
        made = dataclasses.replace(schema, name=self.types.get(schema.name, schema.name), fields=[])
        self._made[id(schema)] = made
        if schema.items is not None:
            made.items = self.applied(schema.items)
        made.branches = tuple(map(self.applied, schema.branches))
        _check_names("", "types of a union", (branch.name or branch.kind for branch in made.branches))
        names = self.fields.get(made.name, {})
        for field in schema.fields:
            name = names.get(field.name, field.name)
            made.fields.append(dataclasses.replace(field, name=name, type=self.applied(field.type)))
        _check_names(schema.name, "fields", (field.name for field in made.fields))
        return made


def _check_names(where: str, what: str, names: Iterable[str]) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            of = f" of the record {where}" if where else ""
            clash = f"The reader's aliases give two {what}{of} of the writer's schema the name {name!r}"
            action = "Remove the alias from the reader's schema: the writer's schema has both names."
            raise AvroAnalysisError("AVRO_SCHEMA_INCOMPATIBLE", clash, "from_avro", action)
        seen.add(name)


def _own(schema: AvroType) -> tuple[Any, ...]:
    """Return what makes a schema another one: all but docs, aliases and defaults of enums."""
    fields = list(map(_of_field, schema.fields))
    return schema.kind, schema.name, schema.size, schema.symbols, schema.attributes, len(schema.branches), fields


def _of_field(field: AvroField) -> tuple[str, str, str]:
    default = "" if field.default is NO_DEFAULT else json.dumps(field.default, sort_keys=True)
    return field.name, default, field.attributes
