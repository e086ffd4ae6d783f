"""The checks of ``connectors doctor --format kafka_py``, where the packages of the connector are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from connectors.core.diagnostics import CHECKS, Finding, FindingError, reach, run_checks, split_address
from connectors.core.errors import ConnectorError
from connectors.kafka import FORMAT
from connectors.kafka.client.admin import KafkaLookup
from connectors.kafka.client.factory import check_settings
from connectors.kafka.options.source import parse_read_options

_PORT: Final = 9092
_CALL_SECONDS: Final = 8.0
_SHOWN_TOPICS: Final = 5


def diagnose(raw: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check options, network, authentication and topics; reads at most one record per topic."""
    return run_checks(FORMAT, (*CHECKS[:3], "advertised", *CHECKS[3:]), _results(raw, environ))


def _results(raw: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str | ConnectorError]:
    options = parse_read_options(raw, environ, streaming=True)
    check_settings(options.client)
    yield f"servers {options.bootstrap_servers}"
    yield _reach((options.client.get("bootstrap.servers") or "").split(","))
    # Lines of librdkafka would stand between those of the doctor.
    quiet = replace(options.client, plain=(("log_level", "0"), *options.client.plain))
    with KafkaLookup(quiet, options.group_to_start_from, _CALL_SECONDS) as lookup:
        brokers = lookup.brokers()
        yield f"accepted ({options.client.get('security.protocol') or 'plaintext'}), {len(brokers)} brokers"
        yield _advertised(brokers)
        partitions = lookup.partitions(options.strategy)
        topics = {partition.topic: partition for partition in sorted(partitions, reverse=True)}
        shown = ", ".join(sorted(topics)[:_SHOWN_TOPICS]) + (", ..." if len(topics) > _SHOWN_TOPICS else "")
        if topics:
            yield f"{len(partitions)} partitions of {shown}"
        else:
            yield FindingError("KAFKA_NO_TOPIC", f"no topic matches {options.subscribe_pattern!r} now")
        earliest, latest = lookup.earliest(partitions), lookup.latest(partitions)
        for first in topics.values():
            end = latest[first]
            lookup.read_at(first, min(end, max(earliest.get(first, 0), end - 1)))
        retained = sum(end - earliest.get(partition, end) for partition, end in latest.items())
        yield f"records may be read; {retained:,} offsets are retained"


def _reach(addresses: list[str]) -> str | ConnectorError:
    """Connect to the servers in the options; one that accepts is enough. The client checks certificates."""
    errors: list[ConnectorError] = []
    results: list[str] = []
    for address in addresses:
        try:
            results.append(reach(*split_address(address.strip(), _PORT)))
        except ConnectorError as error:
            errors.append(error)
    if not results:
        raise errors[0]
    return errors[0] if errors else "; ".join(results)


def _advertised(brokers: Mapping[str, tuple[str, int]]) -> str:
    """Connect to the addresses that brokers advertise to clients: with containers, often ones of another network."""
    for name, (host, port) in brokers.items():
        try:
            reach(host, port)
        except ConnectorError as error:
            what = f"{name} sends clients to {host}:{port}, which this machine cannot reach: {error.what}"
            raise type(error)("KAFKA_ADVERTISED_UNREACHABLE", what, f"{host}:{port}") from None
    return "; ".join(f"{host}:{port}" for host, port in brokers.values())
