"""Checks of the machine below Spark: its name, the disk for what Spark puts aside, proxies; and of a Connect client."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from connectors.core.diagnostics.steps import Finding
from connectors.core.extras import not_installed

__all__ = ["check_connect", "check_machine"]

_ROOM: Final = 1 << 30
_LOCAL: Final = ("127.0.0.1", "localhost")
_CONNECT_MODULES: Final = ("grpc", "grpc_status", "google.rpc", "pandas", "pyarrow", "zstandard")


def check_machine(
    environ: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    host: Callable[[], str] = socket.gethostname,
    room: int = _ROOM,
) -> Iterator[Finding]:
    """Look at what Spark needs of the machine itself.

    Args:
        environ: the environment of the driver.
        settings: of Spark, as files and the shell give them.
        host: gives the name of this machine.
        room: bytes that must be free where Spark puts its files aside.
    """
    yield _host_name(environ, host())
    for folder in _local_folders(environ, settings):
        yield _local_folder(folder, room)
    yield from _proxy(environ)


def _host_name(environ: Mapping[str, str], name: str) -> Finding:
    """Spark looks its own name up before anything else, and ends with an UnknownHostException if it cannot."""
    address = environ.get("SPARK_LOCAL_IP")
    if address:
        return _own_address(address)
    try:
        found = socket.gethostbyname(name)
    except (OSError, UnicodeError):
        return Finding.failure(
            "spark",
            "host name",
            f"the name of this machine, {name}, cannot be looked up: Spark ends with an UnknownHostException",
            f"export SPARK_LOCAL_IP=127.0.0.1, or add {name} to /etc/hosts.",
            "HOST_NAME_UNKNOWN",
        )
    return Finding.ok("spark", "host name", f"{name} is {found}")


def _own_address(address: str) -> Finding:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(place)
    except (OSError, UnicodeError) as error:
        return Finding.failure(
            "spark",
            "host name",
            f"SPARK_LOCAL_IP is {address}, which this machine does not have: {error.args[-1]}; Spark cannot bind to it",
            "export SPARK_LOCAL_IP=127.0.0.1, or unset it.",
            "LOCAL_ADDRESS_NOT_OURS",
        )
    return Finding.ok("spark", "host name", f"SPARK_LOCAL_IP is {address}")


def _local_folders(environ: Mapping[str, str], settings: Mapping[str, str]) -> list[Path]:
    """Where Spark puts shuffle files and broadcasts: the variable wins over the setting."""
    text = environ.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir") or tempfile.gettempdir()
    return [Path(each.strip()) for each in text.split(",") if each.strip()]


def _local_folder(folder: Path, room: int) -> Finding:
    mend = "Set SPARK_LOCAL_DIRS to a folder on a disk with room that this user may write to."
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        found = f"{folder} cannot be written to ({error.strerror}): Spark fails to create its folders there"
        return Finding.failure("spark", "local folder", found, mend, "LOCAL_DIR_NOT_WRITABLE")
    if free < room:
        found = f"{folder} has {free >> 20:,} MiB free: a shuffle ends with 'No space left on device'"
        return Finding.warning("spark", "local folder", found, mend, "LOCAL_DIR_FULL")
    return Finding.ok("spark", "local folder", f"{folder}, {free >> 30:,} GiB free")


def _proxy(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Clients over gRPC, that of Pub/Sub among them, ask a proxy for servers on this machine too."""
    used = next((name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environ.get(name)), None)
    if used is None:
        return
    left_out = [each.strip() for each in (environ.get("no_grpc_proxy") or environ.get("no_proxy") or "").split(",")]
    if all(name in left_out for name in _LOCAL):
        yield Finding.ok("spark", "proxy", f"{used} is set, and leaves out what is on this machine")
        return
    yield Finding.warning(
        "spark",
        "proxy",
        f"{used} is set: emulators and other servers on this machine are looked for behind the proxy",
        f"export no_proxy={','.join(filter(None, dict.fromkeys([*left_out, *_LOCAL])))}",
        "PROXY_FOR_LOCAL",
    )


def check_connect(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What a client of Spark Connect needs, where the environment says that the session is one."""
    remote = environ.get("SPARK_REMOTE") or ""
    if not remote:
        return
    missing = not_installed(_CONNECT_MODULES)
    if missing:
        found = f"SPARK_REMOTE is set, and a client of Spark Connect needs what is not installed: {', '.join(missing)}"
        mend = "pip install 'pyspark[connect]' 'pandas<3'"
        yield Finding.failure("spark", "connect", found, mend, "CONNECT_PACKAGES_MISSING")
        return
    place = remote.partition("://")[2].partition("/")[0]  # what follows may hold a token
    yield Finding.ok("spark", "connect", f"sessions go to {place}; the sources run there, and need the pack there")
