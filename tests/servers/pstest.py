"""pstest, the server for tests in Google's Go module of Pub/Sub, in a process of its own.

    if reason := find_pstest().reason:
        ...                                   # one sentence: why it cannot be had
    with PsTest() as server:
        ...                                   # clients use server.endpoint, without TLS

``python -m tests.servers pstest --port N`` runs it as a program. It is built from the module of our client in Go
(tests/support/clients/pubsub), and ends when its parent does, however that ends.

It streams, keeps ack deadlines and delivers the messages of an ordering key one by one. It confirms no acks, so a
subscription with exactly-once delivery is like any other. It has no snapshots, and drops what was not delivered
within ten minutes.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.process import ServerProcess, server_parser
from tests.servers.go_programs import GoProgram
from tests.support.clients import go_client

__all__ = ["PsTest", "find_pstest"]

_BUILD_SECONDS: Final = 1500.0


def find_pstest() -> GoProgram:
    """Build the program if that is needed; the result says why it cannot be had."""
    try:
        return GoProgram(str(go_client("pubsub")))
    except ServiceUnavailableError as failure:
        return GoProgram(reason=str(failure))


class PsTest(ServerProcess):
    """pstest as a child process; a context manager that ends it.

    Raises:
        ServiceUnavailableError: it cannot be had, or did not start; says why.
    """

    def __init__(self) -> None:
        super().__init__(__name__, ["--exit-with-parent"], start_timeout=_BUILD_SECONDS)


def main(arguments: list[str] | None = None) -> int:
    """Become pstest, which says where it listens on standard output."""
    parser = server_parser("pstest", "Google's Pub/Sub server for tests in Go, on 127.0.0.1.", package="tests.servers")
    options = parser.parse_args(arguments)
    found = find_pstest()
    if found.reason:
        sys.stderr.write(f"{found.reason}\n")
        return 1
    bound = ["exit-with-parent"] if options.exit_with_parent else []
    return os.execv(found.path, [found.path, "serve", str(options.port), *bound])


if __name__ == "__main__":
    sys.exit(main())
