"""fake-gcs-server, an emulator of Google Cloud Storage, built from its Go module, behind a front of our own.

A spool speaks the XML API of GCS, since that is what obstore does; fake-gcs-server has its JSON API in full, of the
other one only reads. The front (`tests.servers.object_stores.gcs_xml`) hands each request on as one of the
JSON API; whether a put fulfils its condition is decided by fake-gcs-server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from tests.servers.go_programs import GO_MODULES, go_program
from tests.servers.java import free_port
from tests.servers.object_stores.base import BUCKET, HOST, StoreServer, child_server, request
from tests.servers.object_stores.gcs_xml import serve_xml

__all__ = ["FakeGcsServer"]

_PROGRAM = "fake-gcs-server"


class FakeGcsServer(StoreServer):
    """fake-gcs-server, in memory, with a front for the XML API."""

    name: ClassVar[str] = "fake-gcs"
    version: ClassVar[str] = GO_MODULES[_PROGRAM].version
    scheme: ClassVar[str] = "gs"

    @classmethod
    def unavailable(cls) -> str:
        """Build it; return why it cannot be had."""
        return go_program(_PROGRAM).reason

    @classmethod
    def access_options(cls, endpoint: str) -> dict[str, str]:
        """Return the options by which a spool reaches it; it asks for no credentials."""
        return {"spoolEndpoint": f"http://{endpoint}"}

    @classmethod
    @contextmanager
    def serve(cls, port: int, stopping: threading.Event) -> Iterator[Callable[[], bool]]:
        """Run it, and the front in threads of this process."""
        behind = free_port()
        command = [go_program(_PROGRAM).path, "-backend", "memory", "-scheme", "http", "-log-level", "error"]
        command += ["-host", HOST, "-port", str(behind)]
        with child_server(command, behind, stopping) as alive:
            bucket = json.dumps({"name": BUCKET}).encode()
            request(behind, "POST", "/storage/v1/b?project=spools", bucket, {"Content-Type": "application/json"})
            with serve_xml(port, behind):
                yield alive
