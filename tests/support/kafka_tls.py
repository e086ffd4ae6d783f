"""A listener with TLS in front of a mock cluster of Kafka, which refuses its clients while a test wants that."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from connectors.kafka.options.client import ClientSettings
from connectors.testing.kafka.mock import MockKafka

_HOST = b"127.0.0.1"


class TlsKafka:
    """The mock cluster behind TLS; a context manager. A refused client is one that shows no certificate.

    Attributes:
        refuses: whether a client needs a certificate.
        delay: seconds before each response.
        accepted: connections so far.
        refused: handshakes that failed so far.
    """

    def __init__(self, mock: MockKafka, certificates: Path) -> None:
        self.refuses, self.delay, self.accepted, self.refused = False, 0.0, 0, 0
        self._certificates = certificates
        self._mock_port = int(mock.endpoint.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def settings(self, **more: str) -> ClientSettings:
        """Return the settings of a client that shows no certificate."""
        authority = str(self._certificates / "ca.pem")
        plain = {"bootstrap.servers": f"127.0.0.1:{self._port}", "security.protocol": "SSL"}
        plain |= {"ssl.ca.location": authority} | {name.replace("__", "."): text for name, text in more.items()}
        return ClientSettings(tuple(plain.items()))

    def refuse(self) -> None:
        """Close all connections, and refuse new ones."""
        with self._lock:
            self.refuses = True
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # there a client is refused within the handshake
        context.load_cert_chain(self._certificates / "server.pem", self._certificates / "server.key")
        context.load_verify_locations(self._certificates / "ca.pem")
        certified = self.refuses
        context.verify_mode = ssl.CERT_REQUIRED if certified else ssl.CERT_NONE
        try:
            secure = context.wrap_socket(client, server_side=True)
        except OSError:
            self.refused += 1
            client.close()
            return
        with self._lock:
            accepted = certified or not self.refuses  # which may have begun during the handshake
            if accepted:
                self.accepted += 1
                self._open.add(secure)
            else:
                self.refused += 1
        if not accepted:
            secure.close()
            return
        with secure, socket.create_connection(("127.0.0.1", self._mock_port)) as broker:
            answering = threading.Thread(target=self._answer, args=(broker, secure), daemon=True)
            answering.start()
            with contextlib.suppress(OSError):
                while data := secure.recv(1 << 16):
                    broker.sendall(data)
            with self._lock:
                self._open.discard(secure)
            with contextlib.suppress(OSError):
                broker.shutdown(socket.SHUT_RDWR)
            answering.join(10)

    def _answer(self, broker: socket.socket, client: Any) -> None:
        """Pass on whole responses, in which this listener stands for the mock's."""
        ports = [_HOST + port.to_bytes(4, "big") for port in (self._mock_port, self._port)]
        with contextlib.suppress(OSError), broker.makefile("rb") as responses:
            while head := responses.read(4):
                body = responses.read(int.from_bytes(head, "big"))
                time.sleep(self.delay)
                client.sendall(head + body.replace(*ports))
