"""moto's imitation of S3, as a server."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar

from tests.servers.object_stores.base import BUCKET, HOST, StoreServer, request, s3_access

__all__ = ["MotoServer"]

_KEY = "testing"
_SIGNED = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""moto finds the service in it, and checks no signature."""


def _version() -> str:
    try:
        return version("moto")
    except PackageNotFoundError:
        return ""


class MotoServer(StoreServer):
    """moto's server, in memory, one request at a time: between a condition and its put, moto holds no lock."""

    name: ClassVar[str] = "moto"
    version: ClassVar[str] = _version()
    scheme: ClassVar[str] = "s3"

    @classmethod
    def unavailable(cls) -> str:
        """Return which package is missing; it is installed with the tools of the repository, not with an extra."""
        missing = [name for name in ("moto", "flask_cors") if importlib.util.find_spec(name) is None]
        return f"{' and '.join(missing)} not installed: pip install moto flask flask-cors" if missing else ""

    @classmethod
    def access_options(cls, endpoint: str) -> dict[str, str]:
        """Return the options by which a spool reaches it."""
        return s3_access(endpoint, _KEY, _KEY)

    @classmethod
    @contextmanager
    def serve(cls, port: int, stopping: threading.Event) -> Iterator[Callable[[], bool]]:  # noqa: ARG003
        """Run it in a thread of this process."""
        from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - a tool of the repository
            DomainDispatcherApplication,
            create_backend_app,
        )
        from werkzeug.serving import make_server  # noqa: PLC0415 - comes with moto's server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it tells of every request
        server = make_server(HOST, port, DomainDispatcherApplication(create_backend_app), threaded=False)
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        request(port, "PUT", f"/{BUCKET}", headers={"Authorization": _SIGNED})
        try:
            yield serving.is_alive
        finally:
            server.shutdown()
            serving.join()
            server.server_close()
