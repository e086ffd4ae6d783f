"""Says which rows a broker or the client has refused, and what of them: an error of Produce is one of a whole request.

The client reports it of each record of the request, so what the rows have in common is all that can be said. Their
contents are never part of an error.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from connectors.core.errors import ConnectorError, SourceGoneError
from connectors.kafka.client.errors import DIFFERENT_RECORD, gone, named_error, record_place

_OF_ROWS: Final = frozenset(
    {"KAFKA_ERROR", "KAFKA_RECORD_INVALID", "KAFKA_RECORD_TOO_LARGE", "KAFKA_TIMESTAMP", "KAFKA_TOPIC_NAME"}
)
"""The codes of errors that rows cause, or may cause."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LATEST_MS: Final = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(milliseconds=1)
"""The last millisecond that Python's datetime has."""


class RefusedRows:
    """The rows of a partition that were refused with one error, by librdkafka's name and text of it."""

    def __init__(self, name: str, text: str, topic: str, partition: int | None) -> None:
        self.name, self.topic, self.partition = name, topic, partition
        self._text = text
        self._rows = self._without_key = self._bytes = self._most_bytes = 0
        self._largest = ""

    def add(self, key_bytes: int | None, value_bytes: int | None) -> None:
        """Add a row: the length of its key and value, None for null, and its timestamp, 0 for the time of writing."""
        size = (key_bytes or 0) + (value_bytes or 0)
        self._rows += 1
        self._bytes += size
        self._without_key += key_bytes is None
        if not self._largest or size > self._most_bytes:
            self._most_bytes, self._largest = size, f"{_sized('key', key_bytes)} and {_sized('value', value_bytes)}"

    def accepts(self, name: str, topic: str, partition: int | None) -> bool:
        """Return whether a row that was refused with this error belongs here."""
        return (name, topic, partition) == (self.name, self.topic, self.partition)

    def replaced_by(self, name: str) -> bool:
        """Return whether this only says that another record of the request is at fault, and an error is of that one."""
        return self.name == DIFFERENT_RECORD != name

    def error(self, times: tuple[int, int] = (0, 0)) -> ConnectorError:
        """Return our error, with the facts of the rows where they may have caused it.

        `times` are the first and the last timestamp of the task's rows in milliseconds, 0 where they have none.
        """
        where = record_place(self.topic, self.partition)
        error = named_error(self.name, self._text, where, retriable=False)
        if isinstance(error, SourceGoneError):
            return gone(where, of_rows=True)
        if error.code not in _OF_ROWS or not self._rows:
            return error
        return type(error)(error.code, f"{error.what}. {self._facts()}. {_stamped(*times)}", where, error.action)

    def _facts(self) -> str:
        if self._rows == 1:
            return f"The row has {self._largest}"
        return (
            f"The request has {self._rows} rows with {self._bytes} bytes in keys and values, {self._without_key} of "
            f"them without a key; the largest has {self._largest}"
        )


def _stamped(first: int, last: int) -> str:
    if not first:
        return "The rows have the time of writing as timestamp"
    times = [
        (_EPOCH + dt.timedelta(milliseconds=min(each, _LATEST_MS))).isoformat(timespec="milliseconds")
        for each in (first, last)
    ]
    if first == last:
        return f"The rows written so far have the timestamp {times[0]}"
    return f"The rows written so far have timestamps from {times[0]} to {times[1]}"


def size_of(content: bytes | None) -> int | None:
    """Return the length of a key or a value, None for null."""
    return None if content is None else len(content)


def _sized(word: str, length: int | None) -> str:
    return f"a null {word}" if length is None else f"a {word} of {length} byte{'s' * (length != 1)}"
