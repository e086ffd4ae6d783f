"""Builds and runs the canned Pub/Sub server of `bench/servers/canned_pubsub` (Go)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

SOURCE = Path(__file__).resolve().parent / "servers" / "canned_pubsub"
DESCRIPTION = "canned responder in Go (bench/servers/canned_pubsub, grpc-go)"
_STOP_SECONDS = 10


def build() -> Path:
    """The executable, built once for each state of its source, in the user's cache folder.

    Raises:
        SystemExit: there is no Go, or the build failed.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyspark-stream-connectors"
    executable = cache / f"canned_pubsub-{digest.hexdigest()}"
    if executable.exists():
        return executable
    if shutil.which("go") is None:
        raise SystemExit("this benchmark builds its server with Go 1.24 or newer, which was not found")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        built = Path(folder) / executable.name
        if subprocess.run(["go", "build", "-o", str(built), "."], cwd=SOURCE, check=False).returncode:  # noqa: S607
            raise SystemExit(f"go could not build {SOURCE.name}")
        built.replace(executable)
    return executable


class CannedPubSub:
    """A running canned server; a context manager that ends it.

    Args:
        size: bytes of a payload.
        batch: messages in a response.
        attributes: attributes of a message.
        limit: messages in all; 0 means no end.
        delay: seconds that each stream waits before each of its responses.
        timed: no messages but those of `generate`.
        max_seconds: when it ends in any case.
    """

    subscription = "projects/canned/subscriptions/canned"
    topic = "projects/canned/topics/canned"

    def __init__(
        self,
        *,
        size: int,
        batch: int = 1000,
        attributes: int = 0,
        limit: int = 0,
        max_seconds: float = 600,
        timed: bool = False,
        delay: float = 0.0,
    ) -> None:
        flags = {"size": size, "batch": batch, "attributes": attributes, "limit": limit, "max-seconds": max_seconds}
        flags |= {"delay": f"{delay}s"}
        command = [str(build()), *(f"-{name}={value}" for name, value in flags.items()), *["-timed"] * timed]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._input = cast("IO[str]", self._process.stdin)
        self._output = cast("IO[str]", self._process.stdout)
        self.address = self._output.readline().removeprefix("listening on ").strip()
        if not self.address:
            raise RuntimeError(f"the canned server ended with {self._process.wait()} before it listened")

    def stats(self) -> dict[str, Any]:
        """Its counters since it began: sent, acked, ack_ids, calls by method, cpu_seconds and more."""
        return self._ask("stats")

    def generate(self, rate: int, seconds: float) -> dict[str, Any]:
        """Let so many messages a second come to be, and wait for that: messages, begin (ns), late_p99_ms and more."""
        return self._ask(f"generate {rate} {seconds:g}")

    def _ask(self, command: str) -> dict[str, Any]:
        self._input.write(f"{command}\n")
        self._input.flush()
        answer: dict[str, Any] = json.loads(self._output.readline())
        return answer

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
