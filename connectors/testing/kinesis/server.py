"""A Kinesis server for tests, with fault knobs, its own clock and a list of the calls it got.

    with KinesisServer() as server:
        server.create_stream("orders", shards=2)
        server.put("orders", [("key", b"data")])
        server.throttle("GetRecords", times=3)
        ...                                 # clients use server.url as endpoint, with any credentials

``python -m connectors.testing kinesis --port N`` runs it as a program, and `KinesisControl` reaches its knobs there.
`start_server_process` does both.

It speaks the JSON protocol of Kinesis (version 2013-12-02) over HTTP/1.1 and HTTP/2 to boto3 and other clients, and
keeps everything in memory. Requests must carry credentials, which are noted and not checked. What it does not have is
refused with UnknownOperationException: encryption, tags, policies, monitoring; and so is the CBOR protocol.
"""

from __future__ import annotations

import gc
import ssl
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.clock import ServerClock
from connectors.testing.kinesis.faults.calls import Call
from connectors.testing.kinesis.faults.commands import KinesisCommands
from connectors.testing.kinesis.faults.control import KinesisControl, with_control
from connectors.testing.kinesis.faults.knobs import KinesisKnobs, OpenSubscription, StoredRecord
from connectors.testing.kinesis.runtime import KinesisRuntime
from connectors.testing.process import ServerProcess, announce, aws_exports, server_parser, stop_event

__all__ = [
    "Call",
    "KinesisControl",
    "KinesisServer",
    "KinesisServerProcess",
    "OpenSubscription",
    "StoredRecord",
    "start_server_process",
]

_HOST = "127.0.0.1"
_REGION = "us-east-1"
_CALL_LIMIT = 500_000


class KinesisServer(KinesisKnobs):
    """The server in this process: a context manager; or `start` and `stop`, which may be called again.

    A server that was stopped keeps its streams and port.

    Args:
        port: on 127.0.0.1; 0 takes a free one.
        speed: server seconds per real second.
        region: stands in ARNs.
        certificates: a folder with ``server.pem`` and ``server.key``: then there is a port with TLS too.
        call_limit: how many calls are kept for `calls`; 0 keeps none, and counts on.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        speed: float = 1.0,
        region: str = _REGION,
        certificates: Path | None = None,
        call_limit: int = _CALL_LIMIT,
    ) -> None:
        self._port = port
        self._tls_port = 0
        self._certificates = certificates
        self._runtime = KinesisRuntime(ServerClock(speed), region, call_limit)
        self._commands = KinesisCommands(self._runtime)
        self._started = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """``127.0.0.1:PORT``; the port is known once the server was started."""
        return f"{_HOST}:{self._port}"

    @property
    def url(self) -> str:
        """What clients take as the URL of the endpoint."""
        return f"http://{self.endpoint}"

    @property
    def tls_url(self) -> str:
        """The same with TLS, where HTTP/2 is chosen by ALPN as the service does; needs ``certificates``."""
        return f"https://{_HOST}:{self._tls_port}"

    def start(self) -> None:
        """Listen; raises `ServiceUnavailableError` when the port is taken. Does nothing while it listens."""
        if self._started:
            return
        handler = with_control(self._runtime.service.handle, self._commands)
        ports: list[tuple[int, ssl.SSLContext | None]] = [(self._port, None)]
        if self._certificates is not None:
            ports.append((self._tls_port, _tls_context(self._certificates)))
        try:
            self._port, self._tls_port = [*self._runtime.start(ports, handler), 0][:2]
        except OSError as error:
            raise ServiceUnavailableError(
                "TESTING_SERVER_NOT_STARTED", str(error), self.endpoint, "Choose another port, or 0 for a free one."
            ) from None
        self._started = True

    def stop(self) -> None:
        """Cut all connections and end the thread; returns soon, whatever clients do."""
        self._started = False
        self._runtime.stop()

    def _command(self, name: str, /, **arguments: object) -> Any:
        return self._commands.run(name, arguments)


def _tls_context(certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class KinesisServerProcess(KinesisControl):
    """A server in a process of its own, with the knobs to it; a context manager that ends it.

    It also ends when this process does, however that ends.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.process = ServerProcess("connectors.testing.kinesis", ["--exit-with-parent", *arguments])
        super().__init__(self.process.endpoint)

    def close(self) -> None:
        """End the server and close the connection to it."""
        super().close()
        self.process.stop()


def start_server_process(
    port: int = 0, *, speed: float = 1.0, region: str = _REGION, call_limit: int = _CALL_LIMIT
) -> KinesisServerProcess:
    """Start a server in a process of its own, and wait until it listens. The arguments are those of `KinesisServer`.

    Raises:
        ServiceUnavailableError: it did not start; says why.
    """
    arguments = ["--port", str(port), "--speed", str(speed), "--region", region, "--call-limit", str(call_limit)]
    return KinesisServerProcess(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT; the endpoint goes to standard output."""
    parser = server_parser("kinesis", "A Kinesis server for tests, in memory, on 127.0.0.1.")
    parser.add_argument("--speed", type=float, default=1.0, help="server seconds per real second (default: 1)")
    parser.add_argument("--region", default=_REGION, help=f"stands in ARNs (default: {_REGION})")
    parser.add_argument("--call-limit", type=int, default=_CALL_LIMIT, help=f"calls kept (default: {_CALL_LIMIT})")
    options = parser.parse_args(arguments)
    # Records wait in long lists and form no cycles: the default thresholds cost a part of the speed.
    gc.set_threshold(200_000, 50, 100)
    stopping = stop_event(with_parent=options.exit_with_parent)
    try:
        server = KinesisServer(options.port, speed=options.speed, region=options.region, call_limit=options.call_limit)
        with server:
            announce(
                server.endpoint,
                {"endpointUrl": server.url},
                aws_exports("AWS_ENDPOINT_URL_KINESIS", server.url, options.region),
            )
            stopping.wait()
    except (ServiceUnavailableError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
