"""Names of Pub/Sub's resources, as options and columns give them: an id, or a full path."""

from __future__ import annotations

import re
from typing import Final

from connectors.core.options.kinds import Kind

__all__ = ["PROJECT", "TOPIC", "full_path", "is_name", "resource", "resources"]

_PROJECT: Final = r"[A-Za-z0-9.:-]+"
_NEITHER: Final = "it is neither an id nor a full path"
# The rules of Pub/Sub, less the length.
_ID: Final = r"[A-Za-z0-9][A-Za-z0-9_.~+%-]*"


def is_name(collection: str, text: str) -> bool:
    """Whether a text is an id or a full path of a ``collection``: ``topics``, ``subscriptions`` or ``snapshots``."""
    return re.fullmatch(rf"(projects/{_PROJECT}/{collection}/)?{_ID}", text) is not None


def resource(collection: str) -> Kind[str]:
    """The kind of an option that names one."""

    def parse(text: str) -> str:
        if not is_name(collection, text):
            raise ValueError(_NEITHER)
        return text

    return Kind("string", f"an id, or a full path: projects/PROJECT/{collection}/ID", str, parse)


def resources(collection: str) -> Kind[str]:
    """The kind of an option that names one or more, with commas between them."""

    def parse(text: str) -> str:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if not is_name(collection, name):
                raise ValueError(f"{name[:80]!r} is neither an id nor a full path" if len(names) > 1 else _NEITHER)
        return ",".join(names)

    legal = f"an id, or a full path: projects/PROJECT/{collection}/ID; several with commas between them"
    return Kind("string", legal, str, parse)


def _parse_project(text: str) -> str:
    if not re.fullmatch(_PROJECT, text):
        raise ValueError("it is no project id")
    return text


PROJECT: Final = Kind("string", "the id of a project, such as my-shop", str, _parse_project)
TOPIC: Final = resource("topics")


def full_path(project: str | None, collection: str, name: str) -> str:
    """The full path of what is named by its id or by its full path."""
    return name if name.startswith("projects/") else f"projects/{project}/{collection}/{name}"
