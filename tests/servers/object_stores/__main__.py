"""Runs one of the object stores until SIGTERM or SIGINT; ``./dev servers NAME`` calls it."""

from __future__ import annotations

import argparse
import sys

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.process import announce, server_parser, stop_event
from tests.servers.java import free_port
from tests.servers.object_stores import STORES
from tests.servers.object_stores.base import HOST

_LOOK_SECONDS = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Run a store; its endpoint, what to export and the location of a spool go to standard output."""
    name = (arguments or sys.argv[1:2] or [""])[0]
    known = name in STORES
    parser = server_parser(
        name if known else "STORE", "An object store for spools, on 127.0.0.1.", package="tests.servers"
    )
    parser.add_argument("name", choices=sorted(STORES), help="which one" if not known else argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    server = STORES[options.name]
    stopping = stop_event(with_parent=options.exit_with_parent)
    if reason := server.unavailable():
        sys.stderr.write(f"{reason}\n")
        return 1
    port = options.port or free_port()
    try:
        with server.serve(port, stopping) as alive:
            endpoint = f"{HOST}:{port}"
            addresses = {"spoolEndpoint": f"http://{endpoint}", "spoolLocation": server.location("FOLDER")}
            announce(endpoint, addresses, server.access_environment(endpoint))
            while not stopping.wait(_LOOK_SECONDS):
                if not alive():
                    sys.stderr.write(f"{server.name} has ended\n")
                    return 1
    except ServiceUnavailableError as failure:
        sys.stderr.write(f"{failure}\n")
        return 0 if stopping.is_set() else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
