"""The official Pub/Sub emulator: find it on this machine, and run it in a process of its own.

    found = find_emulator()
    if found.reason:
        ...                                   # one sentence: why it cannot be had
    with Emulator() as emulator:
        ...                                   # clients use emulator.endpoint, without TLS

``python -m tests.servers pubsub-emulator --port N`` runs it as a program. It is looked for in this order:

1. ``PUBSUB_EMULATOR_JAR``: the jar itself; or ``PUBSUB_EMULATOR_HOME``: a folder that has it, in ``lib`` or below
   ``platform/pubsub-emulator/lib`` (the root of a Cloud SDK). If one of them is set, nothing else is looked at.
2. The Cloud SDK that ``gcloud`` on the PATH belongs to, then the usual folders of the SDK.
3. The root that ``gcloud info`` tells; last, because it takes seconds.

The jar is run without ``gcloud``, whose wrapper leaves the server behind when it is killed. A small supervisor (this
module, run as a program) holds the Java process: Linux kills that when the supervisor dies, and the supervisor ends
when its own parent does.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from connectors.testing.process import ServerProcess, announce, server_parser, start_bound_process, stop_event
from tests.servers.java import find_java, free_port

__all__ = ["Emulator", "FoundEmulator", "find_emulator"]

_HOST = "127.0.0.1"
_JAR_PATTERN = "cloud-pubsub-emulator-*-all.jar"
_SDK_FOLDERS = (
    "/usr/lib/google-cloud-sdk",
    "/usr/lib64/google-cloud-sdk",
    "/usr/share/google-cloud-sdk",
    "/usr/local/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/google-cloud-sdk",
    "/snap/google-cloud-cli/current",
    "~/google-cloud-sdk",
)
_GCLOUD_SECONDS = 60
_START_SECONDS = 60.0
_CALL_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_PORT_TRIALS = 3


@dataclass(frozen=True)
class FoundEmulator:
    """The result of `find_emulator`: either ``jar`` and ``java`` are set, or ``reason`` says why not."""

    jar: Path | None = None
    java: Path | None = None
    reason: str = ""

    @property
    def version(self) -> str:
        """Of the jar, as its name has it."""
        return "" if self.jar is None else ".".join(map(str, _version(self.jar)))


def find_emulator(environment: Mapping[str, str] | None = None) -> FoundEmulator:
    """Look for the emulator and for Java as the top of this module says; ``environment`` is ours by default."""
    environment = os.environ if environment is None else environment
    jar, reason = _find_jar(environment)
    if jar is None:
        return FoundEmulator(reason=reason)
    java = find_java(environment)
    if java is None:
        return FoundEmulator(reason="the Pub/Sub emulator needs Java 17 or newer: none in JAVA_HOME or on the PATH")
    return FoundEmulator(jar, java)


def _find_jar(environment: Mapping[str, str]) -> tuple[Path | None, str]:
    if named := environment.get("PUBSUB_EMULATOR_JAR"):
        is_there = Path(named).is_file()
        return (Path(named), "") if is_there else (None, f"PUBSUB_EMULATOR_JAR names no file: {named}")
    if home := environment.get("PUBSUB_EMULATOR_HOME"):
        inside = _newest_jar(Path(home))
        return (inside, "") if inside else (None, f"PUBSUB_EMULATOR_HOME has no lib/{_JAR_PATTERN}: {home}")
    for root in _sdk_roots(environment):
        if jar := _newest_jar(root):
            return jar, ""
    return None, (
        "the Pub/Sub emulator is not installed: install the component pubsub-emulator of the Cloud SDK "
        "(gcloud components install pubsub-emulator, or the package google-cloud-cli-pubsub-emulator), "
        "or set PUBSUB_EMULATOR_JAR"
    )


def _sdk_roots(environment: Mapping[str, str]) -> Iterator[Path]:
    gcloud = shutil.which("gcloud", path=environment.get("PATH", ""))
    if gcloud:
        yield Path(gcloud).resolve().parent.parent
    for folder in _SDK_FOLDERS:
        yield Path(folder).expanduser()
    if gcloud:
        yield from _root_told_by(gcloud)


def _root_told_by(gcloud: str) -> Iterator[Path]:
    command = [gcloud, "info", "--format=value(installation.sdk_root)"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command_line = subprocess.run(command, capture_output=True, text=True, timeout=_GCLOUD_SECONDS, check=True)
        if command_line.stdout.strip():
            yield Path(command_line.stdout.strip())


def _newest_jar(home: Path) -> Path | None:
    jars = [
        jar
        for folder in ("platform/pubsub-emulator/lib", "lib", ".")
        for jar in (home / folder).glob(_JAR_PATTERN)
        if jar.is_file()
    ]
    return max(jars, key=_version, default=None)


def _version(jar: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", jar.name)]


class Emulator(ServerProcess):
    """The official emulator as a child process; a context manager that ends it.

    It also ends when this process does, however that ends.

    Args:
        port: on 127.0.0.1; 0 takes a free one.

    Raises:
        ServiceUnavailableError: it is not installed, or did not start; says why.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__("tests.servers.pubsub_emulator", ["--exit-with-parent", "--port", str(port)])


class _JavaServer:
    """The Java process of the emulator, and what it writes."""

    def __init__(self, found: FoundEmulator, port: int) -> None:
        self.endpoint = f"{_HOST}:{port}"
        self.port_was_taken = threading.Event()
        command = [str(found.java), "-jar", str(found.jar), f"--host={_HOST}", f"--port={port}"]
        self.process = start_bound_process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._copier = threading.Thread(target=self._copy_output, name="emulator-output", daemon=True)
        self._copier.start()

    def _copy_output(self) -> None:
        # Read to its end, also when nobody looks: a full pipe would stop the emulator.
        for line in self.process.stdout or ():
            # It stays alive without its port, so its end cannot tell.
            if b"java.net.BindException" in line:
                self.port_was_taken.set()
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()

    def wait_until_it_answers(self, stopping: threading.Event) -> bool:
        """True once a call was answered; False when it failed to start, or was told to stop."""
        give_up_at = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up_at and self.is_well() and not stopping.is_set():
            # By HTTP, which needs no package: the emulator is started without any.
            connection = http.client.HTTPConnection(self.endpoint, timeout=_CALL_SECONDS)
            try:
                connection.request("GET", "/")
                if connection.getresponse().status == http.client.OK:
                    return self.is_well()
            except (OSError, http.client.HTTPException):
                stopping.wait(0.05)
            finally:
                connection.close()
        return False

    def is_well(self) -> bool:
        """True while it runs and has not failed to get its port."""
        return self.process.poll() is None and not self.port_was_taken.is_set()

    def kill(self) -> None:
        """End it and all of its process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._copier.join()


def _run(port: int, stopping: threading.Event) -> int:
    found = find_emulator()
    if found.reason:
        sys.stderr.write(f"{found.reason}\n")
        return 1
    for _ in range(_PORT_TRIALS):
        java = _JavaServer(found, port or free_port())
        try:
            if java.wait_until_it_answers(stopping):
                announce(java.endpoint, {"endpoint": java.endpoint}, {"PUBSUB_EMULATOR_HOST": java.endpoint})
                return _supervise(java, stopping)
        finally:
            java.kill()
        # Somebody may take a free port before the emulator does; one that was asked for is another matter.
        if port or not java.port_was_taken.is_set():
            break
    return 0 if stopping.is_set() else 1


def _supervise(java: _JavaServer, stopping: threading.Event) -> int:
    while not stopping.wait(_LOOK_SECONDS):
        if not java.is_well():
            sys.stderr.write(f"the emulator ended with status {java.process.poll()}\n")
            return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the emulator until SIGTERM or SIGINT; its endpoint, and what to export, go to standard output."""
    parser = server_parser("pubsub-emulator", "The official Pub/Sub emulator, on 127.0.0.1.", package="tests.servers")
    options = parser.parse_args(arguments)
    stopping = stop_event(with_parent=options.exit_with_parent)
    return _run(options.port, stopping)


if __name__ == "__main__":
    sys.exit(main())
