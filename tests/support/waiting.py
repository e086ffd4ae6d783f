"""Waiting for a condition: what tests do instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

POLL_SECONDS: Final = 0.05
"""Between two polls of a query of the protocol driver. Spark's 0.01 s takes its processor time from the other tests."""


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until a condition gives something true, and return that; fails if it does not in so many seconds."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return value
