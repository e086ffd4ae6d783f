"""Clients that others wrote, as programs: lines with tabs between their fields go in, such lines come out.

Bytes are in base64, and ``-`` is null. What cannot be had here is a `ServiceUnavailableError` that says why.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from connectors.core.errors import ServiceUnavailableError
from tests.servers.java import find_java
from tests.servers.maven import ClassPath, class_path

__all__ = [
    "NPM",
    "as_bytes",
    "as_field",
    "as_text",
    "client_version",
    "client_versions",
    "find_java_client",
    "go_client",
    "pubsub_go_version",
    "run_go_client",
    "run_java_client",
]

_FOLDER = Path(__file__).parent
NPM = _FOLDER.parent / "npm"
"""Sets of packages through npm that only tests need."""
_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_SECONDS = 300
_BUILD_SECONDS = 1200
_GO = ("go", "/usr/local/go/bin/go")


def as_field(data: bytes | None) -> str:
    """Return bytes as a field."""
    return "-" if data is None else base64.b64encode(data).decode()


def as_bytes(field: str) -> bytes | None:
    """Return the bytes of a field."""
    return None if field == "-" else base64.b64decode(field)


def as_text(field: str) -> str:
    """Return the text of a field, which is not null."""
    return base64.b64decode(field).decode()


def client_versions() -> dict[str, str]:
    """Return the versions of the clients, as the poms and the Go module pin them."""
    jars = {
        "kafka-clients": "kafka-broker",
        "amazon-kinesis-producer": "kinesis-producer",
        "amazon-kinesis-client": "kinesis-consumer",
    }
    found = {name: client_version(pom, name) for name, pom in jars.items()}
    return {**found, "cloud.google.com/go/pubsub/v2": pubsub_go_version()}


def pubsub_go_version() -> str:
    """Return the version of Google's Go module of Pub/Sub: its client and its pstest."""
    pinned = re.search(r"cloud.google.com/go/pubsub/v2 (\S+)", (_FOLDER / "pubsub" / "go.mod").read_text())
    assert pinned
    return pinned[1]


def client_version(pom: str, name: str) -> str:
    """Return the version of a jar among those of a pom; empty when Maven has found none."""
    found = (re.fullmatch(rf"{name}-([\d.]+)\.jar", Path(jar).name) for jar in class_path(pom).jars)
    return next((match[1] for match in found if match), "")


def find_java_client(pom: str) -> ClassPath:
    """Look for a Java that compiles, and for the jars of a pom through Maven."""
    java = find_java(os.environ)
    if java is None or not java.resolve().with_name("javac").is_file():
        return ClassPath(reason="clients in Java need a JDK: Java without a compiler does not do")
    return class_path(pom)


def run_java_client(pom: str, name: str, arguments: Sequence[str], lines: Iterable[Sequence[str]]) -> list[list[str]]:
    """Run ``NAME.java`` of this folder with the jars of a pom; the first call compiles it.

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
    classes = _compiled(_FOLDER / f"{name}.java", found.path)
    return _run([java, *_JVM, "-cp", f"{classes}{os.pathsep}{found.path}", name, *arguments], lines)


def run_go_client(
    name: str, arguments: Sequence[str], lines: Iterable[Sequence[str]], environment: Mapping[str, str]
) -> list[list[str]]:
    """Build and run the program in the folder ``NAME``; as `run_java_client` does, with some variables more."""
    return _run([str(go_client(name)), *arguments], lines, environment)


def go_client(name: str) -> Path:
    """Return the program in the folder ``NAME``, built now or at an earlier call; ``go.sum`` has all checksums."""
    source = _FOLDER / name
    go = next(filter(None, map(shutil.which, _GO)), None)
    if go is None:
        raise ServiceUnavailableError("TESTING_SERVER_NOT_STARTED", "Go was not found on the PATH", source.name)
    content = b"".join(file.read_bytes() for file in sorted(source.iterdir()))
    return _cached(source, content, lambda program: [go, "build", "-C", str(source), "-o", str(program)])


def _compiled(source: Path, class_path: str) -> Path:
    """Return the folder with the classes of a program, compiled now or at an earlier call."""
    java = find_java(os.environ)
    assert java is not None
    compiler = str(java.resolve().with_name("javac"))
    content = source.read_bytes() + class_path.encode()
    return _cached(
        source, content, lambda folder: [compiler, "-nowarn", "-cp", class_path, "-d", str(folder), str(source)]
    )


def _cached(source: Path, content: bytes, command: Callable[[Path], list[str]]) -> Path:
    """Return what a compiler makes of a source, made now or at an earlier call with the same content.

    Args:
        source: file or folder.
        content: all that the result depends on.
        command: gives the compiler's command line for the path of the result.
    """
    cache = Path("~/.cache/pyspark-stream-connectors").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    name = f"{source.stem}-client"
    result = cache / f"{name}-{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time, the others take its result
        if not result.exists():
            new = result.with_suffix(".new")
            done = subprocess.run(command(new), capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
            if done.returncode:
                raise ServiceUnavailableError("TESTING_SERVER_NOT_STARTED", done.stderr.strip()[-400:], source.name)
            new.rename(result)
    return result


def _run(
    command: Sequence[str], lines: Iterable[Sequence[str]], environment: Mapping[str, str] | None = None
) -> list[list[str]]:
    done = subprocess.run(
        command,
        input="".join("\t".join(each) + "\n" for each in lines),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, f"{command[-3:]} ended with {done.returncode}: {done.stderr[-3000:]}"
    return [line.split("\t") for line in done.stdout.splitlines()]
