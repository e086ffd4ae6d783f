"""Toxiproxy, a TCP proxy that makes a network bad when it is told to, in a process of its own.

    if reason := find_toxiproxy().reason:
        ...                                   # one sentence: why it cannot be had
    with Toxiproxy(seed=1) as toxiproxy:
        proxy = toxiproxy.proxy("kinesis", server.endpoint)
        ...                                   # clients use proxy.endpoint
        proxy.add(Toxic("latency", {"latency": 500}))
        proxy.heal()
        proxy.disable()                       # closes its connections and refuses new ones

``python -m tests.servers toxiproxy`` runs it as a program; its own interface then listens on the endpoint
that it prints. It is built from its Go module, and ends when its parent does, however that ends.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.process import ServerProcess, announce, server_parser, stop_event
from tests.servers.go_programs import GO_MODULES, GoProgram, go_program
from tests.servers.java import free_port
from tests.servers.object_stores.base import HOST, child_server

__all__ = ["Proxy", "Toxic", "Toxiproxy", "find_toxiproxy"]

_PROGRAM: Final = "toxiproxy"
_BUILD_SECONDS: Final = 1500.0
_CALL_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2
_NO_CONTENT: Final = 204


def find_toxiproxy() -> GoProgram:
    """Build the program if that is needed; the result says why it cannot be had."""
    return go_program(_PROGRAM)


@dataclass(frozen=True, slots=True)
class Toxic:
    """One thing that is wrong with connections.

    Attributes:
        kind: such as ``latency``, ``bandwidth``, ``timeout`` or ``reset_peer``; toxiproxy lists them as toxics.
        attributes: of this kind, such as ``{"latency": 500}``.
        stream: the direction; ``downstream`` is from the server to the client.
        toxicity: the share of connections that it strikes, drawn for each connection and toxic.
    """

    kind: str
    attributes: Mapping[str, int] = field(default_factory=dict)
    stream: Literal["upstream", "downstream"] = "downstream"
    toxicity: float = 1.0

    @property
    def name(self) -> str:
        """What a proxy knows it by: it has one of each kind and direction."""
        return f"{self.kind}-{self.stream}"


class Proxy:
    """One proxy: a port of its own that leads to one server.

    Args:
        toxiproxy: where it runs.
        name: unique there.
        upstream: ``HOST:PORT`` of the server; it may be told later.
    """

    def __init__(self, toxiproxy: Toxiproxy, name: str, upstream: str) -> None:
        self._toxiproxy, self._path = toxiproxy, f"/proxies/{name}"
        self.port = free_port()
        self.endpoint = f"{HOST}:{self.port}"
        """``127.0.0.1:PORT``, for clients."""
        wanted = {"name": name, "listen": self.endpoint, "upstream": upstream, "enabled": True}
        toxiproxy.call("POST", "/proxies", wanted)

    def lead_to(self, upstream: str) -> None:
        """Lead to another server from now on; closes all connections."""
        self._toxiproxy.call("POST", self._path, {"upstream": upstream})

    def add(self, toxic: Toxic) -> None:
        """Let this be wrong with connections, with those that are open too."""
        wanted = {
            "name": toxic.name,
            "type": toxic.kind,
            "stream": toxic.stream,
            "toxicity": toxic.toxicity,
            "attributes": dict(toxic.attributes),
        }
        self._toxiproxy.call("POST", f"{self._path}/toxics", wanted)

    def remove(self, toxic: Toxic) -> None:
        """Let it be wrong no more."""
        self._toxiproxy.call("DELETE", f"{self._path}/toxics/{toxic.name}")

    def disable(self) -> None:
        """Close all connections and refuse new ones."""
        self._toxiproxy.call("POST", self._path, {"enabled": False})

    def heal(self) -> None:
        """Enable it, and remove what is wrong."""
        for toxic in self._toxiproxy.call("GET", f"{self._path}/toxics"):
            self._toxiproxy.call("DELETE", f"{self._path}/toxics/{toxic['name']}")
        self._toxiproxy.call("POST", self._path, {"enabled": True})


class Toxiproxy:
    """Toxiproxy as a child process; a context manager that ends it.

    Args:
        seed: decides which connections a share strikes.

    Raises:
        ServiceUnavailableError: it cannot be had, or did not start; says why.
    """

    version: Final = GO_MODULES[_PROGRAM].version

    def __init__(self, seed: int = 0) -> None:
        arguments = ["--exit-with-parent", "--seed", str(seed)]
        self._process = ServerProcess(__name__, arguments, start_timeout=_BUILD_SECONDS)
        self.endpoint = self._process.endpoint
        """Of its own interface, not of a proxy."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; does nothing the second time."""
        self._process.stop()

    def proxy(self, name: str, upstream: str) -> Proxy:
        """Add a proxy on a free port of 127.0.0.1 that leads to ``HOST:PORT``."""
        return Proxy(self, name, upstream)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Call its interface; returns what it answered.

        Raises:
            ServiceUnavailableError: it refused.
        """
        connection = http.client.HTTPConnection(self.endpoint, timeout=_CALL_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            text = content.decode(errors="replace").strip()
            raise ServiceUnavailableError("TESTING_SERVER_REFUSED", f"toxiproxy refused {method} {path}: {text}")
        return None if response.status == _NO_CONTENT else json.loads(content)


def main(arguments: list[str] | None = None) -> int:
    """Run toxiproxy until SIGTERM or SIGINT; the endpoint of its interface goes to standard output."""
    parser = server_parser(
        "toxiproxy",
        "Toxiproxy, on 127.0.0.1.",
        "of its interface; 0 takes a free one (default: 0)",
        package="tests.servers",
    )
    parser.add_argument("--seed", type=int, default=0, help="decides which connections a share strikes (default: 0)")
    options = parser.parse_args(arguments)
    found = find_toxiproxy()
    if found.reason:
        sys.stderr.write(f"{found.reason}\n")
        return 1
    stopping = stop_event(with_parent=options.exit_with_parent)
    port = options.port or free_port()
    command = [found.path, "-host", HOST, "-port", str(port), "-seed", str(options.seed)]
    try:
        with child_server(command, port, stopping, {**os.environ, "LOG_LEVEL": "error"}) as alive:
            announce(f"{HOST}:{port}", {"its own interface": f"http://{HOST}:{port}"})
            while not stopping.wait(_LOOK_SECONDS):
                if not alive():
                    sys.stderr.write("toxiproxy has ended\n")
                    return 1
    except ServiceUnavailableError as failure:
        sys.stderr.write(f"{failure}\n")
        return 0 if stopping.is_set() else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
