"""The checks of ``connectors doctor --format kafka_py``, where the packages of the connector are installed."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from connectors.core.diagnostics import (
    Finding,
    Outcome,
    Steps,
    connect,
    look_at_checkpoint,
    look_up,
    split_address,
    tls_handshake,
)
from connectors.core.errors import ConnectorError, CredentialsError, DataLossError
from connectors.kafka import FORMAT
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.client.factory import check_settings
from connectors.kafka.offsets import Anywhere, Offsets, TopicPartition, describe, read_offset
from connectors.kafka.options.client import ClientSettings, is_true
from connectors.kafka.options.source import KafkaReadOptions, parse_read_options
from connectors.kafka.source.planning import starting_offsets

_PORT: Final = 9092
_CALL_SECONDS: Final = 8.0
_SHOWN_TOPICS: Final = 5


def diagnose(
    raw: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None, steps: Steps
) -> Iterator[Finding]:
    """Check options, network, authentication, topics, positions and group; reads at most one record a topic."""
    parsed: list[KafkaReadOptions] = []

    def parse() -> str:
        options = parse_read_options(raw, environ, streaming=True)
        check_settings(options.client)
        parsed.append(options)
        return f"servers {options.bootstrap_servers}"

    yield steps.step("options", parse)
    if not parsed:
        return
    yield from _network(parsed[0].client, steps)
    with ExitStack() as clients:
        opened: list[_Cluster] = []
        yield steps.step("authentication", lambda: _authenticate(parsed[0], clients, opened))
        if opened:
            yield steps.step("advertised", lambda: _advertised(opened[0].lookup))
            yield from opened[0].check(steps, checkpoint)


# --- the network ---------------------------------------------------------------------------------------------------


def _network(settings: ClientSettings, steps: Steps) -> Iterator[Finding]:
    """Check name, TCP and TLS of the servers in the options; one that answers is enough."""
    reached = [split_address(address, _PORT) for address in (settings.get("bootstrap.servers") or "").split(",")]

    def check_servers(check: str, probe: Callable[[str, int], str]) -> Finding:
        return steps.step(check, lambda: _any_server(check, reached, probe))

    yield check_servers("name", lambda host, port: f"{host} is {look_up(host, port)}")
    yield check_servers("tcp", connect)
    if (settings.get("security.protocol") or "").upper().endswith("SSL"):
        yield steps.step("certificates", lambda: _certificate_files(settings))
        if not steps.failed:
            yield check_servers("tls", lambda host, port: _tls(settings, host, port))


def _any_server(check: str, reached: list[tuple[str, int]], probe: Callable[[str, int], str]) -> str | Finding:
    """Probe the servers and drop those that fail; raise the first error if all do."""
    errors: list[ConnectorError] = []
    results: list[str] = []
    for host, port in list(reached):
        try:
            results.append(probe(host, port))
        except ConnectorError as error:
            errors.append(error)
            reached.remove((host, port))
    if not results:
        raise errors[0]
    return Finding.from_error(FORMAT, check, errors[0], Outcome.WARNING) if errors else "; ".join(results)


def _certificate_files(settings: ClientSettings) -> str:
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location"):
        path = settings.get(name)
        if path is None or path == "probe":
            continue
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise CredentialsError(
                "KAFKA_CERTIFICATE_UNREADABLE",
                f"The file of kafka.{name} cannot be read: {error.strerror}",
                path,
                "Correct the path; driver and executors must see it under the same one.",
            ) from None
    return "the files that options name can be read"


def _tls(settings: ClientSettings, host: str, port: int) -> str:
    """Negotiate TLS with a server, without a certificate in PKCS12, which the standard library cannot read."""
    in_store = settings.get("ssl.keystore.location") is not None
    try:
        result = tls_handshake(host, port, _tls_context(settings))
    except CredentialsError as error:
        if not in_store or error.code != "TLS_CLIENT_CERTIFICATE":
            raise
        result = f"{host} speaks TLS and requires a certificate of the client"
    return f"{result}; the one in PKCS12 is not checked here, but when the client authenticates" if in_store else result


def _tls_context(settings: ClientSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not is_true(settings.get("enable.ssl.certificate.verification") or "true"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    try:
        if (authority := settings.get("ssl.ca.location")) is not None:
            context.load_verify_locations(**{"capath" if Path(authority).is_dir() else "cafile": authority})
        if (text := settings.get("ssl.ca.pem")) is not None:
            context.load_verify_locations(cadata=text)
        _load_client_certificate(context, settings)
    except (ssl.SSLError, OSError):
        raise CredentialsError(
            "KAFKA_CERTIFICATE_UNREADABLE",
            "A certificate or key is not PEM, does not match the other, or its password is wrong",
            settings.get("ssl.certificate.location") or settings.get("ssl.ca.location") or "kafka.ssl.*",
            "Correct kafka.ssl.*; openssl x509 -in FILE -noout -text shows a certificate.",
        ) from None
    return context


def _load_client_certificate(context: ssl.SSLContext, settings: ClientSettings) -> None:
    revealed = settings.revealed()
    with ExitStack() as files:
        certificate, key = (
            revealed.get(f"ssl.{name}.location") or _private_file(files, revealed.get(f"ssl.{name}.pem"))
            for name in ("certificate", "key")
        )
        if certificate is not None:
            context.load_cert_chain(certificate, key, revealed.get("ssl.key.password", ""))


def _private_file(files: ExitStack, text: str | None) -> str | None:
    """Return a file with a text that only its owner can read, and that ``files`` removes."""
    if text is None:
        return None
    file = files.enter_context(tempfile.NamedTemporaryFile("w", suffix=".pem"))  # noqa: SIM115 - files closes it
    file.write(text)
    file.flush()
    return file.name


# --- the cluster ---------------------------------------------------------------------------------------------------


def _authenticate(options: KafkaReadOptions, clients: ExitStack, opened: list[_Cluster]) -> str:
    # Lines of librdkafka would stand between those of the doctor.
    quiet = replace(options.client, plain=(("log_level", "0"), *options.client.plain))
    lookup = clients.enter_context(KafkaLookup(quiet, options.group_to_start_from, _CALL_SECONDS))
    brokers = lookup.brokers()
    opened.append(_Cluster(options, lookup))
    protocol = options.client.get("security.protocol") or "plaintext"
    return f"accepted ({protocol}), {len(brokers)} broker{'' if len(brokers) == 1 else 's'}"


def _advertised(lookup: KafkaLookup) -> str:
    """Connect to the addresses that brokers advertise to clients: with containers, often ones of another network."""
    brokers = lookup.brokers()
    for name, (host, port) in brokers.items():
        try:
            look_up(host, port)
            connect(host, port)
        except ConnectorError as error:
            raise type(error)(
                "KAFKA_ADVERTISED_UNREACHABLE",
                f"{name} sends clients to {host}:{port}, which this machine does not reach: {error.what}",
                f"{host}:{port}",
                "Correct advertised.listeners of that broker; or make the name resolve here and on the executors.",
            ) from None
    return "; ".join(f"{host}:{port}" for host, port in brokers.values())


class _Cluster:
    """The topics of the options: whether they may be read, and whether what a query begins with is still there."""

    def __init__(self, options: KafkaReadOptions, lookup: KafkaLookup) -> None:
        self.lookup = lookup
        self._options = options
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._earliest: Offsets = {}
        self._latest: Offsets = {}

    def check(self, steps: Steps, checkpoint: Path | None) -> Iterator[Finding]:
        """Take the steps that need the cluster."""
        yield steps.step("resource", self._resource)
        if not self._partitions:
            return
        yield steps.step("retention", self._retention)
        yield steps.step("permission", self._permission)
        if steps.failed:
            return
        if checkpoint is None:
            yield steps.step("starting position", self._starting)
        if self._options.group_to_start_from is not None:
            yield steps.step("consumer group", self._group)
        if checkpoint is not None:
            yield steps.step("checkpoint", lambda: self._checkpoint(checkpoint))

    def _resource(self) -> str | Finding:
        self._partitions = self.lookup.partitions(self._options.strategy)
        if not self._partitions:
            return Finding.warning(
                FORMAT,
                "resource",
                f"no topic matches {self._options.subscribe_pattern!r} now",
                "Correct subscribePattern; or create the topics.",
                "KAFKA_NO_TOPIC",
            )
        topics = sorted({partition.topic for partition in self._partitions})
        shown = ", ".join(topics[:_SHOWN_TOPICS]) + (", ..." if len(topics) > _SHOWN_TOPICS else "")
        return f"{len(self._partitions)} partitions of {shown}"

    def _retention(self) -> str:
        self._earliest, self._latest = self.lookup.earliest(self._partitions), self.lookup.latest(self._partitions)
        retained = sum(self._latest[each] - self._earliest[each] for each in self._latest if each in self._earliest)
        return f"{retained:,} offsets are retained now"

    def _permission(self) -> str:
        for topic in sorted({partition.topic for partition in self._latest}):
            first = min(partition for partition in self._latest if partition.topic == topic)
            end = self._latest[first]
            self.lookup.read_at(first, min(end, max(self._earliest.get(first, 0), end - 1)))
        return "records may be read"

    def _starting(self) -> str:
        start = starting_offsets(self._options, self._partitions, self.lookup)
        self._check_retained(start, "startingOffsets", "Begin at earliest, or at an offset that is retained.")
        behind = self._behind(start)
        return f"a new query begins {behind:,} offsets before the end" if behind else "a new query begins at the end"

    def _group(self) -> str | Finding:
        group = self._options.group_to_start_from
        committed = self.lookup.committed(self._partitions)
        without = self._partitions - set(committed)
        if self._options.start is Anywhere.GROUP and without:
            return Finding.warning(
                FORMAT,
                "consumer group",
                f"{group} has committed nothing for {describe(without)}; these begin at earliest",
                "Correct the name of the group, if it should have.",
                "KAFKA_GROUP_EMPTY",
            )
        if not committed:
            return f"{group} has committed nothing, and need not have"
        return f"{group} is {self._behind(committed):,} offsets behind in {len(committed)} partitions"

    def _behind(self, offsets: Offsets) -> int:
        return sum(max(0, self._latest[each] - offset) for each, offset in offsets.items() if each in self._latest)

    def _checkpoint(self, checkpoint: Path) -> str:
        def check(newest: list[Mapping[str, Any]]) -> str:
            offsets = [read_offset(offset) for offset in newest if "spool" not in offset]
            own = [positions for positions in offsets if set(positions) & set(self._latest)]
            for positions in own:
                action = "See failOnDataLoss; or begin with a new checkpoint."
                self._check_retained(positions, f"checkpoint {checkpoint}", action)
            if not own:
                return f"{checkpoint} has no offset of these topics"
            behind = sum(self._behind(positions) for positions in own)
            return f"its newest batch ends {behind:,} offsets before the end; these are retained"

        return look_at_checkpoint(checkpoint, check)

    def _check_retained(self, start: Offsets, where: str, action: str) -> None:
        """Refuse a start before the first record, which retention has deleted, or after the end."""
        for partition, offset in sorted(start.items()):
            if offset < (first := self._earliest.get(partition, offset)):
                what = f"{partition} would begin at {offset}, and the oldest offset that is retained is {first}"
                raise DataLossError("KAFKA_START_AGED_OUT", what, where, action)
            if offset > (end := self._latest.get(partition, offset)):
                what = f"{partition} would begin at {offset}, and it ends at {end}: was it recreated?"
                raise DataLossError("KAFKA_START_BEYOND_END", what, where, action)
