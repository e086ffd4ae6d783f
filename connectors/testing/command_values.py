"""Checks of the values that commands to a testing server bring."""

from __future__ import annotations

from connectors.testing.clock import SECOND

__all__ = ["nanoseconds", "not_negative", "one_of"]


def one_of(name: str, value: str, *legal: str) -> str:
    """The value, if it is one of these; else a ValueError."""
    if value not in legal:
        message = f"{name} must be one of {', '.join(legal)}, not {value!r}"
        raise ValueError(message)
    return value


def not_negative(name: str, value: float) -> float:
    """The value, if it is not below zero; else a ValueError."""
    if value < 0:
        message = f"{name} must not be negative, but is {value}"
        raise ValueError(message)
    return value


def nanoseconds(seconds: float) -> int:
    """Seconds that may not be negative, in nanoseconds."""
    return int(not_negative("seconds", seconds) * SECOND)
