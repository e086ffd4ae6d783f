"""What the object stores share: a process of their own, and the settings by which a spool reaches them."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.process import ServerProcess, start_bound_process

__all__ = ["BUCKET", "HOST", "REGION", "StoreServer", "child_server", "request", "s3_access"]

BUCKET = "spools"
"""The bucket or container that each of them has."""

HOST = "127.0.0.1"

REGION = "us-east-1"
"""Of the stores with the API of S3."""

_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "spoolEndpoint": "AWS_ENDPOINT_URL",
        "spoolRegion": "AWS_REGION",
        "spoolKeyId": "AWS_ACCESS_KEY_ID",
        "spoolSecret": "AWS_SECRET_ACCESS_KEY",
    },
    "gs": {"spoolEndpoint": "STORAGE_EMULATOR_HOST"},
    "az": {
        "spoolEndpoint": "AZURE_STORAGE_ENDPOINT",
        "spoolKeyId": "AZURE_STORAGE_ACCOUNT_NAME",
        "spoolSecret": "AZURE_STORAGE_ACCOUNT_KEY",
    },
}
_START_SECONDS = 60.0
_INSTALL_SECONDS = 1500.0
_REQUEST_SECONDS = 5.0
_LOOK_SECONDS = 0.05


class StoreServer(ServerProcess, ABC):
    """An object store as a child process; a context manager that ends it. It also ends when this process does.

    Args:
        port: on 127.0.0.1; 0 takes a free one.

    Raises:
        ServiceUnavailableError: it cannot be had, or did not start; says why.
    """

    name: ClassVar[str]
    """As ``./dev servers`` takes it."""
    version: ClassVar[str]
    """Of the store."""
    scheme: ClassVar[str]
    """Of the URLs of its spools."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(
            "tests.servers.object_stores",
            [self.name, "--exit-with-parent", "--port", str(port)],
            start_timeout=_START_SECONDS + _INSTALL_SECONDS,
        )

    def options(self, folder: str) -> dict[str, str]:
        """Return the options of a query whose spool is in this folder of the bucket."""
        return {"spoolLocation": self.location(folder), **self.access_options(self.endpoint)}

    def environment(self) -> dict[str, str]:
        """Return the variables that say the same as the options but the location; for commands that take no options."""
        return self.access_environment(self.endpoint)

    @classmethod
    def location(cls, folder: str) -> str:
        """Return the URL of a spool in this folder of the bucket."""
        return f"{cls.scheme}://{BUCKET}/{folder}"

    @classmethod
    @abstractmethod
    def unavailable(cls) -> str:
        """Install the store if that is needed; return why it cannot be had, or nothing."""

    @classmethod
    @abstractmethod
    def access_options(cls, endpoint: str) -> dict[str, str]:
        """Return the options by which a spool reaches the store at ``HOST:PORT``."""

    @classmethod
    def access_environment(cls, endpoint: str) -> dict[str, str]:
        """Return the variables that say the same as `access_options`."""
        return {_VARIABLES[cls.scheme][option]: value for option, value in cls.access_options(endpoint).items()}

    @classmethod
    @abstractmethod
    def serve(cls, port: int, stopping: threading.Event) -> AbstractContextManager[Callable[[], bool]]:
        """Run the store in this process, or as a child bound to it, until the end of the context; make the bucket.

        Args:
            port: to listen on.
            stopping: ends the wait for its start.

        Returns:
            A context whose value says whether the store still runs.
        """


def s3_access(endpoint: str, key_id: str, secret: str) -> dict[str, str]:
    """Return the options by which a spool reaches a store with the API of S3."""
    return {
        "spoolEndpoint": f"http://{endpoint}",
        "spoolRegion": REGION,
        "spoolKeyId": key_id,
        "spoolSecret": secret,
    }


def request(
    port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> int:
    """Send one request to a server on this machine; return the status of its response."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_REQUEST_SECONDS)
    try:
        connection.request(method, path, body, dict(headers or {}))
        return connection.getresponse().status
    finally:
        connection.close()


@contextmanager
def child_server(
    command: Sequence[str], port: int, stopping: threading.Event, environment: Mapping[str, str] | None = None
) -> Iterator[Callable[[], bool]]:
    """Run a server as a child bound to this process, and wait until it answers requests.

    Its output goes to standard error.

    Raises:
        ServiceUnavailableError: it ended, or did not answer in time.
    """
    os.environ.update(environment or {})
    process = start_bound_process(command, stdout=sys.stderr.fileno())
    try:
        _wait_until_answering(process, port, stopping)
        yield lambda: process.poll() is None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_answering(process: subprocess.Popen[bytes], port: int, stopping: threading.Event) -> None:
    give_up_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up_at and process.poll() is None and not stopping.wait(_LOOK_SECONDS):
        with contextlib.suppress(OSError, http.client.HTTPException):
            request(port, "GET", "/")
            return
    what = f"ended with status {process.returncode}" if process.poll() is not None else "does not answer"
    raise ServiceUnavailableError("TESTING_SERVER_NOT_STARTED", f"The object store {what}", f"{HOST}:{port}")
