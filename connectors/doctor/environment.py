"""Checks of this machine: its Pythons, Java, how Spark is set up, the machine's name, disk and proxies.

Each is a failure that was met in the first half hour of use, or seen in the issues of other connectors.
"""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import connectors
from connectors.core.diagnostics import Finding
from connectors.core.extras import OLDEST_SPARK, not_installed
from connectors.doctor.spark_workers import check_workers, dotted, numbers, run_command

_OLDEST_PYTHON: Final = (3, 11)
_OLDEST_JAVA: Final = 17
_ROOM: Final = 1 << 30
_LOCAL: Final = ("127.0.0.1", "localhost")
_CONNECT_MODULES: Final = ("grpc", "grpc_status", "google.rpc", "pandas", "pyarrow", "zstandard")


def check_environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check this machine as the driver of a query would see it."""
    yield _driver()
    yield from check_workers(environ)
    yield from check_spark(environ)
    yield from check_connect(environ)
    yield from check_machine(environ, spark_settings(environ))
    yield from check_java(environ)


def _driver() -> Finding:
    found = f"Python {dotted(sys.version_info[:3])} at {sys.executable}, pack {connectors.__version__}"
    if sys.version_info[:2] < _OLDEST_PYTHON:
        return Finding.failure("python", "driver", found, "Use Python 3.11 or newer.", "PYTHON_TOO_OLD")
    return Finding.ok("python", "driver", found)


def check_spark(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check which Spark this Python starts, and its settings in files and the shell."""
    yield from _spark_home(environ)
    yield from _spark_settings(environ)


def _spark_home(environ: Mapping[str, str]) -> Iterator[Finding]:
    fix = "pip install 'pyspark>=4.0'"
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        installed = _version_in(Path(environ.get("SPARK_HOME", "")))
        if not installed:
            found = "this Python has no Spark: pyspark is not installed"
            yield Finding.failure("spark", "version", found, fix, "SPARK_MISSING")
            return
    if numbers(installed)[0] < OLDEST_SPARK:
        found = f"pyspark {installed} has no Python data sources that stream"
        yield Finding.failure("spark", "version", found, fix, "SPARK_TOO_OLD")
    else:
        yield Finding.ok("spark", "version", f"pyspark {installed}")
        yield from _spark_features()
    home = environ.get("SPARK_HOME")
    if not home:
        return
    other = _version_in(Path(home))
    if other != installed:
        found = f"it names {f'another Spark ({other})' if other else 'no Spark'}: {home}"
        fix = f"Unset SPARK_HOME, or install that Spark's pyspark; this Python has {installed}."
        yield Finding.failure("spark", "SPARK_HOME", found, fix, "SPARK_HOME_DIFFERS")
    else:
        yield Finding.ok("spark", "SPARK_HOME", f"the same version: {home}")


def _spark_features() -> Iterator[Finding]:
    """Yield what this Spark has of the features that came after 4.0; nothing where it cannot be imported."""
    if not_installed(["pyspark"]):
        return
    from connectors.core.processes.spark import features  # noqa: PLC0415 - imports pyspark

    for feature, is_there in features().items():
        yield Finding.ok("spark", feature, "this Spark has it" if is_there else "this Spark does without it")


def _version_in(home: Path) -> str:
    """Return the version of a Spark distribution or an installed pyspark; empty if there is none."""
    for file, pattern in (
        ("version.py", r'__version__[^=]*=\s*"([^"]+)"'),
        ("python/pyspark/version.py", r'__version__[^=]*=\s*"([^"]+)"'),
        ("RELEASE", r"Spark (\d\S*)"),
    ):
        try:
            match = re.search(pattern, (home / file).read_text(errors="replace"))
        except OSError:
            continue
        if match is not None:
            return match[1]
    return ""


def spark_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of ``spark-defaults.conf`` and of the shell's arguments; a session's own are unknown here."""
    home = environ.get("SPARK_HOME") or ""
    folder = environ.get("SPARK_CONF_DIR") or (str(Path(home) / "conf") if home else "")
    settings: dict[str, str] = {}
    if folder:
        try:
            text = (Path(folder) / "spark-defaults.conf").read_text(errors="replace")
        except OSError:
            text = ""
        settings |= dict(re.findall(r"^\s*(spark\.[\w.]+)[ \t=:]+(\S+)", text, re.MULTILINE))
    settings |= dict(
        re.findall(r"--conf[ =]+['\"]?(spark\.[\w.]+)=(\S+?)['\"]?(?:\s|$)", environ.get("PYSPARK_SUBMIT_ARGS", ""))
    )
    return settings


def _spark_settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    settings = spark_settings(environ)
    if settings.get("spark.python.worker.reuse", "true").lower() == "false":
        found = "spark.python.worker.reuse is false: each task starts a Python, about a second for each batch"
        fix = "Take spark.python.worker.reuse out of spark-defaults.conf."
        yield Finding.warning("spark", "worker reuse", found, fix, "SPARK_WORKER_REUSE")
    other = settings.get("spark.pyspark.python")
    if other and other != (environ.get("PYSPARK_PYTHON") or "python3"):
        found = f"spark.pyspark.python is {other}: spark-submit takes it for the workers, and not PYSPARK_PYTHON"
        fix = f"Take spark.pyspark.python out of spark-defaults.conf, or: export PYSPARK_PYTHON={other}"
        yield Finding.warning("spark", "workers' Python", found, fix, "SPARK_PYTHON_SETTING")
    if settings.get("spark.speculation", "false").lower() == "true":
        found = "spark.speculation is on: attempts of one task of an exactly-once sink fence each other"
        fix = "Take spark.speculation out of spark-defaults.conf."
        yield Finding.warning("spark", "speculation", found, fix, "SPARK_SPECULATION")


def check_java(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the Java that ``spark-class`` starts: of ``JAVA_HOME``, else of the PATH."""
    fix = "Install Java 17 or newer (Debian: openjdk-17-jre-headless), and set JAVA_HOME to its folder."
    home = environ.get("JAVA_HOME")
    wanted = str(Path(home, "bin", "java")) if home else "java"
    path = shutil.which(wanted, path=environ.get("PATH"))
    if path is None:
        where = f"JAVA_HOME names {home}" if home else "there is none on the PATH, and JAVA_HOME is not set"
        yield Finding.failure("java", "runtime", f"no Java: {where}", fix, "JAVA_MISSING")
        return
    done = run_command([path, "-XshowSettings:properties", "-version"], environ)
    output = done.stdout + done.stderr
    match = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    if done.returncode or match is None:
        found = f"{path} does not run: {output.strip().partition(chr(10))[0][:200]}"
        yield Finding.failure("java", "runtime", found, fix, "JAVA_BROKEN")
        return
    if int(match[1]) < _OLDEST_JAVA:
        yield Finding.failure("java", "runtime", f"Java {match[1]} at {path} is too old", fix, "JAVA_TOO_OLD")
        return
    yield Finding.ok("java", "runtime", f"Java {match[1]} at {path}")
    if run_command([path, "--add-modules=jdk.incubator.vector", "-version"], environ).returncode:
        found = "this Java is a trimmed one: Spark will not boot, with 'Module jdk.incubator.vector not found'"
        yield Finding.failure("java", "modules", found, fix, "JAVA_TRIMMED")
    else:
        yield Finding.ok("java", "modules", "it has the modules that Spark asks for")


def check_machine(
    environ: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    host: Callable[[], str] = socket.gethostname,
    room: int = _ROOM,
) -> Iterator[Finding]:
    """Check what Spark needs of the machine itself: its name, and ``room`` bytes for local folders."""
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
        what = f"the name of this machine, {name}, cannot be looked up: Spark ends with an UnknownHostException"
        fix = f"export SPARK_LOCAL_IP=127.0.0.1, or add {name} to /etc/hosts."
        return Finding.failure("spark", "host name", what, fix, "HOST_NAME_UNKNOWN")
    return Finding.ok("spark", "host name", f"{name} is {found}")


def _own_address(address: str) -> Finding:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(place)
    except (OSError, UnicodeError) as error:
        found = (
            f"SPARK_LOCAL_IP is {address}, which this machine does not have ({error.args[-1]}): Spark cannot bind to it"
        )
        fix = "export SPARK_LOCAL_IP=127.0.0.1, or unset it."
        return Finding.failure("spark", "host name", found, fix, "LOCAL_ADDRESS_NOT_OURS")
    return Finding.ok("spark", "host name", f"SPARK_LOCAL_IP is {address}")


def _local_folders(environ: Mapping[str, str], settings: Mapping[str, str]) -> list[Path]:
    """Return where Spark puts shuffle files and broadcasts: the variable wins over the setting."""
    text = environ.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir") or tempfile.gettempdir()
    return [Path(each.strip()) for each in text.split(",") if each.strip()]


def _local_folder(folder: Path, room: int) -> Finding:
    fix = "Set SPARK_LOCAL_DIRS to a folder on a disk with room that this user may write to."
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        found = f"{folder} cannot be written to ({error.strerror}): Spark fails to create its folders there"
        return Finding.failure("spark", "local folder", found, fix, "LOCAL_DIR_NOT_WRITABLE")
    if free < room:
        found = f"{folder} has {free >> 20:,} MiB free: a shuffle ends with 'No space left on device'"
        return Finding.warning("spark", "local folder", found, fix, "LOCAL_DIR_FULL")
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
    found = f"{used} is set: emulators and other servers on this machine are looked for behind the proxy"
    fix = f"export no_proxy={','.join(filter(None, dict.fromkeys([*left_out, *_LOCAL])))}"
    yield Finding.warning("spark", "proxy", found, fix, "PROXY_FOR_LOCAL")


def check_connect(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check what a client of Spark Connect needs, if the environment says that the session is one."""
    remote = environ.get("SPARK_REMOTE") or ""
    if not remote:
        return
    missing = not_installed(_CONNECT_MODULES)
    if missing:
        found = f"SPARK_REMOTE is set, and a client of Spark Connect needs what is not installed: {', '.join(missing)}"
        fix = "pip install 'pyspark[connect]' 'pandas<3'"
        yield Finding.failure("spark", "connect", found, fix, "CONNECT_PACKAGES_MISSING")
        return
    place = remote.partition("://")[2].partition("/")[0]  # what follows may hold a token
    yield Finding.ok("spark", "connect", f"sessions go to {place}; the sources run there, and need the pack there")
