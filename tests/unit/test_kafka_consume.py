"""The read loop on a source of our own: what becomes of records when a fetch brings an error beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pytest

from connectors.core.errors import AccessDeniedError
from connectors.kafka import consume
from connectors.kafka.consume import ReadSettings, read_range
from connectors.kafka.fetched import Event, Fetched
from connectors.kafka.ranges import OffsetRange
from connectors.kafka.settings import ClientSettings

SETTINGS = ReadSettings(ClientSettings(), "check", headers=False, fail_on_data_loss=True, poll_timeout=10, native=True)


class Held(Fetched):
    """Records by their offsets alone; the source notes which it has got back."""

    def __init__(self, offsets: Any, given_back: list[int], events: Sequence[Event] = ()) -> None:
        super().__init__(offsets, events)
        self._given_back = given_back

    @property
    def size(self) -> int:
        return len(self)

    def cut(self, first: int, last: int) -> Self:
        return type(self)(self.offsets[first:last], self._given_back)

    def batch(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    def free(self) -> None:
        self._given_back += self.offsets.tolist()


class RefusingSource:
    """Gives ten records and, in the same fetch, an error; like the client, it cannot close while records are out."""

    def __init__(self) -> None:
        self.given_back: list[int] = []
        self.out_when_closed: set[int] | None = None

    def assign(self, *_: Any) -> None:
        pass

    def fetch(self, *_: Any) -> Held:
        return Held(np.arange(10), self.given_back, [Event("TOPIC_AUTHORIZATION_FAILED", "no", -1)])

    def offset_of(self, *_: Any) -> int:
        raise AssertionError

    def close(self) -> None:
        self.out_when_closed = set(range(10)) - set(self.given_back)


@pytest.mark.parametrize("part", [OffsetRange("t", 0, 0, 20), OffsetRange("t", 0, 3, 7)], ids=["inside", "cut"])
def test_an_error_beside_records_fails_the_task_with_every_record_given_back(
    part: OffsetRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RefusingSource()
    monkeypatch.setattr(consume, "open_source", lambda _: source)
    with pytest.raises(AccessDeniedError):
        list(read_range(part, SETTINGS))
    assert source.out_when_closed == set()
    assert len(source.given_back) == 10, "and none twice"
