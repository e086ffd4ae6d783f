"""Enhanced fan-out over a connection that dies without a word, as when a load balancer has forgotten it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from connectors.testing.kinesis import KinesisServer
from tests.support.kinesis_rig import HASTY_SOURCE, PATIENCE, KinesisRig

HTTP2 = b"PRI *"


class Forgetful:
    """Hands bytes on, and forgets connections of HTTP/2 when told: what comes on them is swallowed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._forgotten: set[socket.socket] = set()
        self.streaming: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> None:
        """Forget the connections of HTTP/2; the service is told that they are over."""
        self._forgotten.update(self.streaming)
        for server in self.streaming:
            server.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._hand_on, args=(client,), daemon=True).start()

    def _hand_on(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target)
        with client, server, contextlib.suppress(OSError):
            first = client.recv(1 << 16)
            if first.startswith(HTTP2):
                self.streaming.append(server)
            server.sendall(first)
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if server in self._forgotten:
                    while client.recv(1 << 16):
                        pass
                    return
                for one in ready:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    (server if one is client else client).sendall(data)


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer() as running:
        running.set_takeover(0)
        yield running


def test_a_silent_connection_is_given_up_and_the_subscription_gets_another_one(
    server: KinesisServer, tmp_path: Path
) -> None:
    proxy = Forgetful(server.url)
    rig = KinesisRig(server, tmp_path)
    values = rig.put(2)
    options = {"consumerMode": "efo", "consumerName": "test", "endpointUrl": proxy.url}
    with rig.query(source=HASTY_SOURCE, initialPosition="trim_horizon", **options) as query:
        rig.drain(query, values)
        query.run_until(lambda _: len(server.subscriptions(rig.stream)) == 1, PATIENCE)
        proxy.forget()
        query.run_until(lambda _: len(proxy.streaming) >= 2 and len(server.subscriptions(rig.stream)) == 1, PATIENCE)
        values += rig.put(2)
        rig.drain(query, values)
    proxy.close()
