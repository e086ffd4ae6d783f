"""The checks of ``connectors doctor --format pubsub``, where the packages of the connector are installed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from connectors.core.diagnostics import (
    Finding,
    Outcome,
    Steps,
    clock_difference,
    connect,
    look_up,
    split_address,
    tls_handshake,
)
from connectors.core.errors import AccessDeniedError, ConnectorError, SourceGoneError
from connectors.core.extras import install_advice, ptars_obstacle
from connectors.core.retry import OutageRule
from connectors.pubsub import FORMAT
from connectors.pubsub.client.client import PubSubClient, SubscriptionInfo
from connectors.pubsub.client.errors import topic_deleted
from connectors.pubsub.client.wire import modify_ack_deadline_requests
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options
from connectors.pubsub.source.subscription import require_one_fetcher, require_readable, require_topic
from connectors.spool.admin.doctor import check_object_spool, check_spool

_PATIENCE: Final = OutageRule(5.0, "", cap_seconds=1.0)
_CALL_SECONDS: Final = 10.0
_LONG_DEADLINE: Final = 120
_CLOCK_ODD: Final = 30
_CLOCK_REFUSED: Final = 300
_SHORT_RETENTION: Final = 86_400.0
_NO_ACK_ID: Final = "connectors-doctor"


def diagnose(
    raw: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None, steps: Steps
) -> Iterator[Finding]:
    """Check options, network, authentication, subscription and spool; receives no message."""
    if obstacle := ptars_obstacle():
        yield Finding.warning(
            FORMAT, "fast decoder", f"{obstacle}; fetchers are slower", install_advice("fast"), "FAST_DECODER_NOT_USED"
        )
    parsed: list[PubSubReadOptions] = []

    def parse() -> str:
        parsed.append(parse_read_options(raw, environ, streaming=True))
        return f"subscription {', '.join(parsed[0].subscriptions)}"

    yield steps.step("options", parse)
    if not parsed:
        return
    [options] = parsed
    for subscription in options.subscriptions:
        yield from _service(options.alone(subscription), steps)
    root, sources = options.spool_folder, options.subscriptions
    if isinstance(root, str):
        yield from check_object_spool(root, options.store_access, FORMAT, sources, checkpoint)
    else:
        yield from check_spool(root, FORMAT, sources, options.max_spool_bytes, checkpoint)


def _warning(check: str, problem: str, fix: str, code: str) -> Finding:
    return Finding.warning(FORMAT, check, problem, fix, code)


def _clock(host: str, port: int) -> str | Finding:
    # Tokens that a key file signs hold a time, and the service refuses those of a wrong clock.
    ahead = clock_difference(host, port, ssl.create_default_context())
    if ahead is None:
        return "not compared: the server does not tell its time"
    difference = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} the service"
    fix = "Set this machine's clock by NTP: timedatectl set-ntp true"
    if abs(ahead) > _CLOCK_REFUSED:
        return Finding.failure(
            FORMAT, "clock", f"{difference}: the service will refuse to authenticate this machine", fix, "CLOCK_WRONG"
        )
    if abs(ahead) > _CLOCK_ODD:
        return _warning("clock", difference, fix, "CLOCK_WRONG")
    return difference


def _service(options: PubSubReadOptions, steps: Steps) -> Iterator[Finding]:
    transport = options.transport
    host, port = split_address(transport.target, 443)
    yield steps.step("name", lambda: f"{host} is {look_up(host, port)}")
    yield steps.step("tcp", lambda: connect(host, port))
    if transport.secure:
        yield steps.step("tls", lambda: tls_handshake(host, port, ssl.create_default_context()))
        yield steps.step("clock", lambda: _clock(host, port))
    infos: list[SubscriptionInfo] = []
    clients: list[PubSubClient] = []

    def authenticate() -> str:
        clients.append(PubSubClient(transport, options.credentials, outage_rule=_PATIENCE))
        # A response of any kind, also a refusal, means that the credentials are accepted.
        with suppress(AccessDeniedError, SourceGoneError):
            clients[0].get_subscription(options.subscription)
        return "accepted" if transport.secure else "none is needed without TLS"

    try:
        yield steps.step("authentication", authenticate)
        yield steps.step("resource", lambda: _resource(clients[0], options, infos))
        if infos:
            yield steps.step("type", lambda: _type(options, infos[0]))
        yield steps.step("permission", lambda: _permission(clients[0], options))
        if infos and not steps.failed:
            yield steps.step("deadline", lambda: _deadline(infos[0]))
            yield steps.step("retention", lambda: _retention(clients[0], options, infos[0]))
    finally:
        for client in clients:
            client.close()


def _resource(client: PubSubClient, options: PubSubReadOptions, infos: list[SubscriptionInfo]) -> str | Finding:
    try:
        infos.append(client.get_subscription(options.subscription))
    except AccessDeniedError as error:
        return Finding.from_error(FORMAT, "resource", error, Outcome.WARNING)
    except SourceGoneError:
        if options.topic is None:
            raise
        client.get_topic_retention(options.topic)
        return f"the subscription is absent; it will be created on {options.topic} if the spool is new"
    return f"the subscription is there, of topic {infos[0].topic}"


def _permission(client: PubSubClient, options: PubSubReadOptions) -> str | Finding:
    """Check whether messages may be pulled, with an ack id that no message has, so that nothing happens."""
    [request] = modify_ack_deadline_requests(options.subscription, pa.array([_NO_ACK_ID]), 10)
    try:
        client.modify_ack_deadline(options.subscription, request, timeout_seconds=_CALL_SECONDS)
    except SourceGoneError:
        return Finding(FORMAT, "permission", Outcome.SKIPPED, "not checked, because the subscription does not exist")
    except ConnectorError as error:
        if error.code != "PUBSUB_CALL_FAILED":  # the service refused the id, so it had already accepted the permission
            raise
    return "messages may be taken (pubsub.subscriptions.consume)"


def _type(options: PubSubReadOptions, info: SubscriptionInfo) -> str | Finding:
    require_readable(info)
    if info.topic_is_deleted:
        raise topic_deleted(info.name)
    require_topic(options, info)
    require_one_fetcher(options, info)
    if info.filter:
        problem = f"a filter keeps messages away: {info.filter[:200]}"
        return _warning("type", problem, "To get every message, use a subscription without a filter.", "PUBSUB_FILTER")
    if info.exactly_once_delivery:
        return _warning(
            "type",
            "pull, with the service's exactly-once delivery, which is slower and not needed: the spool deduplicates",
            "Switch it off, or use another subscription, if throughput matters.",
            "PUBSUB_EXACTLY_ONCE_DELIVERY",
        )
    return f"pull{', with message ordering' if info.message_ordering else ''}"


def _deadline(info: SubscriptionInfo) -> str | Finding:
    seconds = info.ack_deadline_seconds
    if seconds > _LONG_DEADLINE:
        return _warning(
            "deadline",
            f"{seconds} s: the messages of a crashed fetcher are redelivered only after that",
            "Lower it: gcloud pubsub subscriptions update NAME --ack-deadline=10",
            "PUBSUB_LONG_DEADLINE",
        )
    return f"{seconds} s; fetchers extend it while they hold messages"


def _retention(client: PubSubClient, options: PubSubReadOptions, info: SubscriptionInfo) -> str | Finding:
    retention, topic = info.retention_seconds, info.topic_retention_seconds
    if topic is None:
        try:
            topic = client.get_topic_retention(info.topic)
        except AccessDeniedError as error:
            return Finding.from_error(FORMAT, "retention", error, Outcome.WARNING)
    longest = max(retention, topic or 0.0)
    if options.dedup_horizon is not None and options.dedup_horizon < longest:
        return _warning(
            "retention",
            f"dedupHorizon is {options.dedup_horizon:g} s, and messages are retained for {longest:g} s: one that is "
            "redelivered later gives a second row",
            "Leave dedupHorizon out.",
            "PUBSUB_DEDUP_HORIZON_SHORT",
        )
    if retention < _SHORT_RETENTION:
        return _warning(
            "retention",
            f"{retention:g} s: what is not fetched by then is lost, also while the query stands still",
            "Raise it: gcloud pubsub subscriptions update NAME --message-retention-duration=7d",
            "PUBSUB_SHORT_RETENTION",
        )
    return f"{retention / 86_400:g} days; a query that stands still longer loses messages"
