"""Events under load: generators that send what they say, and rows whose times are read as they were written."""

from __future__ import annotations

import time

import numpy as np
import pytest
from _load_generator import SIZE, run
from _ready_rows import DueRows

BEGIN = 1_700_000_000_000_000_000


def test_a_generator_sends_all_that_was_due_with_times_and_numbers() -> None:
    batches: list[list[bytes]] = []
    begin = time.time_ns()
    report = run(lambda _topic, values: batches.append(values), "topic", 1000, 0.2, 0.01)
    values = [value for batch in batches for value in batch]
    assert report["messages"] == len(values) == 200
    assert {len(value) for value in values} == {SIZE}
    sent = np.array([int.from_bytes(value[:8], "little") for value in values])
    assert (np.diff(sent) >= 0).all()
    assert begin <= report["begin"] <= sent[0]
    numbers = [int.from_bytes(value[8:16], "little") for value in values]
    assert len({*numbers}) == 200


def test_a_slow_system_is_asked_for_no_less_and_the_lateness_is_reported() -> None:
    counts = []

    def send(_topic: str, values: list[bytes]) -> None:
        counts.append(len(values))
        time.sleep(0.05)

    report = run(send, "topic", 1000, 0.3, 0.01)
    assert report["messages"] == sum(counts) == 300
    assert max(counts) >= 40
    assert report["late_p99_ms"] > 35


def test_rows_that_are_due_come_to_be_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: BEGIN + 2_500_000)
    source = DueRows({"begin": str(BEGIN), "rate": "2000", "size": "16", "partitions": "2"})
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, None)  # type: ignore[call-arg]
    assert end == {"rows": 5}
    rows = [stream.read(part) for part in stream.partitions(start, end)]
    values = [value.as_py() for part in rows for batch in part for value in batch["value"]]
    due = sorted(int.from_bytes(value[:8], "little") - BEGIN for value in values)
    assert due == [0, 500_000, 1_000_000, 1_500_000, 2_000_000]
    assert not stream.partitions(end, end)
