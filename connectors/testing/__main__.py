"""Run a server for tests until SIGTERM or SIGINT: ``python -m connectors.testing NAME --port N``.

It prints ``listening on HOST:PORT``, then each address by its label as a comment, and what to export.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Final

from connectors.core.formats import extra_imports

__all__ = ["SERVERS", "main"]

SERVERS: Final = {
    "pubsub": ("connectors.testing.pubsub.server", "Pub/Sub, in memory, with faults on demand"),
    "kinesis": ("connectors.testing.kinesis.server", "Kinesis, in memory, with faults on demand"),
    "kafka-mock": ("connectors.testing.kafka.mock", "the mock cluster of librdkafka"),
    "registry": ("connectors.testing.schema_registry", "a schema registry with Confluent's interface, in memory"),
    "object-store": ("connectors.testing.object_store.server", "S3, in memory"),
}
"""By name: the module whose `main` runs it, and what it is."""
_EXTRAS: Final = {"kafka-mock": "kafka"}  # it is a part of the client


def _usage(program: str, servers: Mapping[str, tuple[str, str]]) -> str:
    lines = "\n".join(f"  {name:16} {what}" for name, (_, what) in servers.items())
    return (
        f"usage: python -m {program} NAME [--port N] [OPTIONS]\n\n"
        "Run a server for tests on 127.0.0.1, and print its addresses and what to export.\n"
        f"NAME --help shows the options of each.\n\n{lines}\n"
    )


def main(
    arguments: list[str] | None = None,
    servers: Mapping[str, tuple[str, str]] = SERVERS,
    program: str = "connectors.testing",
) -> int:
    """Run the one of these servers that the first argument names, with the others."""
    name, *others = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name in {"-h", "--help"}:
        sys.stdout.write(_usage(program, servers))
        return 0
    if name not in servers:
        sys.stderr.write(f"{_usage(program, servers)}\n{f'no server {name}' if name else 'which server?'}\n")
        return 2
    try:
        with extra_imports(_EXTRAS.get(name, "testing"), f"the server {name}"):
            module = importlib.import_module(servers[name][0])
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    status: int = module.main(others)
    return status


if __name__ == "__main__":
    sys.exit(main())
