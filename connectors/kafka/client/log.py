"""The log of librdkafka, whichever way it is called."""

from __future__ import annotations

import logging
import math
import re
import time
from typing import Final

from connectors.core.errors import OneLineFilter

_REPEAT_SECONDS: Final = 30.0
_MOST_LINES: Final = 1000
_DURATION: Final = re.compile(r" \(after \d+ms in state \w+\)")


class _Repeated(logging.Filter):
    """Drops a line that was just logged: a client that reaches no broker repeats it 20 times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = _DURATION.sub("", record.getMessage()), time.monotonic()
        if now - self._logged.get(line, -math.inf) < _REPEAT_SECONDS:
            return False
        if len(self._logged) >= _MOST_LINES:
            self._logged.clear()
        self._logged[line] = now
        return True


LOGGER: Final = logging.getLogger("connectors.kafka.client")
"""Gets the lines that librdkafka otherwise writes to standard error."""
LOGGER.addFilter(_Repeated())
LOGGER.addFilter(OneLineFilter())  # after that one, which reads the arguments
