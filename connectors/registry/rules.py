"""Rules of registered schemas, such as the encryption of fields: none is applied here, so what needs one is refused.

A schema's ``ruleSet`` has domain and encoding rules, which Confluent's clients apply whenever a message is written or
read, and migration rules, for messages that are read by another version than their own. Only the schema of the messages
counts, not those that it refers to, as in Confluent's clients. (``Rule``, ``RuleSet`` and ``RuleMode`` of its client.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from connectors.core.errors import ConnectorError
from connectors.registry.batches import schema_unusable

_PHASES: Final = {
    "domainRules": {"READ", "WRITE", "WRITEREAD"},
    "encodingRules": {"READ", "WRITE", "WRITEREAD"},
    "migrationRules": {"UPGRADE", "DOWNGRADE", "UPDOWN"},
}
_DEFAULT_MODE: Final = "WRITEREAD"
_KINDS: Final = (None, "TRANSFORM", "CONDITION")
_MOST_SHOWN: Final = 5


class Direction(Enum):
    """What is done with messages of a schema, and by which modes of rules it is changed."""

    READ = frozenset({"READ", "WRITEREAD"})
    WRITE = frozenset({"WRITE", "WRITEREAD"})
    UPGRADE = frozenset({"UPGRADE", "UPDOWN"})
    DOWNGRADE = frozenset({"DOWNGRADE", "UPDOWN"})


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    kind: str
    mode: str

    def __str__(self) -> str:
        return f"{self.name!r:.100} (type {self.kind!r:.50}, mode {self.mode})"


def _rules_of(response: Mapping[str, Any], what: str) -> Iterator[_Rule]:
    """Yield the rules of a schema that are not disabled; SCHEMA_UNUSABLE where they make no sense."""
    rule_set = response.get("ruleSet")
    if rule_set is None:
        return
    if not isinstance(rule_set, dict):
        raise schema_unusable(what, "its ruleSet is not an object")
    for phase, rules in rule_set.items():
        if rules is None or phase == "enableAt":
            continue
        if not isinstance(rules, list):
            raise schema_unusable(what, f"{phase!r:.100} of its ruleSet is not a list")
        for rule in rules:
            yield from _active(rule, phase, what)


def _active(rule: object, phase: str, what: str) -> Iterator[_Rule]:
    values = rule if isinstance(rule, dict) else {}
    name, kind, disabled = (values.get(key) for key in ("name", "type", "disabled"))
    if not (isinstance(name, str) and isinstance(disabled, bool | None)):
        raise schema_unusable(what, f"a rule of {phase!r:.100} has no name, or is neither disabled nor not")
    if disabled:
        return
    if not isinstance(kind, str):
        raise schema_unusable(what, f"its rule {name!r:.100} has no type")
    mode = values.get("mode")
    mode = _DEFAULT_MODE if mode is None else mode
    if not isinstance(mode, str) or mode not in _PHASES.get(phase, ()) or values.get("kind") not in _KINDS:
        why = f"its rule {name!r:.100} of the type {kind!r:.50} is of {phase!r:.100}, of the mode {mode!r:.50} and of "
        raise schema_unusable(what, f"{why}the kind {values.get('kind')!r:.50}, which are not known together")
    yield _Rule(name, kind, mode)


def check_rules(response: Mapping[str, Any], what: str, direction: Direction, *, ignored: bool = False) -> None:
    """Refuse a schema with rules for a direction, unless they are ignored; what makes no sense is always refused.

    Raises:
        ConnectorError: SCHEMA_RULE_UNSUPPORTED, or SCHEMA_UNUSABLE.
    """
    rules = [rule for rule in _rules_of(response, what) if rule.mode in direction.value]
    if rules and not ignored:
        raise _unsupported(what, _listed(rules), direction)


def _listed(rules: list[_Rule]) -> str:
    more = f" and {len(rules) - _MOST_SHOWN} more" if len(rules) > _MOST_SHOWN else ""
    return ", ".join(map(str, rules[:_MOST_SHOWN])) + more


def _unsupported(what: str, rules: str, direction: Direction) -> ConnectorError:
    writing = direction is Direction.WRITE
    verb = "writing" if writing else "reading"
    action = (
        "Write with a Confluent client that applies them, or with a schema without such rules."
        if writing
        else "Read with a Confluent client that applies them, or set ignore.read.rules=true in schemaRegistry to "
        "get values as they are stored: encrypted fields stay encrypted."
    )
    return ConnectorError(
        "SCHEMA_RULE_UNSUPPORTED",
        f"The {what} has rules that change messages when {verb}, which this pack does not apply: {rules}",
        "schemaRegistry",
        action,
    )


@dataclass(frozen=True, slots=True)
class Migrations:
    """Which schema of its subject a schema is, and its rules for messages of other versions.

    Attributes:
        schema_id: the id; -1 where only the GUID is known.
        guid: the GUID, where the registry gives it out.
        place: subject and version, where the registry says them.
        upgrade: the rules for messages of earlier versions that are read by this one.
        downgrade: the rules for messages of this version that are read by an earlier one.
    """

    schema_id: int | str = -1
    guid: str | None = None
    place: tuple[str, int] | None = None
    upgrade: str = ""
    downgrade: str = ""

    def check(self, writer: Migrations, schema: int | str) -> None:
        """Refuse messages of a writer's schema which this one, the reader's, can only read by rules.

        Where the registry does not say which version is the earlier one, the rules of both count.

        Raises:
            ConnectorError: SCHEMA_RULE_UNSUPPORTED.
        """
        same_id = self.schema_id == writer.schema_id and self.schema_id != -1
        if same_id or (self.guid is not None and self.guid == writer.guid):
            return
        upgrades = downgrades = True
        if self.place and writer.place and self.place[0] == writer.place[0]:
            upgrades, downgrades = writer.place[1] < self.place[1], writer.place[1] > self.place[1]
        what = f"schema {schema}, read by another version,"
        if self.upgrade and upgrades:
            raise _unsupported(what, self.upgrade, Direction.UPGRADE)
        if writer.downgrade and downgrades:
            raise _unsupported(what, writer.downgrade, Direction.DOWNGRADE)


NO_MIGRATIONS: Final = Migrations()


class Ruled(Protocol):
    """A schema of a registry."""

    @property
    def migrations(self) -> Migrations:
        """Its place among the versions of its subject."""
        ...


def migrations_of(response: Mapping[str, Any], schema_id: int | str, what: str) -> Migrations:
    """Return what a response says of versions and rules. Raises as `check_rules`."""
    rules = list(_rules_of(response, what))
    subject, version, guid = (response.get(key) for key in ("subject", "version", "guid"))
    place = (subject, version) if isinstance(subject, str) and type(version) is int else None
    upgrade, downgrade = (
        _listed([rule for rule in rules if rule.mode in direction.value])
        for direction in (Direction.UPGRADE, Direction.DOWNGRADE)
    )
    return Migrations(schema_id, guid if isinstance(guid, str) else None, place, upgrade, downgrade)
