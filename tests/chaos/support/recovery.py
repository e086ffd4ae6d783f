"""How long a query takes from a fault until its sink has new rows."""

from __future__ import annotations

import time


class Recovery:
    """One measurement after the other.

    Attributes:
        seconds: of each fault after which new rows came; a fault after the last row has none.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._rows, self._since = 0, 0.0

    def begin(self, rows: int) -> None:
        """Note that a fault comes now, and how many rows the sink has."""
        self._rows, self._since = rows, time.monotonic()

    def see(self, rows: int) -> None:
        """Note how many rows the sink has; the first time that there are more ends the measurement."""
        if self._since and rows > self._rows:
            self.seconds.append(round(time.monotonic() - self._since, 1))
            self._since = 0.0
