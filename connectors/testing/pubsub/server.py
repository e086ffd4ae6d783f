"""A Pub/Sub server for tests, with fault knobs, its own clock and a log of events.

    with PubSubServer() as server:
        server.create_subscription("projects/p/subscriptions/s", "projects/p/topics/t")
        server.publish("projects/p/topics/t", [b"hello"])
        server.lose_acks(fraction=0.1)
        ...                                 # clients use server.endpoint, without TLS

``python -m connectors.testing pubsub --port N`` runs it as a program, and `PubSubControl` reaches its knobs there.
`start_server_process` does both.

Start Spark before the first server, or set ``GRPC_ENABLE_FORK_SUPPORT=0`` before gRPC is imported: in a process that
has used gRPC, some four of a hundred starts of a JVM die in gRPC's handlers of fork() (JAVA_GATEWAY_EXITED).

It speaks google.pubsub.v1 (Publisher and Subscriber) to real clients and keeps everything in memory. What it does not
have is refused with UNIMPLEMENTED, never taken and ignored: retry policies, push, schemas, and acks on a stream with
exactly-once delivery. It has message ordering, exactly-once delivery, filters, dead letters, seek and snapshots as the
service has them, with these limits: what a knob brings back after its ack keeps no order; a seek replays acked
messages only with ``retain_acked_messages`` or the retention of a topic, none published before the subscription
was created, and is over when it is answered; snapshots never expire. ``expiration_policy`` is stored, without effect.
"""

from __future__ import annotations

import gc
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import grpc

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.clock import ServerClock
from connectors.testing.process import ServerProcess, announce, server_parser, stop_event
from connectors.testing.pubsub.faults.commands import PubSubCommands
from connectors.testing.pubsub.faults.control import PubSubControl, control_handler
from connectors.testing.pubsub.faults.events import Event, EventKind
from connectors.testing.pubsub.faults.knobs import PubSubKnobs
from connectors.testing.pubsub.model.rules import StatusError
from connectors.testing.pubsub.runtime import PubSubRuntime
from connectors.testing.pubsub.service import service_handlers

__all__ = ["Event", "EventKind", "PubSubControl", "PubSubServer", "PubSubServerProcess", "start_server_process"]

_HOST = "127.0.0.1"
# Each stream and each Pull that waits holds a thread. One call too many is refused with RESOURCE_EXHAUSTED.
_MAX_CALLS = 256
_GRACE_SECONDS = 0.5
_JOIN_SECONDS = 2.0
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Clients may keep idle connections alive as often as they like.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)


class PubSubServer(PubSubKnobs):
    """The server in this process: a context manager; or `start` and `stop`, which may be called again.

    A server that was stopped keeps its topics, backlog and port; deliveries that were under way stay so until their
    deadlines.

    Args:
        port: on 127.0.0.1; 0 takes a free one.
        speed: server seconds per real second.
        seed: decides which messages a fraction strikes, and the order of ids; by default a new one each time.
        event_limit: how many events are kept; 0 keeps none, and counts on.
        keep_acked_messages: how many acked messages each subscription keeps for `redeliver`.
        tls: the server's side of TLS, which clients then have to use; None for plaintext.

    Attributes:
        authorizations: how each call by TLS authenticates, in order.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        speed: float = 1.0,
        seed: int | None = None,
        event_limit: int = 500_000,
        keep_acked_messages: int = 100_000,
        tls: grpc.ServerCredentials | None = None,
    ) -> None:
        self.authorizations: list[str] = []
        self._tls = tls
        self.seed = secrets.randbits(32) if seed is None else seed
        """Give it to a new server to have the same faults strike the same messages."""
        self._port = port
        self._runtime = PubSubRuntime(ServerClock(speed), self.seed, event_limit, keep_acked_messages)
        self._handlers, self._streaming = service_handlers(self._runtime)
        self._commands = PubSubCommands(self._runtime, self._streaming)
        self._handlers.append(control_handler(self._commands))
        self._executor: ThreadPoolExecutor | None = None
        self._server: grpc.Server | None = None

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

    def start(self) -> None:
        """Listen; raises `ServiceUnavailableError` when the port is taken. Does nothing while it listens."""
        if self._server is not None:
            return
        executor = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="pubsub-server")
        watch: list[grpc.ServerInterceptor[Any, Any]] = (
            [] if self._tls is None else [_Authorizations(self.authorizations)]
        )
        server = grpc.server(executor, self._handlers, watch, _OPTIONS, _MAX_CALLS)
        try:
            if self._tls is None:
                self._port = server.add_insecure_port(self.endpoint)
            else:
                self._port = server.add_secure_port(self.endpoint, self._tls)
        except RuntimeError as error:
            executor.shutdown()
            raise ServiceUnavailableError(
                "TESTING_SERVER_NOT_STARTED", str(error), self.endpoint, "Choose another port, or 0 for a free one."
            ) from None
        self._runtime.start()
        server.start()
        self._executor, self._server = executor, server

    def stop(self) -> None:
        """End all calls with UNAVAILABLE, or CANCELLED, and all threads; returns soon, whatever clients do."""
        server, executor = self._server, self._executor
        if server is None or executor is None:
            return
        self._server = self._executor = None
        with self._runtime.transaction():
            self._streaming.close_streams(StatusError(grpc.StatusCode.UNAVAILABLE, "The server is shutting down."))
        self._runtime.stop()
        # Calls end by themselves now; those whose client does not read are cancelled after the grace.
        server.stop(grace=_GRACE_SECONDS).wait()
        executor.shutdown(wait=True, cancel_futures=True)
        self._streaming.join(_JOIN_SECONDS)

    def _command(self, name: str, /, **arguments: object) -> Any:
        return self._commands.run(name, arguments)


class _Authorizations(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Records how calls authenticate."""

    def __init__(self, record: list[str]) -> None:
        self._record = record

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        self._record += [value for key, value in handler_call_details.invocation_metadata if key == "authorization"]
        return continuation(handler_call_details)


class PubSubServerProcess(PubSubControl):
    """A server in a process of its own, with the knobs to it; a context manager that ends it.

    It also ends when this process does, however that ends.
    """

    def __init__(self, arguments: list[str]) -> None:
        self.process = ServerProcess("connectors.testing.pubsub", ["--exit-with-parent", *arguments])
        super().__init__(self.process.endpoint)

    def close(self) -> None:
        """End the server and close the channel to it."""
        super().close()
        self.process.stop()


def start_server_process(
    port: int = 0,
    *,
    speed: float = 1.0,
    seed: int | None = None,
    event_limit: int = 500_000,
    keep_acked_messages: int = 100_000,
) -> PubSubServerProcess:
    """Start a server in a process of its own, and wait until it listens. The arguments are those of `PubSubServer`.

    Raises:
        ServiceUnavailableError: it did not start; says why.
    """
    arguments = ["--port", str(port), "--speed", str(speed)]
    arguments += ["--event-limit", str(event_limit), "--keep-acked-messages", str(keep_acked_messages)]
    if seed is not None:
        arguments += ["--seed", str(seed)]
    return PubSubServerProcess(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT; the seed goes to standard error, the endpoint to standard output."""
    parser = server_parser("pubsub", "A Pub/Sub server for tests, in memory, on 127.0.0.1.")
    parser.add_argument("--speed", type=float, default=1.0, help="server seconds per real second (default: 1)")
    parser.add_argument("--seed", type=int, help="for the fractions of faults (default: a new one each time)")
    parser.add_argument("--event-limit", type=int, default=500_000, help="events that are kept (default: 500000)")
    parser.add_argument(
        "--keep-acked-messages", type=int, default=100_000, help="acked messages kept to redeliver (default: 100000)"
    )
    options = parser.parse_args(arguments)
    # Messages wait in long lists and form no cycles: the default thresholds cost a third of the speed.
    gc.set_threshold(200_000, 50, 100)
    stopping = stop_event(with_parent=options.exit_with_parent)
    try:
        server = PubSubServer(
            options.port,
            speed=options.speed,
            seed=options.seed,
            event_limit=options.event_limit,
            keep_acked_messages=options.keep_acked_messages,
        )
        with server:
            sys.stderr.write(f"seed {server.seed}\n")
            sys.stderr.flush()
            announce(server.endpoint, {"endpoint": server.endpoint}, {"PUBSUB_EMULATOR_HOST": server.endpoint})
            stopping.wait()
    except (ServiceUnavailableError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
