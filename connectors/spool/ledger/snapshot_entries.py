"""A long list of entries that are JSON in a snapshot: each is decoded when it is asked for, and encoded once.

A spool may hold a million segments. To open it, few of their entries are looked at, and the next snapshot has nearly
all of them in the same words: so the text of the last one is kept, and only cut at the entries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from typing import Any, Generic, TypeVar, overload

import numpy as np

__all__ = ["EntryLog", "JsonText", "to_text"]

_Entry = TypeVar("_Entry")
_OPEN, _COMMA, _QUOTE, _A, _Z = b'{,"az'
_SHORTEST = len('{"a":1}')


class JsonText:
    """JSON that goes into a larger text as it is, without the brackets of its list."""

    def __init__(self, text: bytes | memoryview) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonText) and self.text == other.text

    __hash__ = None  # type: ignore[assignment]


def to_text(value: Mapping[str, Any]) -> bytes:
    """A JSON object in the one form that is written: no spaces, sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class EntryLog(MutableSequence[_Entry], Generic[_Entry]):
    """A list of entries, over the text that some of them were read from.

    Args:
        decode: an entry of its JSON object.
        encode: the JSON object of an entry.
        entries: to begin with: entries, or the text of their objects with commas between.
    """

    def __init__(
        self,
        decode: Callable[[Mapping[str, Any]], _Entry],
        encode: Callable[[_Entry], Mapping[str, Any]],
        entries: Iterable[_Entry] | JsonText = (),
    ) -> None:
        self._decode, self._encode = decode, encode
        self._source: bytes | memoryview = b""
        self._starts = np.empty(0, np.int64)
        self._entries: list[_Entry | None] = []
        self._texts: list[bytes | None] = []
        if isinstance(entries, JsonText):
            self._read(entries.text)
        else:
            self.extend(entries)

    def _read(self, text: bytes | memoryview) -> None:
        starts = _cut(text)
        if starts is None:
            self.extend(self._decode(value) for value in json.loads(b"[" + bytes(text) + b"]"))
            return
        self._source, self._starts = text, starts
        self._entries, self._texts = [None] * len(starts), [None] * len(starts)

    def text(self) -> JsonText:
        """All entries as JSON objects with commas between."""
        kept, parts = len(self._starts), []
        if kept and not any(self._texts[:kept]):
            parts.append(self._source[self._starts[0] :])
        else:
            parts += map(self._text_of, range(kept))
        if len(parts) == 1 and kept == len(self):
            return JsonText(parts[0])
        return JsonText(b",".join([*parts, *map(self._text_of, range(kept, len(self)))]))

    def _text_of(self, index: int) -> bytes | memoryview:
        text = self._texts[index]
        if text is not None:
            return text
        if index < len(self._starts):
            return self._source_of(index)
        entry = self._entries[index]
        if entry is None:
            raise IndexError(index)
        self._texts[index] = made = to_text(self._encode(entry))
        return made

    def _source_of(self, index: int) -> bytes | memoryview:
        last = index + 1 == len(self._starts)
        return self._source[self._starts[index] : len(self._source) if last else self._starts[index + 1] - 1]

    @overload
    def __getitem__(self, index: int) -> _Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[_Entry]: ...
    def __getitem__(self, index: int | slice) -> _Entry | list[_Entry]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        entry = self._entries[index]
        if entry is None:
            place = index if index >= 0 else index + len(self)
            entry = self._entries[place] = self._decode(json.loads(bytes(self._source_of(place))))
        return entry

    def __setitem__(self, index: Any, entry: Any) -> None:
        if isinstance(index, slice):
            raise TypeError("entries are replaced one by one")
        place = index if index >= 0 else index + len(self)
        self._entries[place], self._texts[place] = entry, to_text(self._encode(entry))

    def __delitem__(self, index: Any) -> None:
        raise TypeError("only the first entries can be dropped")

    def drop(self, count: int) -> None:
        """Drop the first entries."""
        del self._entries[:count], self._texts[:count]
        self._starts = self._starts[count:]
        if not len(self._starts):
            self._source = b""

    def values(self, key: str) -> set[str]:
        """All values of a key whose values are strings."""
        pattern = re.compile(rb'"%s":("[^"\\]*(?:\\.[^"\\]*)*")' % key.encode())
        first = int(self._starts[0]) if len(self._starts) else 0
        found = {str(json.loads(match)) for match in set(pattern.findall(memoryview(self._source)[first:]))}
        changed = (index for index in range(len(self)) if index >= len(self._starts) or self._texts[index] is not None)
        return found | {str(self._encode(self[index])[key]) for index in changed}

    def __len__(self) -> int:
        return len(self._entries)

    def insert(self, index: int, value: _Entry) -> None:
        """Append an entry; nothing is inserted elsewhere."""
        if index != len(self):
            raise IndexError(index)
        self._entries.append(value)
        self._texts.append(None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntryLog | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _cut(text: bytes | memoryview) -> Any:
    """Where each object begins in a text of flat objects with commas between; None if that cannot be told at a glance.

    Every brace that opens must stand at the beginning of an object. Within a string it has no quotation mark after it,
    or the one that ends the string, and then no letter.
    """
    if len(text) < _SHORTEST:
        return None if len(text) else np.empty(0, np.int64)
    characters = np.frombuffer(text, np.uint8)
    starts = np.flatnonzero(characters == _OPEN)
    letters = characters[np.minimum(starts + 2, len(characters) - 1)]
    well = (
        len(starts)
        and starts[0] == 0
        and np.all(characters[starts[1:] - 1] == _COMMA)
        and np.all(characters[np.minimum(starts + 1, len(characters) - 1)] == _QUOTE)
        and np.all((letters >= _A) & (letters <= _Z))
    )
    return starts if well else None
