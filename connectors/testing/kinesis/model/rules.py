"""What every operation of the Kinesis server shares: its errors, and arguments that are checked."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["ACCOUNT", "Arguments", "ServiceError", "invalid", "not_valid"]

ACCOUNT = "000000000000"
"""The account that all streams belong to."""

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_ARN = re.compile(r"arn:aws[a-z-]*:kinesis:[a-z0-9-]*:\d{12}:stream/([a-zA-Z0-9_.-]{1,128})(/consumer/.+)?")


class ServiceError(Exception):
    """An error that a client gets.

    Attributes:
        kind: its name in the API, such as ``ResourceNotFoundException``.
        message: its text.
        status: the HTTP status.
    """

    def __init__(self, kind: str, message: str, status: int = 400) -> None:
        self.kind = kind
        self.message = message
        self.status = status
        super().__init__(f"{kind}: {message}")


def invalid(message: str) -> ServiceError:
    """An argument that makes no sense for this stream or shard."""
    return ServiceError("InvalidArgumentException", message)


def not_valid(value: object, member: str, constraint: str) -> ServiceError:
    """An argument that breaks a constraint of the API's model."""
    shown = "null" if value is None else f"'{value}'"
    return ServiceError(
        "ValidationException",
        f"1 validation error detected: Value {shown} at '{member}' failed to satisfy constraint: Member {constraint}",
    )


def _member(name: str) -> str:
    return name[:1].lower() + name[1:]


class Arguments:
    """The JSON object that a client sent."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def optional_text(self, name: str) -> str | None:
        """A string, or None when it was not given."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise ServiceError("SerializationException", f"{name} is not a string")
        return value

    def text(self, name: str) -> str:
        """A string that must be there."""
        value = self.optional_text(name)
        if value is None:
            raise not_valid(None, _member(name), "must not be null")
        return value

    def name(self, name: str) -> str:
        """A name of a stream, shard or consumer."""
        value = self.text(name)
        if not _NAME.fullmatch(value):
            raise not_valid(value, _member(name), "must satisfy regular expression pattern: [a-zA-Z0-9_.-]+")
        return value

    def optional_whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number in a range, or None when it was not given."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ServiceError("SerializationException", f"{name} is not an integer")
        if value < low:
            raise not_valid(value, _member(name), f"must have value greater than or equal to {low}")
        if value > high:
            raise not_valid(value, _member(name), f"must have value less than or equal to {high}")
        return value

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number in a range that must be there."""
        value = self.optional_whole(name, low, high)
        if value is None:
            raise not_valid(None, _member(name), "must not be null")
        return value

    def optional_time(self, name: str) -> int | None:
        """A time in nanoseconds since 1970, or None when it was not given; clients send seconds."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ServiceError("SerializationException", f"{name} is not a timestamp")
        # Milliseconds are what the service keeps; a float of seconds holds no more than microseconds anyway.
        return round(value * 1000) * 1_000_000

    def optional_object(self, name: str) -> Arguments | None:
        """A JSON object, or None when it was not given."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ServiceError("SerializationException", f"{name} is not a structure")
        return Arguments(value)

    def optional_stream(self) -> str | None:
        """The name of the stream, from ``StreamName``, ``StreamARN`` or ``ConsumerARN``; None when none was given."""
        arn = self.optional_text("StreamARN") or self.optional_text("ConsumerARN")
        if arn is None:
            return self.name("StreamName") if "StreamName" in self.values else None
        match = _ARN.fullmatch(arn)
        if match is None:
            raise not_valid(arn, "streamARN", "must satisfy regular expression pattern: arn:aws.*:kinesis:.*:stream/.*")
        name = self.optional_text("StreamName")
        if name is not None and name != match[1]:
            raise invalid("StreamName and StreamARN do not match.")
        return match[1]

    def stream(self) -> str:
        """As `optional_stream`, but it must be there."""
        name = self.optional_stream()
        if name is None:
            raise invalid("Either StreamName or StreamARN must be provided.")
        return name
