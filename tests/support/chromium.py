"""A headless Chromium, by its DevTools protocol over a pipe: no driver and no package of node's."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["Chromium", "NavigatedError", "installed"]

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def installed() -> str | None:
    """Return the path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class NavigatedError(Exception):
    """Raised when the browser leaves a page that was to evaluate an expression."""


class Chromium:
    """One page of one browser; a context manager."""

    def __init__(self, profile: Path) -> None:
        program = installed()
        assert program is not None, f"none of {', '.join(_NAMES)} is installed"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        flags += ["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "about:blank"]
        # Chromium reads descriptor 3 and writes 4; ours have higher numbers, so that neither hides the other.
        (read, own_write), (own_read, write) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (read, write)]
        shell = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
        command = ["bash", "-c", shell, "chromium", program, f"--user-data-dir={profile}", *flags]
        self._process = subprocess.Popen(
            command, pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for each in (read, write, *theirs):
            os.close(each)
        self._out, self._in = os.fdopen(own_write, "wb", buffering=0), os.fdopen(own_read, "rb")
        self._numbers = itertools.count(1)
        self._left = b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._session = None
        try:
            self.call("Browser.close")
        finally:
            self._out.close()
            self._in.close()
            self._process.wait(30)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        if "navigated" in answer.get("error", {}).get("message", ""):
            raise NavigatedError(method)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        """Return the next response or event."""
        while b"\0" not in self._left:
            part = os.read(self._in.fileno(), 1 << 16)
            assert part, "Chromium has ended"
            self._left += part
        text, _, self._left = self._left.partition(b"\0")
        answer: dict[str, Any] = json.loads(text)
        return answer

    def screen(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """Set the size of the screen, a phone's below 600 pixels, and which colours the reader prefers."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Open a page, and wait until it is loaded."""
        loader = self.call("Page.navigate", url=address)
        assert "errorText" not in loader, f"{address}: {loader.get('errorText')}"
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """Return what a JavaScript expression, or the promise it gives, evaluates to."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, f"{expression[:200]}: {done.get('exceptionDetails')}"
        return done["result"].get("value")

    def picture(self, target: Path) -> None:
        """Write what the screen shows, as PNG."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        target.write_bytes(base64.b64decode(data))
