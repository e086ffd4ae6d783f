"""Where Java is on this machine, and free ports for what is started with it."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

__all__ = ["find_java", "free_port"]

_JAVA_FOLDERS = ("/usr/lib/jvm/*/bin/java", "/opt/java/*/bin/java", "/opt/java/bin/java")
_HOST = "127.0.0.1"


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


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
