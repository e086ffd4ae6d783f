"""What a registry is asked for: the path of a schema, in the context that its subject names.

A context is a registry of its own within one of Confluent's, with ids of its own. A subject names it, as in
``:.staging:orders-value``, or the address does, by a path that ends with ``/contexts/.staging``. A name without a
context is one of the default context; a reference without one is one of the context of the schema that has it
(``QualifiedSubject`` and ``ContextFilter`` of Confluent's server).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote, urlencode, urlsplit
from uuid import UUID

from connectors.registry.batches import schema_unusable

_CONTEXT: Final = re.compile(r":(\.[^:]*):?")
_ADDRESS_CONTEXT: Final = re.compile(r"/contexts/([^/]+)$")
_DEFAULT: Final = ":.:"
_WRONG_REGISTRY: Final = (
    "See that address and context, which the subject names, are those by which the messages were written."
)
_NO_VERSION: Final = (
    "The version was never there, or was deleted permanently: register the schema again, with a reference to a version "
    "that exists."
)
_NO_SUBJECT: Final = "Check the subject, with its context, and the address; or register a schema under it."


@dataclass(frozen=True, slots=True)
class Lookup:
    """A request for a schema.

    Attributes:
        path: the path below the address.
        what: what it is for, in errors.
        missing: what to do where the registry does not have it.
        query: parameters of the URL.
    """

    path: str
    what: str
    missing: str
    query: tuple[tuple[str, str], ...] = ()

    def url(self, **more: str) -> str:
        """Return path and query, with more parameters."""
        query = urlencode([*more.items(), *self.query], quote_via=quote, safe=":.")
        return f"{self.path}?{query}" if query else self.path


def by_id(schema: int | str, context: str | None) -> Lookup:
    """Return the request for a schema by its id in a context, or by its GUID, which is the same in all."""
    if isinstance(schema, str):
        guid = UUID(schema)
        return Lookup(f"/schemas/guids/{guid}", f"schema GUID {guid}", _WRONG_REGISTRY)
    query = () if context is None else (("subject", context),)
    return Lookup(f"/schemas/ids/{schema}", f"schema id {schema}", _WRONG_REGISTRY, query)


def of_subject(subject: str, version: int | str, what: str) -> Lookup:
    """Return the request for a version of a subject; a number is found where it is soft-deleted too."""
    path = f"{subject_path(subject, what)}/versions/{version}"
    if version == "latest":
        return Lookup(path, what, _NO_SUBJECT)
    return Lookup(path, what, _NO_VERSION, (("deleted", "true"),))


def subject_path(subject: str, what: str) -> str:
    """Return the path of a subject; SCHEMA_UNUSABLE for a name that a path takes as another one."""
    if subject in {"", ".", ".."}:
        raise schema_unusable(what, f"its subject is {subject!r}, which cannot be part of a URL")
    return f"/subjects/{quote(subject, safe='')}"


def context_of(subject: str | None) -> str | None:
    """Return the context that a subject names, such as ``:.staging:``; None if it names none."""
    match = _CONTEXT.match(subject or "")
    return match and f":{match[1]}:"


def name_of(subject: str) -> str:
    """Return a subject without its context; empty for a context alone."""
    return _CONTEXT.sub("", subject, count=1) if context_of(subject) else subject


def qualified(subject: str, context: str | None) -> str:
    """Return a subject with its context; the one given is for a subject that names none."""
    return subject if not context or context_of(subject) else f"{context}{subject}"


def address_context(address: str) -> str | None:
    """Return the context that an address names."""
    match = _ADDRESS_CONTEXT.search(urlsplit(address).path)
    name = unquote(match[1]).strip(":") if match else ""
    return f":.{name.removeprefix('.')}:" if name else None


def normal_context(context: str | None) -> str:
    """Return a context by the only name that it has: the default one is empty."""
    return "" if context in {None, _DEFAULT} else str(context)
