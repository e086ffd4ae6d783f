"""A real Kafka broker (KRaft) from its jars, in a process of its own; more can join the cluster of the first.

    found = find_broker()
    if found.reason:
        ...                                   # one sentence: why it cannot be had
    with KafkaBroker() as broker:
        ...                                   # clients use broker.endpoint, in plain text
        broker.restart()                      # killed and started again on the same data and ports

``python -m tests.servers kafka --port N`` runs it as a program. The jars come through Maven; the broker ends when
its parent does, however that ends. Topics are not made by themselves; waits of a production broker are cut short.

Beside the plain listener there are two that authenticate clients: `sasl_endpoint` (PLAIN, SCRAM-SHA-256 and unsigned
OAUTHBEARER tokens, in plain text; user ``shop`` with the password ``shop-secret``) and, when the package cryptography
is installed, `ssl_endpoint` (mutual TLS; `certificates` holds the files).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from connectors.testing.process import ServerProcess, announce, server_parser, start_bound_process, stop_event
from tests.servers.certificates import make_certificates
from tests.servers.java import find_java, free_ports
from tests.servers.maven import class_path

__all__ = ["PASSWORD", "USER", "FoundBroker", "KafkaBroker", "find_broker", "make_archive"]

USER = "shop"
PASSWORD = "shop-secret"
_HOST = "127.0.0.1"
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_LOG_NAME = "broker.log"
_PORT_TAKEN = "Address already in use"
_CALL_SECONDS = 1.0
_LISTENERS = ("PLAIN", "SASL", "SSL", "CONTROLLER", "PROXIED")
_JVM = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xlog:cds*=off")
_ARCHIVE = Path(sys.prefix, "kafka.jsa")
_FAST_JVM = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_LOG = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-Dlog4j2.StatusLogger.level=OFF")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_UNSIGNED = "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAIN",
    "listener.security.protocol.map": (
        "PLAIN:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,SSL:SSL"
    ),
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "250",
    "controlled.shutdown.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.backoff.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.retention.ms": "-1",
    "log.segment.delete.delay.ms": "100",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "message.max.bytes": "16777216",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "listener.name.sasl.plain.sasl.jaas.config": (
        f'{_PLAIN} required username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
    ),
    "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
    "listener.name.sasl.oauthbearer.sasl.jaas.config": f'{_BEARER} required unsecuredLoginStringClaim_sub="{USER}";',
    "listener.name.sasl.oauthbearer.sasl.server.callback.handler.class": (
        f"{_UNSIGNED}.OAuthBearerUnsecuredValidatorCallbackHandler"
    ),
}


@dataclass(frozen=True)
class FoundBroker:
    """The result of `find_broker`: either ``java`` and ``class_path`` are set, or ``reason`` says why not."""

    java: Path | None = None
    class_path: str = ""
    reason: str = ""


def find_broker(environment: Mapping[str, str] | None = None, version: str = "") -> FoundBroker:
    """Look for Java, and for the broker's jars through Maven; those of the pom's version by default."""
    java = find_java(os.environ if environment is None else environment)
    if java is None:
        return FoundBroker(reason="a Kafka broker needs Java 17 or newer: none in JAVA_HOME or on the PATH")
    resolved = class_path("kafka-broker", {"kafka.version": version} if version else None)
    return FoundBroker(java, resolved.path, resolved.reason)


class KafkaBroker:
    """A Kafka broker as a child process; a context manager that ends it and removes its data.

    Args:
        fast: a large heap and the optimising compiler, for benchmarks; else a quick start.
        settings: changes to the broker's own settings.
        proxy: ``HOST:PORT`` of a proxy that leads to `proxied_endpoint`, one more plain listener, which the broker then
            advertises at that address.
        version: of Kafka; that of the pom by default.
        joins: the first broker of a cluster, which is its only controller; this one becomes its second broker.

    Raises:
        ServiceUnavailableError: it cannot be had, or did not start; says why.
    """

    def __init__(
        self,
        *,
        fast: bool = False,
        settings: Mapping[str, str] | None = None,
        proxy: str = "",
        version: str = "",
        joins: Self | None = None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-broker-"))
        self._arguments = ["--exit-with-parent", "--folder", str(self._folder)]
        self._arguments += ["--fast"] if fast else []
        self._arguments += ["--proxy", proxy] if proxy else []
        self._arguments += ["--version", version] if version else []
        self._arguments += ["--join", str(joins._folder)] if joins else []
        for key, value in (settings or {}).items():
            self._arguments += ["--set", f"{key}={value}"]
        try:
            self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _start(self) -> None:
        self._process = ServerProcess(__name__, self._arguments, start_timeout=_START_SECONDS + 30)
        endpoints = (self._folder / "endpoints").read_text().split(",")
        self.endpoint, self.sasl_endpoint, self.ssl_endpoint, self.proxied_endpoint = endpoints
        self.pid = self._process.pid
        """The supervisor; the Java process is its child."""

    @property
    def certificates(self) -> Path:
        """The folder with ``ca.pem``, ``client.pem`` and ``client.key``, if there is an `ssl_endpoint`."""
        return self._folder / "certificates"

    @property
    def data(self) -> Path:
        """The folder with the broker's logs, one folder for each partition, such as ``orders-0``."""
        return self._folder / "data"

    @property
    def java_pid(self) -> int:
        """The Java process itself; SIGSTOP and SIGCONT make it stall."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(children[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def kill(self) -> None:
        """End it by SIGKILL; its data stay, for `start`."""
        self._process.kill()

    def start(self) -> None:
        """Start it again, on the same data and ports, after `kill`."""
        self._start()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End it and remove its data; does nothing the second time."""
        self._process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class _JavaBroker:
    """The Java process."""

    def __init__(self, found: FoundBroker, folder: Path, *, fast: bool, archive: Path | None = None) -> None:
        options = _FAST_JVM if fast else (*_JVM, f"-XX:ArchiveClassesAtExit={archive}") if archive else _quick()
        command = [str(found.java), *options, *_LOG, "-cp", found.class_path, "kafka.Kafka"]
        command.append(str(folder / "server.properties"))
        self._log_path = folder / _LOG_NAME
        self._log = self._log_path.open("ab")
        self.process = start_bound_process(command, stdout=self._log, stderr=subprocess.STDOUT)

    def wait_until_it_answers(self, endpoint: str, stopping: threading.Event) -> bool:
        """True once it has answered; False when it ended, or was told to stop."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - only the child process needs it
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        settings = {"bootstrap.servers": endpoint, "log_level": 0, "reconnect.backoff.ms": 50}
        client = AdminClient({**settings, "reconnect.backoff.max.ms": 100})
        give_up_at = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up_at and self.process.poll() is None and not stopping.is_set():
            try:
                if client.list_topics(timeout=_CALL_SECONDS).brokers:
                    return True
            except KafkaException:
                stopping.wait(0.05)
        return False

    def log(self) -> str:
        """The end of what it wrote."""
        return self._log_path.read_text(errors="replace")[-3000:]

    def what_happened(self) -> str:
        """Whether it ended by itself, once it has been ended in any case."""
        status = self.process.wait()
        return "did not answer in time" if status == -signal.SIGKILL else f"ended with status {status}"

    def kill(self) -> None:
        """End it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def make_archive() -> str:
    """Archive the classes that a start loads, unless that was done; return why it could not be done.

    With the archive, formatting the storage and starting take 2.2 s of processor time instead of 3.4.
    """
    found = find_broker()
    if found.reason or _ARCHIVE.is_file():
        return found.reason
    new = _ARCHIVE.with_suffix(".new")
    with tempfile.TemporaryDirectory(prefix="kafka-broker-") as name:
        endpoints = _prepare(Path(name), found, {}, "", 0)
        java = _JavaBroker(found, Path(name), fast=False, archive=new)
        try:
            if java.wait_until_it_answers(endpoints.partition(",")[0], threading.Event()):
                java.process.terminate()
                java.process.wait()
        finally:
            java.kill()
        if not new.is_file():
            return f"the broker wrote no archive of its classes: {java.log()}"
    new.replace(_ARCHIVE)
    return ""


def _quick() -> tuple[str, ...]:
    """Return the options for a quick start, with the archive if there is one."""
    return (*_JVM, f"-XX:SharedArchiveFile={_ARCHIVE}") if _ARCHIVE.is_file() else _JVM


def _prepare(
    folder: Path, found: FoundBroker, changes: Mapping[str, str], proxy: str, port: int, first: Path | None = None
) -> str:
    """Write settings and format the storage, unless that was done at an earlier start; returns the endpoints."""
    endpoints = folder / "endpoints"
    if endpoints.exists():
        return endpoints.read_text()
    others = [number for number in free_ports(len(_LISTENERS) + 1) if number != port]
    ports = dict(zip(_LISTENERS, others, strict=False))
    ports["PLAIN"] = port or ports["PLAIN"]
    listeners = {name: f"{name}://{_HOST}:{number}" for name, number in ports.items()}
    if not proxy:
        del listeners["PROXIED"]
        ports["PROXIED"] = 0
    tls = _tls(folder)
    if not tls:
        del listeners["SSL"]
        ports["SSL"] = 0
    advertised = {**listeners, "PROXIED": f"PROXIED://{proxy}"}
    settings = {
        **_SETTINGS,
        "listeners": ",".join(listeners.values()),
        "controller.quorum.voters": f"1@{_HOST}:{ports['CONTROLLER']}",
        "log.dirs": str(folder / "data"),
        **tls,
        **changes,
    }
    cluster = "A" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
    if first is not None:
        del listeners["CONTROLLER"]
        cluster = _properties(first / "data" / "meta.properties")["cluster.id"]
        voters = _properties(first / "server.properties")["controller.quorum.voters"]
        settings |= {"process.roles": "broker", "node.id": "2", "controller.quorum.voters": voters}
        settings["listeners"] = ",".join(listeners.values())
    if proxy:
        settings["advertised.listeners"] = ",".join(advertised[name] for name in listeners if name != "CONTROLLER")
    properties = folder / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [str(found.java), *_quick(), *_LOG, "-cp", found.class_path, "kafka.tools.StorageTool", "format"]
    command += ["--cluster-id", cluster, "--config", str(properties)]
    command += ["--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"]
    if subprocess.run(command, check=False, stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode:
        sys.exit("the broker's folder cannot be formatted")  # why stands before it
    endpoints.write_text(",".join(f"{_HOST}:{ports[name]}" for name in ("PLAIN", "SASL", "SSL", "PROXIED")))
    return endpoints.read_text()


def _properties(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def _tls(folder: Path) -> dict[str, str]:
    """The settings of the TLS listener, when its certificates can be made."""
    if importlib.util.find_spec("cryptography") is None:
        return {}
    made = make_certificates(folder / "certificates")
    return {
        "listener.name.ssl.ssl.keystore.type": "PEM",
        "listener.name.ssl.ssl.keystore.location": str(made / "server-all.pem"),
        "listener.name.ssl.ssl.truststore.type": "PEM",
        "listener.name.ssl.ssl.truststore.location": str(made / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
    }


def _run(
    folder: Path,
    stopping: threading.Event,
    changes: Mapping[str, str],
    proxy: str,
    port: int,
    *,
    fast: bool,
    version: str = "",
    first: Path | None = None,
) -> int:
    found = find_broker(version=version)
    if found.reason:
        sys.stderr.write(f"{found.reason}\n")
        return 1
    is_new = not (folder / "endpoints").exists()
    if port and (reason := _refusal(folder, port)):
        sys.stderr.write(f"{reason}\n")
        return 1
    for is_last in (False, False, True):
        endpoints = _prepare(folder, found, changes, proxy, port, first)
        java = _JavaBroker(found, folder, fast=fast)
        try:
            if java.wait_until_it_answers(endpoints.partition(",")[0], stopping):
                return _serve(java, folder, endpoints, stopping)
        finally:
            java.kill()
        if stopping.is_set():
            return 0
        sys.stderr.write(f"the broker {java.what_happened()}\n{java.log()}\n")
        if is_last or not (is_new and _PORT_TAKEN in java.log()):
            return 1
        _forget(folder)  # somebody took a port between the choice and the start: choose again
    return 1


def _refusal(folder: Path, port: int) -> str:
    """Return why a broker cannot have this port; nothing if it can."""
    endpoints = folder / "endpoints"
    if endpoints.exists():
        known = endpoints.read_text().partition(",")[0]
        return (
            "" if known == f"{_HOST}:{port}" else f"the data in {folder} are of a broker on {known}: leave --port out"
        )
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            return f"{_HOST}:{port}: {error.strerror}. Choose another port, or 0 for a free one."
    return ""


def _serve(java: _JavaBroker, folder: Path, endpoints: str, stopping: threading.Event) -> int:
    plain, sasl, tls, proxied = endpoints.split(",")
    labels = {
        "kafka.bootstrap.servers, in plain text": plain,
        f"kafka.bootstrap.servers, SASL_PLAINTEXT, user {USER}, password {PASSWORD}": sasl,
        f"kafka.bootstrap.servers, SSL, with the certificates in {folder / 'certificates'}": tls,
        "the listener behind the proxy": proxied,
    }
    addresses = {label: address for label, address in labels.items() if not address.endswith(":0")}
    addresses["try it in another terminal"] = f"./dev demo kafka --bootstrap {plain}"
    announce(plain, addresses, {"KAFKA_BOOTSTRAP_SERVERS": plain})
    while not stopping.wait(_LOOK_SECONDS):
        if java.process.poll() is not None:
            sys.stderr.write(f"the broker {java.what_happened()}\n{java.log()}\n")
            return 1
    return 0


def _forget(folder: Path) -> None:
    """Undo `_prepare`, and remove the log of the start that failed."""
    (folder / "endpoints").unlink()
    (folder / _LOG_NAME).unlink()
    for made in ("data", "certificates"):
        shutil.rmtree(folder / made, ignore_errors=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the broker until SIGTERM or SIGINT."""
    parser = server_parser(
        "kafka",
        "A Kafka broker on 127.0.0.1.",
        "of the plain listener; 0 takes a free one (default: 0)",
        package="tests.servers",
    )
    parser.add_argument("--folder", type=Path, help="for its data (default: a temporary one)")
    parser.add_argument("--fast", action="store_true", help="a large heap and the optimising compiler")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE: a setting of the broker", metavar="S")
    parser.add_argument("--proxy", default="", help="HOST:PORT: where one more listener is advertised", metavar="P")
    parser.add_argument("--version", default="", help="of Kafka (default: the one of the tests)")
    parser.add_argument("--join", type=Path, help="the folder of the first broker, whose cluster this one joins")
    command_line = parser.parse_args(arguments)
    stopping = stop_event(with_parent=command_line.exit_with_parent)
    changes = dict(pair.split("=", 1) for pair in command_line.set)
    with contextlib.ExitStack() as stack:
        folder = command_line.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-broker-")))
        own = {"fast": command_line.fast, "version": command_line.version, "first": command_line.join}
        return _run(folder, stopping, changes, command_line.proxy, command_line.port, **own)


if __name__ == "__main__":
    sys.exit(main())
