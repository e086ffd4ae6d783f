"""The checks of ``connectors doctor --format pubsub``, where the packages of the connector are installed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from connectors.core.diagnostics.network import clock_difference, connect, look_up, split_address, tls_handshake
from connectors.core.diagnostics.steps import Finding, Outcome, Steps
from connectors.core.errors import AccessDeniedError, ConnectorError, OptionError, SourceGoneError
from connectors.core.extras import install_advice, ptars_obstacle
from connectors.core.retry import RetryPolicy
from connectors.pubsub import FORMAT
from connectors.pubsub.client.client import PubSubClient, SubscriptionInfo
from connectors.pubsub.client.errors import topic_deleted
from connectors.pubsub.client.wire import modify_ack_deadline_requests
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options
from connectors.pubsub.source.subscription import require_readable
from connectors.spool.admin.doctor import check_object_spool, check_spool

__all__ = ["diagnose"]


_PATIENCE: Final = RetryPolicy(initial_seconds=0.2, cap_seconds=1.0, deadline_seconds=5.0)
_CALL_SECONDS: Final = 10.0
_LONG_DEADLINE: Final = 120
_CLOCK_ODD: Final = 30
_CLOCK_REFUSED: Final = 300
_SHORT_RETENTION: Final = 86_400.0
_NO_ACK_ID: Final = "connectors-doctor"


def diagnose(
    raw: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None, steps: Steps
) -> Iterator[Finding]:
    """Look at options, network, log-in, subscription and spool; takes no message."""
    if obstacle := ptars_obstacle():
        yield Finding.warning(
            FORMAT, "fast decoder", f"{obstacle}; fetchers are slower", install_advice("fast"), "FAST_DECODER_NOT_USED"
        )
    parsed: list[PubSubReadOptions] = []
    yield steps.step("options", lambda: _options(raw, environ, parsed))
    if not parsed:
        return
    options = parsed[0]
    for subscription in options.subscriptions:
        yield from _service(options.alone(subscription), steps)
    root, sources = options.spool_folder, options.subscriptions
    if isinstance(root, str):
        yield from check_object_spool(root, options.store_access, FORMAT, sources, checkpoint)
    else:
        yield from check_spool(root, FORMAT, sources, options.max_spool_bytes, checkpoint)


def _options(raw: Mapping[str, str], environ: Mapping[str, str], parsed: list[PubSubReadOptions]) -> str:
    parsed.append(parse_read_options(raw, environ, streaming=True))
    return f"subscription {', '.join(parsed[0].subscriptions)}"


# --- the service ---------------------------------------------------------------------------------------------------


def _service(options: PubSubReadOptions, steps: Steps) -> Iterator[Finding]:
    """Step by step: name, TCP, TLS, log-in, resource, type, permission, times."""
    transport = options.transport
    host, port = split_address(transport.target, 443)
    yield steps.step("name", lambda: f"{host} is {look_up(host, port)}")
    yield steps.step("tcp", lambda: connect(host, port))
    if transport.secure:
        yield steps.step("tls", lambda: tls_handshake(host, port, ssl.create_default_context()))
        yield steps.step("clock", lambda: _clock(host, port))
    found: list[SubscriptionInfo] = []
    clients: list[PubSubClient] = []

    def log_in() -> str | Finding:
        clients.append(PubSubClient(transport, options.credentials, retry_policy=_PATIENCE))
        return _log_in(clients[0], options, found)

    try:
        yield steps.step("log-in", log_in)
        yield steps.step("resource", lambda: _resource(clients[0], options, found))
        if found:
            yield steps.step("type", lambda: _kind(options, found[0]))
        yield steps.step("permission", lambda: _permission(clients[0], options, found))
        if found and not steps.failed:
            yield steps.step("deadline", lambda: _deadline(found[0]))
            yield steps.step("retention", lambda: _retention(clients[0], options, found[0]))
    finally:
        for client in clients:
            client.close()


def _clock(host: str, port: int) -> str | Finding:
    """Tokens that are signed with a key file hold a time; the service refuses those of a clock that is far off."""
    ahead = clock_difference(host, port, ssl.create_default_context())
    if ahead is None:
        return "not compared: the server does not tell its time"
    found = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} the service"
    mend = "Set this machine's clock by NTP: timedatectl set-ntp true"
    if abs(ahead) > _CLOCK_REFUSED:
        return Finding.failure(FORMAT, "clock", f"{found}: log-ins will be refused", mend, "CLOCK_WRONG")
    if abs(ahead) > _CLOCK_ODD:
        return Finding.warning(FORMAT, "clock", found, mend, "CLOCK_WRONG")
    return found


def _log_in(client: PubSubClient, options: PubSubReadOptions, found: list[SubscriptionInfo]) -> str:
    """Ask for the subscription: an answer of any kind, also a refusal, means that the log-in is accepted."""
    how = "accepted" if options.transport.secure else "none is needed without TLS"
    try:
        found.append(client.get_subscription(options.subscription))
    except (AccessDeniedError, SourceGoneError):
        return how
    return how


def _resource(client: PubSubClient, options: PubSubReadOptions, found: list[SubscriptionInfo]) -> str | Finding:
    if found:
        return f"the subscription is there, of topic {found[0].topic}"
    try:
        found.append(client.get_subscription(options.subscription))
    except AccessDeniedError as error:
        return Finding.from_error(FORMAT, "resource", error, Outcome.WARNING)
    except SourceGoneError:
        if options.topic is None:
            raise
        client.get_topic_retention(options.topic)
        return f"the subscription is absent; it will be made on {options.topic} if the spool is new"
    return "the subscription is there"


def _permission(client: PubSubClient, options: PubSubReadOptions, found: list[SubscriptionInfo]) -> str | Finding:
    """Whether messages may be taken: asked with an ack id that no message has, so that nothing happens."""
    if not found:
        return Finding(FORMAT, "permission", Outcome.SKIPPED, "not tried, because the subscription was not seen")
    [request] = modify_ack_deadline_requests(options.subscription, pa.array([_NO_ACK_ID]), 10)
    try:
        client.modify_ack_deadline(options.subscription, request, timeout_seconds=_CALL_SECONDS)
    except ConnectorError as error:
        if error.code != "PUBSUB_CALL_FAILED":  # else the id was refused, which comes after the permission
            raise
    return "messages may be taken (pubsub.subscriptions.consume)"


def _kind(options: PubSubReadOptions, info: SubscriptionInfo) -> str | Finding:
    require_readable(info)
    if info.topic_is_deleted:
        raise topic_deleted(info.name)
    if options.topic is not None and info.topic != options.topic:
        raise OptionError(
            "PUBSUB_TOPIC_MISMATCH",
            f"The subscription belongs to {info.topic}, and the option topicId says {options.topic}",
            info.name,
            "Leave topicId out, or give the topic that the subscription belongs to.",
        )
    if info.message_ordering and options.fetchers > 1:
        raise OptionError(
            "PUBSUB_ORDERED_ONE_FETCHER",
            f"The option fetchers is {options.fetchers}, and messages with an ordering key are fetched by one process",
            info.name,
            "Leave fetchers out, or raise streams.",
        )
    if info.filter:
        return Finding.warning(
            FORMAT,
            "type",
            f"a filter keeps messages away: {info.filter[:200]}",
            "If every message is wanted, use a subscription without a filter.",
            "PUBSUB_FILTER",
        )
    if info.exactly_once_delivery:
        return Finding.warning(
            FORMAT,
            "type",
            "pull, with the service's exactly-once delivery, which is slower and not needed: the spool "
            "strikes duplicates out",
            "Switch it off, or use another subscription, if throughput matters.",
            "PUBSUB_EXACTLY_ONCE_DELIVERY",
        )
    return f"pull{', with message ordering' if info.message_ordering else ''}"


def _deadline(info: SubscriptionInfo) -> str | Finding:
    seconds = info.ack_deadline_seconds
    if seconds > _LONG_DEADLINE:
        return Finding.warning(
            FORMAT,
            "deadline",
            f"{seconds} s: what a crashed fetcher held comes back only after that",
            "Lower it: gcloud pubsub subscriptions update NAME --ack-deadline=10",
            "PUBSUB_LONG_DEADLINE",
        )
    return f"{seconds} s; fetchers extend it while they hold messages"


def _retention(client: PubSubClient, options: PubSubReadOptions, info: SubscriptionInfo) -> str | Finding:
    """How long the query may stand still, and how long ids have to be kept."""
    kept = info.retention_seconds
    topic = info.topic_retention_seconds
    if topic is None:
        try:
            topic = client.get_topic_retention(info.topic)
        except AccessDeniedError as error:
            return Finding.from_error(FORMAT, "retention", error, Outcome.WARNING)
    longest = max(kept, topic or 0.0)
    if options.dedup_horizon is not None and options.dedup_horizon < longest:
        return Finding.warning(
            FORMAT,
            "retention",
            f"dedupHorizon is {options.dedup_horizon:g} s, and messages are kept for {longest:g} s: one that is "
            "redelivered later gives a second row",
            "Leave dedupHorizon out.",
            "PUBSUB_DEDUP_HORIZON_SHORT",
        )
    if kept < _SHORT_RETENTION:
        return Finding.warning(
            FORMAT,
            "retention",
            f"{kept:g} s: what is not fetched by then is lost, also while the query stands still",
            "Raise it: gcloud pubsub subscriptions update NAME --message-retention-duration=7d",
            "PUBSUB_SHORT_RETENTION",
        )
    return f"{kept / 86_400:g} days; a query that stands still longer loses messages"
