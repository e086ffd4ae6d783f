"""The checks of ``connectors doctor --format kinesis``, where the packages of the connector are installed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from connectors.core.diagnostics import (
    Finding,
    Outcome,
    Steps,
    clock_difference,
    connect,
    look_at_checkpoint,
    look_up,
    tls_handshake,
)
from connectors.core.errors import AccessDeniedError, ConnectorError, DataLossError, SourceGoneError
from connectors.kinesis import FORMAT
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.client.shared import patiently
from connectors.kinesis.fan_out.consumers import check_room, registered_consumer
from connectors.kinesis.offsets import LATEST, TRIM, Kind, Streams, StreamState, read_offset
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import KinesisReadOptions, parse_read_options
from connectors.kinesis.shards import Listing, resolve, unproven, with_unread
from connectors.kinesis.source.interleaving import task_count
from connectors.kinesis.source.micro_batch import check_named, same_stream
from connectors.kinesis.source.reader import ShardPages, check_trimmed, check_vanished

_RETRIES: Final = 2
_RETRY_SECONDS: Final = 1.0
_CLOCK_REFUSED: Final = 300
_HOUR_MS: Final = 3_600_000
_WARNED_TASKS: Final = 1000


def diagnose(
    raw: Mapping[str, str], environ: Mapping[str, str], checkpoint: Path | None, steps: Steps
) -> Iterator[Finding]:
    """Check options, credentials, network, authentication, streams and positions; keeps no record."""
    parsed: list[KinesisReadOptions] = []
    yield steps.step("options", lambda: _options(raw, environ, parsed))
    if not parsed:
        return
    options = parsed[0]
    client = KinesisClient(client_options(options))
    role = f", as {options.role_arn}" if options.role_arn is not None else ""
    yield steps.step("credentials", lambda: f"found ({client.credentials()}{role})")
    yield from _network(client, steps)
    listings: list[Listing] = []
    yield steps.step("authentication", lambda: _authenticate(client, options))
    yield steps.step("resource", lambda: _resource(client, options))
    yield steps.step("permission", lambda: _permission(client, options, listings))
    if options.consumers:
        yield steps.step("consumer", lambda: _consumers(client, options, listings))
    if steps.failed:
        return
    yield steps.step("shards", lambda: _shards(options, listings))
    yield steps.step("retention", lambda: _retention(listings))
    yield steps.step("starting position", lambda: _starting(client, options, listings))
    if checkpoint is not None:
        find = partial(_checkpoint, checkpoint, client, options, listings)
        yield steps.step("checkpoint", lambda: look_at_checkpoint(checkpoint, find))


def _options(raw: Mapping[str, str], environ: Mapping[str, str], parsed: list[KinesisReadOptions]) -> str:
    options = parse_read_options(raw, environ, streaming=True)
    # A doctor says soon what is wrong.
    retries = _RETRIES if options.num_retries is None else min(options.num_retries, _RETRIES)
    parsed.append(replace(options, num_retries=retries, max_retry_interval=_RETRY_SECONDS))
    return f"{'stream' if len(options.streams) == 1 else 'streams'} {', '.join(options.streams)}"


def _network(client: KinesisClient, steps: Steps) -> Iterator[Finding]:
    urls: list[str] = []

    def address() -> str:
        region, url = client.address()
        urls.append(url)
        return f"{url}, region {region}"

    yield steps.step("endpoint", address)
    if not urls:
        return
    url = urlsplit(urls[0])
    secure = url.scheme == "https"
    host, port = url.hostname or "", url.port or (443 if secure else 80)
    yield steps.step("name", lambda: f"{host} is {look_up(host, port)}")
    yield steps.step("tcp", lambda: connect(host, port))
    if secure:
        yield steps.step("tls", lambda: tls_handshake(host, port, ssl.create_default_context()))
        yield steps.step("clock", lambda: _clock(host, port))


def _clock(host: str, port: int) -> str | Finding:
    """Signatures hold a time; the service refuses those that are more than five minutes off."""
    ahead = clock_difference(host, port, ssl.create_default_context())
    if ahead is None:
        return "not compared: the server does not tell its time"
    shown = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} the service"
    if abs(ahead) > _CLOCK_REFUSED:
        action = "Set this machine's clock by NTP: timedatectl set-ntp true"
        return Finding.failure(FORMAT, "clock", f"{shown}: calls will be refused", action, "CLOCK_WRONG")
    return shown


def _authenticate(client: KinesisClient, options: KinesisReadOptions) -> str:
    """Ask for a stream: any response, also that it may not be seen, means that the keys are accepted."""
    with suppress(AccessDeniedError, SourceGoneError):
        patiently(partial(client.describe, options.streams[0]), options)
    return "accepted"


def _resource(client: KinesisClient, options: KinesisReadOptions) -> str:
    described = []
    for stream in options.streams:
        summary = patiently(partial(client.describe, stream), options)
        mode = summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED").replace("_", " ").lower()
        described.append(f"{summary['StreamName']} is {summary['StreamStatus']}, {mode}")
    return "; ".join(described)


def _permission(client: KinesisClient, options: KinesisReadOptions, listings: list[Listing]) -> str:
    """Make each call that a query makes, once a stream: at most one record of each is read, and dropped."""
    for stream in options.streams:
        listing = patiently(partial(client.listing, stream), options)
        listings.append(listing)
        shard = min((shard_id for shard_id, listed in listing.shards.items() if not listed.closed), default=None)
        if shard is not None:
            iterator = patiently(partial(client.iterator, stream, shard, TRIM), options)
            patiently(partial(client.records, iterator, 1, stream, shard), options)
    return "shards may be listed and records may be read"


def _consumers(client: KinesisClient, options: KinesisReadOptions, listings: list[Listing]) -> str | Finding:
    """Describe the consumers of ``consumerMode=efo``; registers and subscribes none, as a query may be using it."""
    described: list[str] = []
    for name, listing in zip(options.consumers, listings, strict=True):
        register = options.consumer_name is not None
        question = partial(registered_consumer, client, listing.arn, name, register=register)
        try:
            consumer = patiently(question, options)
        except AccessDeniedError as error:
            action = (
                f"Allow kinesis:DescribeStreamConsumer, kinesis:SubscribeToShard and, for consumerName, kinesis:"
                f"RegisterStreamConsumer on {listing.arn}/consumer/*, to {options.role_arn or 'whose keys these are'}."
            )
            return replace(Finding.from_error(FORMAT, "consumer", error), fix=action)
        if consumer is None:
            try:
                check_room(client, listing.arn, f"{listing.name}, {name}")
            except ConnectorError as error:
                return Finding.from_error(FORMAT, "consumer", error, Outcome.WARNING)
            text = f"{name} is not registered with {listing.name}: the query will do that (RegisterStreamConsumer)"
            described.append(text)
        elif consumer["ConsumerStatus"] == "ACTIVE":
            described.append(f"{consumer['ConsumerName']} of {listing.name} is ACTIVE")
        else:
            what = f"{consumer['ConsumerName']} of {listing.name} is {consumer['ConsumerStatus']}"
            action = "Wait until it is ACTIVE: a query polls meanwhile, for registerConsumerTimeoutInterval at most."
            return Finding.warning(FORMAT, "consumer", what, action, "KINESIS_CONSUMER_NOT_ACTIVE")
    return "; ".join(described)


def _shards(options: KinesisReadOptions, listings: list[Listing]) -> str | Finding:
    shown, count = [], 0
    for listing in listings:
        is_open = sum(not shard.closed for shard in listing.shards.values())
        shown.append(f"{listing.name} has {is_open} open shards, {len(listing.shards) - is_open} closed")
        count += is_open
    tasks = task_count(count, options)
    if tasks > _WARNED_TASKS and options.max_partitions is None:
        action = "Give maxPartitions, so that a batch has fewer tasks."
        return Finding.warning(FORMAT, "shards", f"{'; '.join(shown)}: {tasks} tasks", action, "KINESIS_MANY_SHARDS")
    return "; ".join(shown)


def _retention(listings: list[Listing]) -> str:
    shown = ", ".join(f"{listing.name} {listing.retention_ms // _HOUR_MS} hours" for listing in listings)
    return f"{shown}; a query that stands still longer loses records"


def _starting(client: KinesisClient, options: KinesisReadOptions, listings: list[Listing]) -> str | Finding:
    begin: Streams = {listing.arn: resolve(listing, options.start) for listing in listings}
    everywhere = options.start.everywhere
    if everywhere is None:
        check_named(client, options, begin, listings)
        return "a new query begins at the numbers given, which are kept"
    if everywhere.kind is Kind.TIME:
        late = [listing for listing in listings if everywhere.number < listing.at_ms - listing.retention_ms]
        if late:
            hours = late[0].retention_ms // _HOUR_MS
            what = (
                f"the time of initialPosition is longer ago than {late[0].name} keeps records ({hours} hours): a new "
                "query begins at the oldest record that is kept"
            )
            action = "Raise the retention before it is too late (IncreaseStreamRetentionPeriod), or give a later time."
            return Finding.warning(FORMAT, "starting position", what, action, "KINESIS_START_AGED_OUT")
    texts = {LATEST: "with what comes from now on", TRIM: "at the oldest record that is kept"}
    return f"a new query begins {texts.get(everywhere, 'at a time that is kept')}"


def _checkpoint(
    checkpoint: Path,
    client: KinesisClient,
    options: KinesisReadOptions,
    listings: list[Listing],
    newest: list[Mapping[str, Any]],
) -> str | Finding:
    offsets = [read_offset(offset) for offset in newest if "streams" in offset]
    own = [(streams[listing.arn], listing) for streams in offsets for listing in listings if listing.arn in streams]
    for state, listing in own:
        same_stream(state, listing)
        try:
            _check_state(client, options, state, listing)
        except DataLossError as error:
            if options.fail_on_data_loss:
                raise
            return Finding.from_error(FORMAT, "checkpoint", error, Outcome.WARNING)
    return "it goes on at records that are kept" if own else f"{checkpoint} holds no offset of these streams yet"


def _check_state(client: KinesisClient, options: KinesisReadOptions, state: StreamState, listing: Listing) -> None:
    check_vanished(state, listing, fail=True)
    for shard, one in with_unread(state, listing).shards.items():
        if unproven(shard, one, listing):
            pages = ShardPages(client, listing.stream, shard)
            patiently(partial(check_trimmed, pages, one.position, one.complete_ms or 0, fail=True), options)
