"""Events under load: generators that send what they say, and rows whose times are read as they were written."""

from __future__ import annotations

import time

from _load_generator import run


def test_a_slow_system_is_asked_for_no_less_and_the_lateness_is_reported() -> None:
    counts = []

    def send(_topic: str, values: list[bytes]) -> None:
        counts.append(len(values))
        time.sleep(0.05)

    report = run(send, "topic", 1000, 0.3, 0.01)
    assert report["messages"] == sum(counts) == 300
    assert max(counts) >= 40
    assert report["late_p99_ms"] > 35
