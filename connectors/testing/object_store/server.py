"""An object store on loopback that speaks as much of S3 as a spool needs, and misbehaves when told to.

    with ObjectStoreServer() as server:
        server.lose_answers("PUT")          # the next put is done, and its answer never comes
        ...                                 # clients use server.endpoint, path style, any bucket

It honours ``If-None-Match: *`` and ``If-Match`` on puts, ranges on gets, and lists with prefix, delimiter and
continuation tokens. Everything is in memory and is gone with it. ``python -m connectors.testing object-store --port N``
runs it as a program, without its knobs.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.object_store.model import Answer, Bucket, Request, error
from connectors.testing.process import announce, aws_exports, server_parser, stop_event

__all__ = ["ObjectStoreServer"]

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.01


class ObjectStoreServer:
    """The server; a context manager. Buckets come into being when they are used, unless they are named.

    Args:
        port: on 127.0.0.1; 0 takes a free one.
        buckets: the only buckets there are; all others answer NoSuchBucket. None for any.
        access_key: the only access key that may do anything; None for any, and for none at all.

    Attributes:
        counts: requests done so far, by kind: PUT, GET, HEAD, LIST, DELETE.
        objects: the objects of all buckets: ``bucket/key`` to bytes. To be looked at, and damaged, by tests.
        times: when each of them was put, by the store's own clock.
        ahead: seconds by which that clock is ahead of this machine's; negative when it is behind.
        conditional: False makes it ignore the conditions of puts, as some stores do.
        page: keys a page of a list.
        interrupt: called before each request, without a lock held; None for nothing.
    """

    def __init__(self, port: int = 0, *, buckets: Sequence[str] | None = None, access_key: str | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.objects: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.ahead = 0.0
        self.conditional = True
        self.page = 1000
        self.interrupt: Callable[[Request], None] | None = None
        self._buckets = None if buckets is None else frozenset(buckets)
        self._access_key = access_key
        self._lock = threading.Lock()
        self._lost: dict[str, list[int]] = {}
        self._refused: list[tuple[str, int, int, str]] = []
        self._slow: dict[str, float] = {}
        try:
            self._server = _Server((_HOST, port), _handler(self))
        except OSError as failure:
            raise ServiceUnavailableError(
                "TESTING_SERVER_NOT_STARTED",
                str(failure.strerror),
                f"{_HOST}:{port}",
                "Choose another port, or 0 for a free one.",
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True)

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{_HOST}:{self._server.server_port}"

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{self.address}"

    # Knobs.

    def lose_answers(self, kind: str, *, after: int = 0, count: int = 1) -> None:
        """Do requests of a kind and close the connection without an answer.

        Args:
            kind: as in `counts`.
            after: how many requests of that kind are answered first.
            count: how many answers are lost then.
        """
        with self._lock:
            first = self.counts[kind] + after
            self._lost.setdefault(kind, []).extend(range(first, first + count))

    def refuse(self, kind: str, status: int, code: str, *, count: int = 1) -> None:
        """Answer the next requests of a kind with an error, and do nothing: 503 SlowDown, 409, 403 and so on."""
        with self._lock:
            self._refused.append((kind, count, status, code))

    def slow(self, kind: str, seconds: float) -> None:
        """From now on answer requests of a kind only after that many seconds."""
        with self._lock:
            self._slow[kind] = seconds

    def heal(self) -> None:
        """Take back all that the knobs have set."""
        with self._lock:
            self._lost.clear()
            self._refused.clear()
            self._slow.clear()

    # Requests.

    def handle(self, request: Request) -> Answer | None:
        """Do a request; None if its answer is to be lost."""
        if self.interrupt is not None:
            self.interrupt(request)
        with self._lock:
            delay = self._slow.get(request.kind, 0.0)
        if delay:
            time.sleep(delay)
        with self._lock:
            number = self.counts[request.kind]
            self.counts[request.kind] += 1
            refusal = self._refusal(request)
            if refusal is not None:
                return refusal
            now = time.time() + self.ahead
            bucket = Bucket(self.objects, self.times, now, request.bucket, self.page, conditional=self.conditional)
            answer = bucket.do(request)
            return None if number in self._lost.get(request.kind, ()) else answer

    def _refusal(self, request: Request) -> Answer | None:
        for index, (kind, count, status, code) in enumerate(self._refused):
            if kind == request.kind:
                self._refused[index : index + 1] = [(kind, count - 1, status, code)] if count > 1 else []
                return error(status, code)
        if self._access_key is not None and f"Credential={self._access_key}/" not in request.authorization:
            return error(403, "InvalidAccessKeyId")
        if self._buckets is not None and request.bucket not in self._buckets:
            return error(404, "NoSuchBucket")
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.connections: set[socket.socket] = set()

    def close_connections(self) -> None:
        """End the connections that clients keep open; their threads end with them."""
        for connection in list(self.connections):
            connection.close()


def _handler(server: ObjectStoreServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body go out in two writes; without this the second one waits for the client's delayed ack.
        disable_nagle_algorithm = True
        server: _Server

        def setup(self) -> None:
            super().setup()
            self.server.connections.add(self.connection)

        def finish(self) -> None:
            self.server.connections.discard(self.connection)
            super().finish()

        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            bucket, _, key = unquote(url.path).lstrip("/").partition("/")
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = server.handle(Request(self.command, bucket, key, url.query, headers, body))
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" not in answer.headers:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = do_any  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Print nothing."""

    return Handler


def main(arguments: list[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT; the endpoint goes to standard output."""
    parser = server_parser("object-store", "An S3 server for tests, in memory, on 127.0.0.1.")
    options = parser.parse_args(arguments)
    stopping = stop_event(with_parent=options.exit_with_parent)
    try:
        with ObjectStoreServer(options.port) as server:
            addresses = {"spoolEndpoint": server.endpoint, "spoolLocation": "s3://spools/FOLDER"}
            announce(server.address, addresses, aws_exports("AWS_ENDPOINT_URL", server.endpoint))
            stopping.wait()
    except ServiceUnavailableError as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return 0
