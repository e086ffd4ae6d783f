"""The checks of ``connectors doctor --format kafka_py``, where the packages of the connector are installed."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from connectors.core.diagnostics.checkpoint import look_at_checkpoint
from connectors.core.diagnostics.network import connect, look_up, split_address, tls_handshake
from connectors.core.diagnostics.steps import Finding, Outcome, Steps
from connectors.core.errors import ConnectorError, CredentialsError, DataLossError
from connectors.kafka import FORMAT
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.client.factory import check_settings
from connectors.kafka.offsets import Group, Offsets, TopicPartition, describe, read_offset
from connectors.kafka.options.client import ClientSettings, is_true
from connectors.kafka.options.source import KafkaReadOptions, parse_read_options
from connectors.kafka.source.starting_offsets import resolve

__all__ = ["diagnose"]


_PORT: Final = 9092
_CALL_SECONDS: Final = 8.0


def diagnose(
    raw: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None, steps: Steps
) -> Iterator[Finding]:
    """Look at options, network, log-in, topics, positions and consumer group; reads at most one record."""
    parsed: list[KafkaReadOptions] = []
    yield steps.step("options", lambda: _options(raw, environ, parsed))
    if not parsed:
        return
    options = parsed[0]
    yield from _network(options.client, steps)
    opened: list[KafkaLookup] = []
    try:
        yield steps.step("log-in", lambda: _log_in(options, opened))
        if opened:
            yield steps.step("advertised", lambda: _advertised(opened[0]))
            yield from _topics(options, opened[0], steps, checkpoint)
    finally:
        for lookup in opened:
            lookup.close()


def _options(raw: Mapping[str, str], environ: Mapping[str, str], parsed: list[KafkaReadOptions]) -> str:
    options = parse_read_options(raw, environ, streaming=True)
    check_settings(options.client)
    parsed.append(options)
    return f"servers {options.bootstrap_servers}"


# --- the network ---------------------------------------------------------------------------------------------------


def _network(settings: ClientSettings, steps: Steps) -> Iterator[Finding]:
    """Name, TCP and TLS of the servers to begin with; one that is well is enough."""
    servers = [
        split_address(each.strip().rpartition("://")[2], _PORT)
        for each in (settings.get("bootstrap.servers") or "").split(",")
        if each.strip()
    ]
    reached = list(servers)

    def each_server(check: str, look: Callable[[str, int], str]) -> Finding:
        return steps.step(check, lambda: _enough(check, reached, look))

    yield each_server("name", lambda host, port: f"{host} is {look_up(host, port)}")
    yield each_server("tcp", connect)
    if (settings.get("security.protocol") or "").upper().endswith("SSL"):
        yield steps.step("certificates", lambda: _certificate_files(settings))
        if not steps.failed:
            yield each_server("tls", lambda host, port: _tls(settings, host, port))


def _enough(check: str, reached: list[tuple[str, int]], look: Callable[[str, int], str]) -> str | Finding:
    """Look at each server, and keep those that are well; raises the first error if none is."""
    errors: list[ConnectorError] = []
    seen: list[str] = []
    for host, port in list(reached):
        try:
            seen.append(look(host, port))
        except ConnectorError as error:
            errors.append(error)
            reached.remove((host, port))
    if not seen:
        raise errors[0]
    if errors:
        return Finding.from_error(FORMAT, check, errors[0], Outcome.WARNING)
    return "; ".join(seen)


def _certificate_files(settings: ClientSettings) -> str:
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.keystore.location"):
        path = settings.get(name)
        if path is None or path == "probe":
            continue
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise CredentialsError(
                "KAFKA_CERTIFICATE_UNREADABLE",
                f"The file of kafka.{name} cannot be read: {error.strerror}",
                path,
                "Correct the path; driver and executors must see it under the same one.",
            ) from None
    return "the files that options name can be read"


def _tls(settings: ClientSettings, host: str, port: int) -> str:
    """Agree upon TLS with a server; a certificate in PKCS12, which the standard library cannot read, is not tried."""
    in_store = settings.get("ssl.keystore.location") is not None
    try:
        seen = tls_handshake(host, port, _tls_context(settings))
    except CredentialsError as error:
        if not in_store or error.code != "TLS_CLIENT_CERTIFICATE":
            raise
        seen = f"{host} speaks TLS and wants a certificate of the client"
    return f"{seen}; the one in PKCS12 is not tried here, the log-in does that" if in_store else seen


def _tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """The client's settings of TLS, as far as the standard library can follow them."""
    context = ssl.create_default_context()
    if not is_true(settings.get("enable.ssl.certificate.verification") or "true"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    try:
        if (authority := settings.get("ssl.ca.location")) is not None:
            place = Path(authority)
            context.load_verify_locations(*([None, authority] if place.is_dir() else [authority]))
        if (text := settings.get("ssl.ca.pem")) is not None:
            context.load_verify_locations(cadata=text)
        _load_client_certificate(context, settings)
    except (ssl.SSLError, OSError):
        raise CredentialsError(
            "KAFKA_CERTIFICATE_UNREADABLE",
            "A certificate or key is no PEM, does not fit the other, or its password is wrong",
            settings.get("ssl.certificate.location") or settings.get("ssl.ca.location") or "kafka.ssl.*",
            "Correct kafka.ssl.*; openssl x509 -in FILE -noout -text shows a certificate.",
        ) from None
    return context


def _load_client_certificate(context: ssl.SSLContext, settings: ClientSettings) -> None:
    """Load the client's certificate and key, from files or from the options themselves."""
    given = settings.revealed()
    with ExitStack() as files:
        certificate, key = (
            given.get(f"ssl.{name}.location") or _private_file(files, given.get(f"ssl.{name}.pem"))
            for name in ("certificate", "key")
        )
        if certificate is not None:
            context.load_cert_chain(certificate, key, given.get("ssl.key.password", ""))


def _private_file(files: ExitStack, text: str | None) -> str | None:
    """A file with a text, which ``files`` removes; only its owner can read it. The standard library wants a file."""
    if text is None:
        return None
    file = files.enter_context(tempfile.NamedTemporaryFile("w", suffix=".pem"))  # noqa: SIM115 - it is closed by these
    file.write(text)
    file.flush()
    return file.name


# --- the cluster ---------------------------------------------------------------------------------------------------


def _log_in(options: KafkaReadOptions, opened: list[KafkaLookup]) -> str:
    # What librdkafka logs by itself would stand between the lines of the doctor.
    quiet = replace(options.client, plain=(("log_level", "0"), *options.client.plain))
    lookup = KafkaLookup(quiet, options.group_to_start_from, _CALL_SECONDS)
    try:
        brokers = lookup.brokers()
    except BaseException:
        lookup.close()
        raise
    opened.append(lookup)
    how = options.client.get("security.protocol") or "plaintext"
    return f"accepted ({how}), {len(brokers)} broker{'' if len(brokers) == 1 else 's'}"


def _advertised(lookup: KafkaLookup) -> str:
    """A client is sent on to the addresses that brokers advertise: with containers, often ones of another network."""
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
                "Correct advertised.listeners of that broker; or make the name known here and on the executors.",
            ) from None
    return "; ".join(f"{host}:{port}" for host, port in brokers.values())


def _topics(options: KafkaReadOptions, lookup: KafkaLookup, steps: Steps, checkpoint: Path | None) -> Iterator[Finding]:
    """The topics, whether they may be read, and whether what the query begins with is still there."""
    partitions: set[TopicPartition] = set()
    kept: list[tuple[Offsets, Offsets]] = []
    yield steps.step("resource", lambda: _resource(options, lookup, partitions))
    if not partitions:
        return
    yield steps.step("retention", lambda: _retention(lookup, partitions, kept))
    yield steps.step("permission", lambda: _permission(lookup, kept[0]))
    if not steps.failed:
        yield steps.step("starting position", lambda: _starting(options, lookup, partitions, kept[0]))
        if options.group_to_start_from is not None:
            yield steps.step("consumer group", lambda: _group(options, lookup, partitions, kept[0]))
        if checkpoint is not None:
            yield steps.step(
                "checkpoint", lambda: look_at_checkpoint(checkpoint, partial(_checkpoint, checkpoint, kept[0]))
            )


def _resource(options: KafkaReadOptions, lookup: KafkaLookup, partitions: set[TopicPartition]) -> str | Finding:
    if options.strategy is not None:
        partitions.update(lookup.partitions(options.strategy))
    if not partitions:
        return Finding.warning(
            FORMAT,
            "resource",
            f"no topic matches {options.subscribe_pattern!r} now",
            "Correct subscribePattern; or make the topics.",
            "KAFKA_NO_TOPIC",
        )
    topics = sorted({each.topic for each in partitions})
    shown = ", ".join(topics[:5]) + (", ..." if len(topics) > 5 else "")  # noqa: PLR2004 - enough to recognise them
    return f"{len(partitions)} partitions of {shown}"


def _retention(lookup: KafkaLookup, partitions: set[TopicPartition], kept: list[tuple[Offsets, Offsets]]) -> str:
    earliest, latest = lookup.earliest(partitions), lookup.latest(partitions)
    kept.append((earliest, latest))
    records = sum(latest[each] - earliest[each] for each in latest if each in earliest)
    return f"{records:,} offsets are kept now"


def _permission(lookup: KafkaLookup, kept: tuple[Offsets, Offsets]) -> str:
    earliest, latest = kept
    for topic in sorted({each.topic for each in latest}):
        first = min(each for each in latest if each.topic == topic)
        lookup.read_at(first, min(latest[first], max(earliest.get(first, 0), latest[first] - 1)))
    return "records may be read"


def _starting(
    options: KafkaReadOptions, lookup: KafkaLookup, partitions: set[TopicPartition], kept: tuple[Offsets, Offsets]
) -> str:
    """A new query would begin here."""
    position = options.starting(streaming=True)
    from_latest = options.starting_no_match.value == "latest"
    start = resolve(position, partitions, lookup, "start", latest_if_none=from_latest)
    _check_kept(start, kept, "startingOffsets", "Begin at earliest, or at an offset that is kept.")
    waiting = sum(max(0, kept[1][each] - offset) for each, offset in start.items() if each in kept[1])
    return f"a new query begins {waiting:,} offsets before the end"


def _group(
    options: KafkaReadOptions, lookup: KafkaLookup, partitions: set[TopicPartition], kept: tuple[Offsets, Offsets]
) -> str | Finding:
    group = options.group_to_start_from
    committed = lookup.committed(partitions)
    without = partitions - set(committed)
    if isinstance(options.start, Group) and without:
        return Finding.warning(
            FORMAT,
            "consumer group",
            f"{group} has committed nothing for {describe(without)}; these begin at earliest",
            "Correct the name of the group, if it should have.",
            "KAFKA_GROUP_EMPTY",
        )
    behind = sum(max(0, kept[1][each] - offset) for each, offset in committed.items() if each in kept[1])
    return f"{group} is {behind:,} offsets behind in {len(committed)} partitions"


def _checkpoint(checkpoint: Path, kept: tuple[Offsets, Offsets], newest: list[Mapping[str, Any]]) -> str:
    offsets = [read_offset(each) for each in newest if "spool" not in each]
    mine = [each for each in offsets if set(each) & set(kept[1])]
    for each in mine:
        _check_kept(each, kept, f"checkpoint {checkpoint}", "See failOnDataLoss; or begin with a new checkpoint.")
    return "it goes on at offsets that are kept" if mine else f"{checkpoint} holds no offset of these topics yet"


def _check_kept(start: Mapping[TopicPartition, int], kept: tuple[Offsets, Offsets], where: str, mend: str) -> None:
    """Refuse a start that retention has taken, or that is behind the end.

    Raises:
        DataLossError: it is so.
    """
    earliest, latest = kept
    for each, offset in sorted(start.items()):
        if each in earliest and offset < earliest[each]:
            what = f"{each} would begin at {offset}, and the oldest that is kept is {earliest[each]}"
            raise DataLossError("KAFKA_START_AGED_OUT", what, where, mend)
        if each in latest and offset > latest[each]:
            what = f"{each} would begin at {offset}, and it ends at {latest[each]}: was it made anew?"
            raise DataLossError("KAFKA_START_BEYOND_END", what, where, mend)
