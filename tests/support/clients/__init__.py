"""Clients that others wrote, as programs: lines with tabs between their fields go in, such lines come out.

Bytes are in base64, and ``-`` is null. What cannot be had here is a `ServiceUnavailableError` that says why.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from connectors.core.errors import ServiceUnavailableError
from connectors.testing.servers.java import find_java
from connectors.testing.servers.maven import ClassPath, class_path

__all__ = ["as_bytes", "as_field", "find_java_client", "run_java_client"]

_FOLDER = Path(__file__).parent
_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_SECONDS = 300


def as_field(data: bytes | None) -> str:
    """Return bytes as a field."""
    return "-" if data is None else base64.b64encode(data).decode()


def as_bytes(field: str) -> bytes | None:
    """Return the bytes of a field."""
    return None if field == "-" else base64.b64decode(field)


def find_java_client(pom: str) -> ClassPath:
    """Look for a Java that compiles, and for the jars of a pom through Maven."""
    java = find_java(os.environ)
    if java is None or not java.resolve().with_name("javac").is_file():
        return ClassPath(reason="clients in Java need a JDK: Java without a compiler does not do")
    return class_path(pom)


def run_java_client(pom: str, name: str, arguments: Sequence[str], lines: Iterable[Sequence[str]]) -> list[list[str]]:
    """Compile and run ``NAME.java`` of this folder with the jars of a pom.

    Args:
        pom: one of those that `class_path` knows.
        name: of the program.
        arguments: its command line.
        lines: the fields of its input.

    Returns:
        The fields of its output, line by line.
    """
    found = find_java_client(pom)
    if found.reason:
        raise ServiceUnavailableError("TESTING_SERVER_NOT_STARTED", found.reason, name)
    java = str(find_java(os.environ))
    return _run([java, *_JVM, "-cp", found.path, str(_FOLDER / f"{name}.java"), *arguments], lines)


def _run(command: Sequence[str], lines: Iterable[Sequence[str]]) -> list[list[str]]:
    done = subprocess.run(
        command,
        input="".join("\t".join(each) + "\n" for each in lines),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command[-3:]} ended with {done.returncode}: {done.stderr[-3000:]}"
    return [line.split("\t") for line in done.stdout.splitlines()]
