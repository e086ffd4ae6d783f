"""The checks of ``connectors doctor --format pubsub``, where the packages of the connector are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Final

import pyarrow as pa

from connectors.core.diagnostics import CHECKS, Finding, FindingError, reach, run_checks, split_address
from connectors.core.errors import AccessDeniedError, ConnectorError, SourceGoneError
from connectors.core.formats import install_advice, ptars_obstacle
from connectors.core.retry import OutageRule
from connectors.pubsub import FORMAT
from connectors.pubsub.client.client import PubSubClient
from connectors.pubsub.client.errors import topic_deleted
from connectors.pubsub.client.wire import modify_ack_deadline_requests
from connectors.pubsub.options.source import PubSubReadOptions, parse_read_options
from connectors.pubsub.source.micro_batch import require_one_fetcher, require_topic
from connectors.spool.admin.doctor import check_spool

_PATIENCE: Final = OutageRule(5.0, cap_seconds=1.0)
_CALL_SECONDS: Final = 10.0
_NO_ACK_ID: Final = "connectors-doctor"


def diagnose(raw: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check options, network, authentication, subscription and spool; receives no message."""
    parsed: list[PubSubReadOptions] = []

    def parse() -> Iterator[str | ConnectorError]:
        obstacle = ptars_obstacle()
        advice = install_advice("fast")
        yield FindingError("FAST_DECODER_NOT_USED", obstacle, "", advice) if obstacle else "it is used"
        parsed.append(parse_read_options(raw, environ, streaming=True))
        yield f"subscription {', '.join(parsed[0].subscriptions)}"

    yield from run_checks(FORMAT, ("fast decoder", CHECKS[0]), parse())
    for options in parsed:
        for subscription in options.subscriptions:
            yield from run_checks(FORMAT, CHECKS[1:], _service(options.alone(subscription)))
        root, access = str(options.spool_folder), options.store_access
        yield from check_spool(root, FORMAT, options.subscriptions, options.max_spool_bytes, access)


def _service(options: PubSubReadOptions) -> Iterator[str | ConnectorError]:
    transport = options.transport
    yield reach(*split_address(transport.target, 443), tls=transport.secure)
    with closing(PubSubClient(transport, options.credentials, outage_rule=_PATIENCE)) as client:
        # A response of any kind, also a refusal, means that the credentials are accepted.
        with suppress(AccessDeniedError, SourceGoneError):
            client.get_subscription(options.subscription)
        yield "accepted" if transport.secure else "none is needed without TLS"
        yield _list(client, options)
        yield _read(client, options)


def _list(client: PubSubClient, options: PubSubReadOptions) -> str | ConnectorError:
    try:
        info = client.get_subscription(options.subscription)
    except AccessDeniedError as error:
        return error
    except SourceGoneError:
        if options.topic is None:
            raise
        client.get_topic_retention(options.topic)
        return f"the subscription is absent; it will be created on {options.topic} if the spool is new"
    info.check_readable()
    if info.topic_is_deleted:
        raise topic_deleted(info.name)
    require_topic(options, info)
    require_one_fetcher(options, info)
    if info.filter:
        return FindingError(
            "PUBSUB_FILTER",
            f"the subscription has a filter, so it does not deliver every message: {info.filter[:200]}",
            info.name,
        )
    return f"the subscription of topic {info.topic} retains messages for {info.retention_seconds:g} s"


def _read(client: PubSubClient, options: PubSubReadOptions) -> str:
    """Check whether messages may be pulled, with an ack id that no message has, so that nothing happens."""
    [request] = modify_ack_deadline_requests(options.subscription, pa.array([_NO_ACK_ID]), 10)
    try:
        client.modify_ack_deadline(options.subscription, request, timeout_seconds=_CALL_SECONDS)
    except SourceGoneError:
        return "not checked, because the subscription does not exist"
    except ConnectorError as error:
        if error.code != "PUBSUB_CALL_FAILED":  # the service refused the id, so it had already accepted the permission
            raise
    return "messages may be taken (pubsub.subscriptions.consume)"
