"""The watch of the parent process, without which a retry or a call would outlive a killed driver."""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from typing import Final

_PARENT_SECONDS: Final = 1.0


class ParentWatch:
    """Tells whether the process that started this one has ended, for loops that must not outlive a killed driver.

    ``parent``: its process id, if known; it may have ended already.
    """

    def __init__(self, parent: int | None = None) -> None:
        self._parent = os.getppid() if parent is None else parent

    def is_gone(self) -> bool:
        """Return whether it has ended; the kernel then gives this process another parent."""
        return os.getppid() != self._parent


@cache
def end_with_parent() -> None:
    """End this process soon after its parent has ended, whatever call it is in. Later calls do nothing.

    Spark kills the source process of a stream, but only while the JVM lives: after its death nothing else ends a call
    of an SDK that waits for a service.
    """
    parent = ParentWatch()

    def watch() -> None:
        while not parent.is_gone():
            time.sleep(_PARENT_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
