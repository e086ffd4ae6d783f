"""The fast path or the plain one, as CONNECTORS_NO_FAST_PATH selects it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from connectors.core.processes.worker import NO_FAST_PATH
from connectors.kafka.native import native_reason
from connectors.kafka.source.consumer_pool import CONSUMERS

__all__ = ["path_taken"]


@contextmanager
def path_taken(*, native: bool) -> Iterator[None]:
    """Have this process, and those that it starts, take one of the paths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NO_FAST_PATH, "" if native else "1")
        native_reason.cache_clear()
        yield
    native_reason.cache_clear()
    CONSUMERS.close()
