"""Parses JSON Schemas and finds what their ``$ref`` point to, within the schema and the references of a registry.

Nothing is fetched by its URL: a reference is a part of the same schema, or of a schema that the registry lists for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urljoin

from connectors.json.errors import JsonAnalysisError

_WHERE: Final = "schema"
_MOST_PARTS: Final = 100_000  # schemas, lists and texts of which a schema and its references consist
_MOST_URI: Final = 4_096  # characters of an $id, which is copied into each one within it, or of a $ref
_MOST_URIS: Final = 10_000
_INDEX: Final = re.compile("[0-9]{1,9}")
_OLD_DRAFTS: Final = ("draft-03", "draft-04", "draft-06", "draft-07")


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A schema within a document.

    Attributes:
        value: an object, or a boolean.
        base: the URI by which references in it are resolved.
        siblings: whether what stands beside a ``$ref`` counts, as it does since draft 2019-09.
    """

    value: Any
    base: str
    siblings: bool

    def inner(self, value: Any) -> Part:
        """Return a schema inside of this one."""
        return Part(value, self.base, self.siblings)


@dataclass(slots=True)
class Documents:
    """A schema and those that it refers to, by their URIs; made by `parse_schemas`.

    Attributes:
        own: the schema.
        by_uri: schemas with an URI, which is not copied into each anchor.
        by_anchor: schemas by the URI around them and their anchor.
        parts: every object of the schemas, by its identity.
    """

    own: Part
    by_uri: dict[str, Part] = field(default_factory=dict)
    by_anchor: dict[tuple[str, str], Part] = field(default_factory=dict)
    parts: dict[int, Part] = field(default_factory=dict)

    def find(self, part: Part, reference: object) -> Part:
        """Return what a reference of a schema points to.

        Raises:
            JsonAnalysisError: JSON_REFERENCE_NOT_FOUND.
        """
        if not isinstance(reference, str):
            raise schema_error(f"a $ref is {type(reference).__name__} and no text")
        if len(reference) <= _MOST_URI:
            plain, _, fragment = reference.partition("#")
            for uri in (_joined(part.base, plain), plain):
                schema = self._within(uri, fragment)
                if schema is not None:
                    return schema
            if reference in self.by_uri:  # a name of the registry
                return self.by_uri[reference]
        raise JsonAnalysisError(
            "JSON_REFERENCE_NOT_FOUND",
            f"The JSON Schema refers to {reference!r:.200}, which neither it nor its references in the registry "
            f"contain",
            _WHERE,
        )

    def _within(self, uri: str, fragment: str) -> Part | None:
        """Return the schema at an anchor, or at a JSON pointer; None if there is none."""
        if (uri, fragment) in self.by_anchor:
            return self.by_anchor[uri, fragment]
        document = self.by_uri.get(uri)
        if document is None or (fragment and not fragment.startswith("/")):
            return None
        value, around = document.value, document
        for step in unquote(fragment).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
                value = value[int(name)]
            elif isinstance(value, dict) and name in value:
                value = value[name]
            else:
                return None
            around = self.parts.get(id(value), around)
        return around if around.value is value else around.inner(value)


def parse_schemas(text: str, references: Mapping[str, str] | None = None) -> Documents:
    """Parse a schema and those that it refers to, each under the name by which it does.

    Raises:
        JsonAnalysisError: CANNOT_PARSE_JSON_SCHEMA.
    """
    documents = Documents(_document(text, ""))
    count = _index(documents, "", documents.own, 0)
    for name, referred in (references or {}).items():
        count = _index(documents, name, _document(referred, name), count)
    return documents


def _document(text: str, uri: str) -> Part:
    try:
        value = json.loads(text)
    except RecursionError:
        raise schema_error("it is nested too deeply") from None
    except ValueError as error:
        raise schema_error(f"it is not JSON: {error}") from None
    if not isinstance(value, dict | bool):
        raise schema_error(f"it is neither an object nor a boolean, but {type(value).__name__}")
    draft = value.get("$schema") if isinstance(value, dict) else None
    siblings = isinstance(draft, str) and not any(old in draft for old in _OLD_DRAFTS)
    return Part(value, _base_of(value, uri), siblings)


def _base_of(value: object, base: str) -> str:
    """Return the URI that a schema gives itself, which is ``id`` in draft 4; else that of the schema around it."""
    if isinstance(value, dict):
        for key in ("$id", "id"):
            own = value.get(key)
            if isinstance(own, str) and not own.startswith("#"):
                joined = own if len(own) > _MOST_URI else _joined(base, own.partition("#")[0])
                if len(joined) > _MOST_URI:
                    raise schema_error(f"an {key} has more than {_MOST_URI:,} characters")
                return joined
    return base


def _joined(base: str, reference: str) -> str:
    """Return a reference as seen from a base; the base may be a name or a URN instead of a URL."""
    if not reference:
        return base
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _index(documents: Documents, uri: str, document: Part, count: int) -> int:
    """Note the document and the parts of it that have an URI or an anchor; return the new number of parts."""
    documents.by_uri.setdefault(uri, document)
    documents.parts[id(document.value)] = document
    pending: list[tuple[Any, str]] = [(document.value, uri)]
    while pending:
        value, around = pending.pop()
        count += 1
        if count > _MOST_PARTS:
            raise schema_error(f"with its references it has more than {_MOST_PARTS:,} parts")
        if isinstance(value, list):
            pending += [(item, around) for item in value]
        elif isinstance(value, dict):
            base = _base_of(value, around)
            part = documents.parts.setdefault(id(value), Part(value, base, document.siblings))
            if base != around:
                documents.by_uri.setdefault(base, part)
                if len(documents.by_uri) > _MOST_URIS:
                    raise schema_error(f"with its references it has more than {_MOST_URIS:,} schemas with an $id")
            for anchor in _anchors(value):
                documents.by_anchor.setdefault((base, anchor), part)
            pending += [(item, base) for item in value.values() if isinstance(item, dict | list)]
    return count


def _anchors(value: Mapping[str, Any]) -> list[str]:
    names = [value.get(key) for key in ("$anchor", "$dynamicAnchor")]
    names += [own[1:] for own in (value.get("$id"), value.get("id")) if isinstance(own, str) and own.startswith("#")]
    return [name for name in names if isinstance(name, str)]


def schema_error(why: str) -> JsonAnalysisError:
    """Return the error for a text that is not JSON Schema."""
    return JsonAnalysisError("CANNOT_PARSE_JSON_SCHEMA", f"The JSON Schema cannot be used: {why}", _WHERE)


def not_supported(what: str, action: str) -> JsonAnalysisError:
    """Return the error for what a schema says and Spark cannot."""
    return JsonAnalysisError("JSON_TYPE_NOT_SUPPORTED", f"The JSON Schema {what}", _WHERE, action)
