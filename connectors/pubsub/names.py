"""Names of Pub/Sub's resources, as options and columns give them: an id, or a full path."""

from __future__ import annotations

import re
from typing import Final

from connectors.core.option_kinds import Kind

__all__ = ["PROJECT", "TOPIC", "full_path", "is_name", "resource"]

_PROJECT: Final = r"[A-Za-z0-9.:-]+"
# The rules of Pub/Sub, less the length.
_ID: Final = r"[A-Za-z0-9][A-Za-z0-9_.~+%-]*"


def is_name(collection: str, text: str) -> bool:
    """Whether a text is an id or a full path of a ``collection``: ``topics``, ``subscriptions`` or ``snapshots``."""
    return re.fullmatch(rf"(projects/{_PROJECT}/{collection}/)?{_ID}", text) is not None


def resource(collection: str) -> Kind[str]:
    """The kind of an option that names one."""

    def parse(text: str) -> str:
        if not is_name(collection, text):
            raise ValueError("it is neither an id nor a full path")
        return text

    return Kind("string", f"an id, or a full path: projects/PROJECT/{collection}/ID", str, parse)


def _parse_project(text: str) -> str:
    if not re.fullmatch(_PROJECT, text):
        raise ValueError("it is no project id")
    return text


PROJECT: Final = Kind("string", "the id of a project, such as my-shop", str, _parse_project)
TOPIC: Final = resource("topics")


def full_path(project: str | None, collection: str, name: str) -> str:
    """The full path of what is named by its id or by its full path."""
    return name if name.startswith("projects/") else f"projects/{project}/{collection}/{name}"
