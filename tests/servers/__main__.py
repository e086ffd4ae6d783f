"""Run a server for tests until SIGTERM or SIGINT: ``python -m tests.servers NAME --port N``, or ``./dev servers NAME``.

It prints what `connectors.testing` does, whose servers it runs too.
"""

from __future__ import annotations

import sys
from typing import Final

from connectors.testing import __main__ as shipped

__all__ = ["SERVERS", "main"]

_STORES: Final = "tests.servers.object_stores.__main__"
SERVERS: Final = {
    **shipped.SERVERS,
    "pubsub-emulator": ("tests.servers.pubsub_emulator", "the official emulator of Pub/Sub, if it is installed"),
    "pstest": ("tests.servers.pstest", "Google's Pub/Sub server for tests in Go, from its Go module"),
    "kinesis-local": ("tests.servers.kinesis_local", "kinesis-mock, from npm"),
    "kafka": ("tests.servers.kafka_broker", "a real Kafka broker, from Maven"),
    "azurite": (_STORES, "Azure Blob Storage, from npm"),
    "fake-gcs": (_STORES, "Google Cloud Storage, from its Go module"),
    "moto": (_STORES, "S3, from PyPI"),
    "versitygw": (_STORES, "S3, from its Go module"),
    "toxiproxy": ("tests.servers.toxiproxy", "a TCP proxy that makes a network bad, from its Go module"),
}
"""By name: the module whose `main` runs it, and what it is."""


def main(arguments: list[str] | None = None) -> int:
    """Run the server that the first argument names, with the others."""
    given = sys.argv[1:] if arguments is None else arguments
    of_a_store = given[:1] if SERVERS.get("".join(given[:1]), ("",))[0] == _STORES else []
    return shipped.main([*of_a_store, *given], SERVERS, "tests.servers")


if __name__ == "__main__":
    sys.exit(main())
