"""The error for what a schema registry holds and nobody can use."""

from __future__ import annotations

from connectors.core.errors import ConnectorError


def schema_unusable(what: str, why: str, action: str = "") -> ConnectorError:
    """Return the error for a schema, or a response of a registry, that makes no sense."""
    return ConnectorError("SCHEMA_UNUSABLE", f"The {what} cannot be used: {why}", "schemaRegistry", action)
