"""Message ordering of a subscription: which messages of a key may go out now, and which come again.

The rules are those of https://cloud.google.com/pubsub/docs/ordering. Messages of a key go out in the order of
publishing, several at a time, but only to the client that holds earlier ones of them. When one comes again, so do all
later ones of its key that had gone out, also those that were acked.

For each key the messages are in two lines, one behind the other::

    sent (the first is held by a client, the others are held or acked)  <--  waiting (to go out next)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from connectors.testing.pubsub.model.messages import Consumer, Entry

__all__ = ["KeyOrder"]


class _Key:
    __slots__ = ("client", "sent", "waiting")

    def __init__(self) -> None:
        self.sent: deque[Entry] = deque()
        self.waiting: deque[Entry] = deque()
        self.client = ""
        """The client that holds the sent messages."""


class KeyOrder:
    """The keys of one subscription."""

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}
        # Those with something that waits, in the order in which that began.
        self._ready: dict[str, None] = {}

    def add(self, entry: Entry) -> None:
        """A message was published."""
        name = entry.message.ordering_key
        self._keys.setdefault(name, _Key()).waiting.append(entry)
        self._ready[name] = None

    def next_for(self, consumer: Consumer) -> Iterator[Entry]:
        """What may go out to a consumer, in order; each that does is to be told by `went_out` before the next."""
        client = consumer.client_id or consumer.id
        for name in list(self._ready):
            key = self._keys[name]
            if key.sent and key.client != client:
                continue
            while key.waiting:
                if key.waiting[0].live:
                    yield key.waiting[0]
                else:
                    key.waiting.popleft()
            del self._ready[name]
            self._forget_if_empty(name, key)

    def went_out(self, entry: Entry, consumer: Consumer) -> None:
        """The message that `next_for` gave last went out."""
        key = self._keys[entry.message.ordering_key]
        key.waiting.popleft()
        key.sent.append(entry)
        key.client = consumer.client_id or consumer.id

    def settled(self, entry: Entry) -> None:
        """A message was acked, or dropped."""
        name = entry.message.ordering_key
        key = self._keys.get(name)
        if key is None:
            return
        while key.sent and not key.sent[0].live:
            key.sent.popleft()
        self._forget_if_empty(name, key)

    def comes_again(self, entry: Entry) -> list[Entry] | None:
        """A message was nacked, or expired; the later ones of its key that now come again too.

        None if it has no place here: it was acked, and a fault brought it back.
        """
        name = entry.message.ordering_key
        key = self._keys.get(name)
        if key is None or entry not in key.sent:
            return [] if key is not None and entry in key.waiting else None
        moved: list[Entry] = []
        while not moved or moved[-1] is not entry:
            moved.append(key.sent.pop())
        key.waiting.extendleft(moved)
        self._ready[name] = None
        return moved[:-1]

    def _forget_if_empty(self, name: str, key: _Key) -> None:
        if not key.sent and not key.waiting:
            self._keys.pop(name, None)
            self._ready.pop(name, None)
