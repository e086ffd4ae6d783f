"""Object stores of others for a spool, each in a process of its own on 127.0.0.1, with a bucket ``spools``.

    reason = AzuriteServer.unavailable()
    if reason:
        ...                                   # one sentence: why it cannot be had
    with AzuriteServer() as store:
        stream.options(**store.options("orders"))      # spoolLocation, spoolEndpoint, credentials

``python -m tests.servers azurite`` runs one as a program and prints what to export; likewise ``fake-gcs``,
``versitygw`` and ``moto``. The first start of each installs it: Azurite through npm, the two servers in Go through its
module proxy; moto is installed with the tools of this repository. All of them forget what they hold when they end.
"""

from __future__ import annotations

from tests.servers.object_stores.azurite import AzuriteServer
from tests.servers.object_stores.base import StoreServer
from tests.servers.object_stores.fake_gcs import FakeGcsServer
from tests.servers.object_stores.moto import MotoServer
from tests.servers.object_stores.versity import VersityServer

__all__ = ["AzuriteServer", "FakeGcsServer", "MotoServer", "StoreServer", "VersityServer"]

STORES: dict[str, type[StoreServer]] = {
    server.name: server for server in (AzuriteServer, FakeGcsServer, VersityServer, MotoServer)
}
"""By the name that ``./dev servers`` takes."""
