"""Filters of subscriptions (https://cloud.google.com/pubsub/docs/subscription-message-filter).

attributes:region                          the attribute is there
attributes.region = "eu"                   it has this value; != : it has another one, or is not there
hasPrefix(attributes.region, "eu-")        its value begins so
NOT x, -x, x AND y, x OR y, ( ... )        AND and OR not mixed without parentheses
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["Filter", "parse_filter"]

MAX_BYTES: Final = 256
Filter = Callable[[Mapping[str, str]], bool]
"""Whether a message with these attributes is delivered."""

_WORD: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|!=|[=:.,()-]|[A-Za-z0-9_\-]+)')


def parse_filter(text: str) -> Filter:
    """Read a filter.

    Raises:
        ValueError: it is malformed, or too long. An empty one takes everything.
    """
    if len(text.encode()) > MAX_BYTES:
        message = f"a filter has at most {MAX_BYTES} bytes"
        raise ValueError(message)
    if not text:
        return lambda _: True
    parser = _Parser(_words(text))
    found = parser.expression()
    parser.expect("")
    return found


def _words(text: str) -> list[str]:
    words: list[str] = []
    at = 0
    while text[at:].strip():
        match = _WORD.match(text, at)
        if match is None:
            message = f"unexpected {text[at:].strip()[0]!r} in the filter"
            raise ValueError(message)
        words.append(match[1])
        at = match.end()
    return words


class _Parser:
    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._at = 0

    def _peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _take(self) -> str:
        word = self._peek()
        self._at += 1
        return word

    def expect(self, wanted: str) -> None:
        found = self._take()
        if found != wanted:
            message = f"expected {wanted or 'the end'} in the filter, not {found or 'the end'}"
            raise ValueError(message)

    def expression(self) -> Filter:
        parts = [self._term()]
        joined = self._peek()
        while self._peek() in {"AND", "OR"}:
            if self._take() != joined:
                message = "AND and OR need parentheses between them"
                raise ValueError(message)
            parts.append(self._term())
        if joined == "OR":
            return lambda attributes: any(part(attributes) for part in parts)
        return lambda attributes: all(part(attributes) for part in parts)

    def _term(self) -> Filter:
        word = self._take()
        if word in {"NOT", "-"}:
            negated = self._term()
            return lambda attributes: not negated(attributes)
        if word == "(":
            inner = self.expression()
            self.expect(")")
            return inner
        if word == "hasPrefix":
            return self._has_prefix()
        if word != "attributes":
            message = f"unexpected {word or 'end'} in the filter"
            raise ValueError(message)
        return self._comparison()

    def _has_prefix(self) -> Filter:
        for wanted in ("(", "attributes", "."):
            self.expect(wanted)
        key = self._text()
        self.expect(",")
        prefix = self._text()
        self.expect(")")
        return lambda attributes: key in attributes and attributes[key].startswith(prefix)

    def _comparison(self) -> Filter:
        separator = self._take()
        key = self._text()
        if separator == ":":
            return lambda attributes: key in attributes
        operator = self._take()
        if separator != "." or operator not in {"=", "!="}:
            message = "after attributes comes :key, or .key with = or !="
            raise ValueError(message)
        value = self._text()
        if operator == "=":
            return lambda attributes: attributes.get(key) == value
        return lambda attributes: attributes.get(key) != value

    def _text(self) -> str:
        word = self._take()
        if word.startswith('"'):
            return str(json.loads(word))
        if not re.fullmatch(r"[A-Za-z0-9_\-]+", word):
            message = f"unexpected {word or 'end'} in the filter"
            raise ValueError(message)
        return word
