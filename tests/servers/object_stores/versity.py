"""VersityGW, an S3 server over a folder, built from its Go module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from tests.servers.go_programs import GO_MODULES, go_program
from tests.servers.object_stores.base import BUCKET, HOST, REGION, StoreServer, child_server, s3_access

__all__ = ["VersityServer"]

_PROGRAM = "versitygw"
_KEY_ID = "key-of-the-gateway"
_SECRET = "secret-of-the-gateway"


class VersityServer(StoreServer):
    """VersityGW over a temporary folder; it checks signatures."""

    name: ClassVar[str] = "versitygw"
    version: ClassVar[str] = GO_MODULES[_PROGRAM].version
    scheme: ClassVar[str] = "s3"

    @classmethod
    def unavailable(cls) -> str:
        """Build it; return why it cannot be had."""
        return go_program(_PROGRAM).reason

    @classmethod
    def access_options(cls, endpoint: str) -> dict[str, str]:
        """Return the options by which a spool reaches it."""
        return s3_access(endpoint, _KEY_ID, _SECRET)

    @classmethod
    @contextmanager
    def serve(cls, port: int, stopping: threading.Event) -> Iterator[Callable[[], bool]]:
        """Run it; a bucket is a folder. Metadata go into a folder too, as not every disk has extended attributes."""
        command = [
            go_program(_PROGRAM).path,
            "--port",
            f"{HOST}:{port}",
            "--region",
            REGION,
            "--quiet",
            "--keep-alive",
        ]
        secrets = {"ROOT_ACCESS_KEY": _KEY_ID, "ROOT_SECRET_KEY": _SECRET}
        with TemporaryDirectory(prefix=f"{cls.name}-") as folder:
            buckets, metadata = Path(folder, "buckets"), Path(folder, "metadata")
            (buckets / BUCKET).mkdir(parents=True)
            metadata.mkdir()
            command += ["posix", "--sidecar", str(metadata), str(buckets)]
            with child_server(command, port, stopping, secrets) as alive:
                yield alive
