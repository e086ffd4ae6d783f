"""Toxiproxy does to connections what it is told, and stops when it is healed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.servers.toxiproxy import Proxy, Toxic, Toxiproxy, find_toxiproxy

PATIENCE = 30.0


@pytest.fixture(scope="module")
def toxiproxy() -> Iterator[Toxiproxy]:
    if reason := find_toxiproxy().reason:
        pytest.skip(reason)
    with Toxiproxy(seed=1) as running:
        yield running


@pytest.fixture
def proxy(toxiproxy: Toxiproxy) -> Iterator[Proxy]:
    """A proxy to a server that sends back what comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo(connection: socket.socket) -> None:
            with connection, contextlib.suppress(ConnectionError):
                while data := connection.recv(100):
                    connection.sendall(data)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        port = server.getsockname()[1]
        yield toxiproxy.proxy(f"echo-{port}", f"127.0.0.1:{port}")
        server.shutdown(socket.SHUT_RDWR)


def connect(proxy: Proxy, patience: float = PATIENCE) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), patience)


def test_a_silent_connection_stays_open_and_a_healed_proxy_serves_again(proxy: Proxy) -> None:
    silent = Toxic("timeout", {"timeout": 0})
    proxy.add(silent)
    with connect(proxy, 0.5) as client:
        client.sendall(b"lost")
        with pytest.raises(TimeoutError):
            client.recv(10)
    proxy.heal()
    with connect(proxy) as client:
        client.sendall(b"here")
        assert client.recv(10) == b"here"


def test_a_disabled_proxy_cuts_and_refuses_until_it_is_healed(proxy: Proxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"open")
        assert client.recv(10) == b"open"
        proxy.disable()
        assert client.recv(10) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
    proxy.heal()
    connect(proxy).close()
