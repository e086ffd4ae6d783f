"""The checks of ``connectors doctor --format kinesis``, where the packages of the connector are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from connectors.core.diagnostics import CHECKS, Finding, reach, run_checks
from connectors.core.errors import AccessDeniedError, SourceGoneError
from connectors.core.retry import wait_out
from connectors.kinesis import FORMAT
from connectors.kinesis.client.client import KinesisClient
from connectors.kinesis.offsets import TRIM
from connectors.kinesis.options.client import client_options
from connectors.kinesis.options.source import parse_read_options
from connectors.kinesis.shards import Listing

_RETRIES: Final = 2
_RETRY_SECONDS: Final = 1.0
_HOUR_MS: Final = 3_600_000


def diagnose(raw: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check options, network, authentication and streams; reads at most one record per stream."""
    return run_checks(FORMAT, CHECKS, _results(raw, environ))


def _results(raw: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str]:
    options = parse_read_options(raw, environ, streaming=True)
    # A doctor says soon what is wrong.
    retries = _RETRIES if options.num_retries is None else min(options.num_retries, _RETRIES)
    options = replace(options, num_retries=retries, max_retry_interval=_RETRY_SECONDS)
    client = KinesisClient(client_options(options))
    region, address = client.address()
    yield f"streams {', '.join(options.streams)}, region {region}"
    url = urlsplit(address)
    tls = url.scheme == "https"
    yield reach(url.hostname or "", url.port or (443 if tls else 80), tls=tls)
    credentials = client.credentials()
    # A response of any kind, also a refusal, means that the credentials are accepted.
    with suppress(AccessDeniedError, SourceGoneError):
        wait_out(partial(client.describe, options.streams[0]), options.outage_rule)
    yield f"accepted ({credentials}{f', as {options.role_arn}' if options.role_arn else ''})"
    listings = {stream: wait_out(partial(client.listing, stream), options.outage_rule) for stream in options.streams}
    yield "; ".join(map(_describe, listings.values()))
    for stream, listing in listings.items():
        shard = min((name for name, listed in listing.shards.items() if not listed.closed), default=None)
        if shard is not None:
            iterator = wait_out(partial(client.iterator, stream, shard, TRIM), options.outage_rule)
            wait_out(partial(client.records, iterator, 1, stream, shard), options.outage_rule)
    yield "records may be read"


def _describe(listing: Listing) -> str:
    is_open = sum(not shard.closed for shard in listing.shards.values())
    return (
        f"{listing.name} has {is_open} open and {len(listing.shards) - is_open} closed shards, and retains records for "
        f"{listing.retention_ms // _HOUR_MS} hours"
    )
