"""Downloads and compiles what the tests of `./dev test` need, all at the same time, so that no test waits for it.

What cannot be had is named; the test that needs it then says so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.servers.kafka_broker import make_archive as make_kafka_archive
from tests.servers.maven import class_path
from tests.servers.node_packages import MANIFESTS, node_packages
from tests.servers.toxiproxy import find_toxiproxy
from tests.support.clients import NPM
from tests.support.quick_java import make_archive
from tests.support.quick_python import leave_out_zip

PARTS: dict[str, Callable[[], str]] = {
    "toxiproxy": lambda: find_toxiproxy().reason,
    "kafka-broker, and the archive of its classes": make_kafka_archive,
    "kafka-spark": lambda: class_path("kafka-spark").reason,
    "kinesis-local": lambda: node_packages("kinesis-local", MANIFESTS).reason,
    "azurite": lambda: node_packages("azurite", MANIFESTS).reason,
    "archive of Spark's classes": make_archive,
    "Spark's package for its workers": leave_out_zip,
    "pyright": lambda: node_packages("pyright", NPM).reason,
}


def prepare(part: str) -> str:
    """Return what there is to say of a part: how long it took, or why it cannot be had."""
    begin = time.monotonic()
    reason = PARTS[part]()
    return f"{part}: {reason}" if reason else f"{part}: ready after {time.monotonic() - begin:.0f} s"


def main() -> None:
    """Prepare all parts."""
    with ThreadPoolExecutor(len(PARTS)) as together:
        for line in together.map(prepare, PARTS):
            sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    main()
