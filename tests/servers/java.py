"""Where Java is on this machine, and free ports for what is started with it."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

__all__ = ["find_java", "free_port", "free_ports"]

_JAVA_FOLDERS = (
    "/usr/lib/jvm/*/bin/java",
    "/opt/java/*/bin/java",
    "/opt/java/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
)
_HOST = "127.0.0.1"
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_LOWEST_GIVEN = 32768
_FIRST_PORT = 20_000
_TRIES = 100


def find_java(environment: Mapping[str, str]) -> Path | None:
    """The Java of ``JAVA_HOME``, else of the PATH, else the newest of the usual folders; None if there is none."""
    if home := environment.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        if java.is_file():
            return java
    if found := shutil.which("java", path=environment.get("PATH", "")):
        return Path(found)
    usual = (java for pattern in _JAVA_FOLDERS for java in Path("/").glob(pattern.lstrip("/")))
    return max(usual, key=_version, default=None)


def _version(java: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", java.parents[1].name)]


def free_ports(count: int) -> list[int]:
    """So many different ports of 127.0.0.1 that nobody listens on now, for servers that are started a moment later.

    They lie below the ports that the kernel gives to connections and to servers that ask for any (ip(7),
    ip_local_port_range), so that none of those takes one in between.
    """
    lowest_given = int(_PORT_RANGE.read_text().split()[0]) if _PORT_RANGE.exists() else _USUAL_LOWEST_GIVEN
    choices = range(_FIRST_PORT, lowest_given)
    with contextlib.ExitStack() as bound:
        ports: list[int] = []
        for port in [*random.sample(choices, min(_TRIES * count, len(choices))), *[0] * count]:
            with contextlib.suppress(OSError):
                probe = bound.enter_context(socket.socket())
                probe.bind((_HOST, port))
                ports.append(int(probe.getsockname()[1]))
            if len(ports) == count:
                break
        return ports


def free_port() -> int:
    """One such port."""
    return free_ports(1)[0]
