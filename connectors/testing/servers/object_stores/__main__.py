"""Runs one of the object stores until SIGTERM or SIGINT; ``./dev servers NAME`` calls it."""

from __future__ import annotations

import argparse
import shlex
import sys

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.servers.java import free_port
from connectors.testing.servers.object_stores import STORES
from connectors.testing.servers.object_stores.base import HOST
from connectors.testing.servers.process import announce, stop_event

_LOOK_SECONDS = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Run a store; its endpoint, what to export and the location of a spool go to standard output."""
    parser = argparse.ArgumentParser(
        prog="python -m connectors.testing.servers.object_stores",
        description="An object store for spools, on 127.0.0.1.",
    )
    parser.add_argument("name", choices=sorted(STORES), help="which one")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port (default: 0)")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when standard input ends")
    options = parser.parse_args(arguments)
    server = STORES[options.name]
    stopping = stop_event(with_parent=options.exit_with_parent)
    if reason := server.unavailable():
        sys.stderr.write(f"{reason}\n")
        return 1
    port = options.port or free_port()
    try:
        with server.serve(port, stopping) as alive:
            announce(f"{HOST}:{port}")
            for variable, value in server.access_environment(f"{HOST}:{port}").items():
                sys.stdout.write(f"export {variable}={shlex.quote(value)}\n")
            sys.stdout.write(f"# spoolLocation={server.location('FOLDER')}\n")
            sys.stdout.flush()
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
