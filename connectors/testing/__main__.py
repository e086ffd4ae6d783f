"""Run a server for tests until SIGTERM or SIGINT: ``python -m connectors.testing NAME --port N``.

It prints ``listening on HOST:PORT``, then each address by its label as a comment, and what to export.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

_SERVERS: Final = {
    "pubsub": ("pubsub.server", "Pub/Sub, in memory, with faults on demand"),
    "pubsub-emulator": ("servers.pubsub_emulator", "the official emulator of Pub/Sub, if it is installed"),
    "kinesis": ("kinesis.server", "Kinesis, in memory, with faults on demand"),
    "kinesis-local": ("servers.kinesis_local", "kinesis-mock, from npm"),
    "kafka": ("kafka.broker", "a real Kafka broker, from Maven"),
    "kafka-mock": ("kafka.mock", "the mock cluster of librdkafka"),
    "registry": ("schema_registry", "a schema registry with Confluent's interface, in memory"),
    "object-store": ("object_store.server", "S3, in memory"),
    "azurite": ("servers.object_stores.__main__", "Azure Blob Storage, from npm"),
    "fake-gcs": ("servers.object_stores.__main__", "Google Cloud Storage, from its Go module"),
    "moto": ("servers.object_stores.__main__", "S3, from PyPI"),
    "versitygw": ("servers.object_stores.__main__", "S3, from its Go module"),
    "toxiproxy": ("servers.toxiproxy", "a TCP proxy that makes a network bad, from its Go module"),
}
"""By name: the module below ``connectors.testing`` whose `main` runs it, and what it is."""


def _usage() -> str:
    lines = [f"  {name:16} {what}" for name, (_, what) in _SERVERS.items()]
    servers = "\n".join(lines)
    return (
        "usage: python -m connectors.testing NAME [--port N] [OPTIONS]\n\n"
        "Run a server for tests on 127.0.0.1, and print its addresses and what to export.\n"
        f"NAME --help shows the options of each.\n\n{servers}\n"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the server that the first argument names, with the others."""
    name, *others = (sys.argv[1:] if arguments is None else arguments) or [""]
    if name in {"-h", "--help"}:
        sys.stdout.write(_usage())
        return 0
    if name not in _SERVERS:
        sys.stderr.write(f"{_usage()}\n{f'no server {name}' if name else 'which server?'}\n")
        return 2
    module = _SERVERS[name][0]
    if module == "servers.object_stores.__main__":
        others = [name, *others]
    status: int = importlib.import_module(f"connectors.testing.{module}").main(others)
    return status


if __name__ == "__main__":
    sys.exit(main())
