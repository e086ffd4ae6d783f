"""Azurite, Microsoft's emulator of Azure Blob Storage, through npm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import ClassVar

from tests.servers.node_packages import MANIFESTS, node_packages
from tests.servers.object_stores.base import BUCKET, StoreServer, child_server, request

__all__ = ["AzuriteServer"]

_PACKAGES = "azurite"
_MANIFEST = json.loads((MANIFESTS / _PACKAGES / "package.json").read_text())
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Microsoft's documentation of Azurite names both; every Azurite has them, and no account of the cloud."""
_API_VERSION = "2021-08-06"


class AzuriteServer(StoreServer):
    """Azurite, in memory. Its URLs have the account in the path, so ``spoolEndpoint`` has one too."""

    name: ClassVar[str] = "azurite"
    version: ClassVar[str] = _MANIFEST["dependencies"]["azurite"]
    scheme: ClassVar[str] = "az"

    @classmethod
    def unavailable(cls) -> str:
        """Install it through npm; return why it cannot be had."""
        return node_packages(_PACKAGES).reason

    @classmethod
    def access_options(cls, endpoint: str) -> dict[str, str]:
        """Return the options by which a spool reaches it."""
        return {"spoolEndpoint": f"http://{endpoint}/{_ACCOUNT}", "spoolKeyId": _ACCOUNT, "spoolSecret": _KEY}

    @classmethod
    @contextmanager
    def serve(cls, port: int, stopping: threading.Event) -> Iterator[Callable[[], bool]]:
        """Run it under Node.js. It refuses versions of the API newer than itself, unless told not to look."""
        found = node_packages(_PACKAGES)
        program = found.modules / "azurite" / "dist" / "src" / "blob" / "main.js"
        flags = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        with child_server([found.node, str(program), *flags, "--blobPort", str(port)], port, stopping) as alive:
            _make_container(port)
            yield alive


def _make_container(port: int) -> None:
    """Create the container, by a request with the account's key."""
    headers = {"x-ms-date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "x-ms-version": _API_VERSION}
    named = "\n".join(f"{name}:{value}" for name, value in headers.items())
    text = "PUT" + "\n" * 12 + f"{named}\n/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{signature}"
    request(port, "PUT", f"/{_ACCOUNT}/{BUCKET}?restype=container", headers=headers)
