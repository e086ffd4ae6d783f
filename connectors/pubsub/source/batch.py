"""Planning a batch read: retained rows of a spool, or, with ``batchMode=peek``, what a subscription would deliver now.

For a peek a fetcher fills a private spool while the read is planned; what it holds stays leased, and is handed back at
the end. Then the private spool is read like any other, so every action on the DataFrame sees the same rows. Spark never
says when a batch read is over: the folder is removed by the next peek on the machine after the driver's JVM has ended;
that of a peek that fails, at once.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.core.options.declaration import conflict
from connectors.pubsub import FORMAT
from connectors.pubsub.options.kinds import BatchMode
from connectors.pubsub.source.fetcher import PubSubFetch
from connectors.pubsub.source.micro_batch import fetch_plan, read_subscription
from connectors.spool.errors import disk_errors
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.fetching.target import FetchContext
from connectors.spool.ledger.fencing import spark_pid
from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.store.local import LocalStore
from connectors.spool.store.lock_owner import Holder
from connectors.spool.stream.slices import SpoolRange, plan_spool_rows

if TYPE_CHECKING:
    from connectors.pubsub.client.client import SubscriptionInfo
    from connectors.pubsub.options.source import PubSubReadOptions
    from connectors.pubsub.source.leases import Received
    from connectors.spool.ledger.ledger import Ledger
    from connectors.spool.stream.slices import Slice

__all__ = ["PubSubPeek", "plan_batch"]

_log = logging.getLogger(__name__)
_TARGET: Final = "connectors.pubsub.source.batch:PubSubPeek"
_POLL_SECONDS: Final = 0.05
_NONCE_BYTES: Final = 8
_HOLDER: Final = "holder"
"""The file of a peek's folder that says whose it is; without it nobody removes the folder."""


def plan_batch(options: PubSubReadOptions) -> tuple[str, list[list[Slice]]]:
    """Return the folder that holds the rows of a batch read, and its partitions.

    A peek ends ``peekTime`` after its stream is open, or as soon as there are ``peekMaxRows`` rows, and hands all
    messages back. It creates no subscription, and fails if the service is not reached within ``startTimeout``.
    """
    if options.batch_mode is BatchMode.PEEK:
        root, rows = _peek(options)
        sources: tuple[str, ...] = (options.subscription,)
        positions = SpoolRange(0, rows, options.partition_bytes, options.max_partitions)
    else:
        root, sources = str(options.spool_folder), options.subscriptions
        positions = SpoolRange(
            options.starting_position, options.ending_position, options.partition_bytes, options.max_partitions
        )
    return root, plan_spool_rows(root, FORMAT, sources, positions, options.store_access)


class PubSubPeek(PubSubFetch):
    """A fetcher's target that acknowledges nothing: what is durable stays leased until the end, and is nacked then."""

    def __init__(self, settings: Mapping[str, Any], context: FetchContext) -> None:
        super().__init__(settings, context)
        self._durable: list[Received] = []

    def on_durable(self, token: object) -> None:
        """Leave a block leased."""
        self._durable.append(token)  # type: ignore[arg-type]  # `decode` made it

    def close(self, deadline: float) -> None:
        """Hand everything back, then close."""
        self._deadlines.nack(self._durable)
        super().close(deadline)


def _peek(options: PubSubReadOptions) -> tuple[str, int]:
    """Fill a private spool; return its folder, and how many of its first rows were asked for."""
    if isinstance(options.spool_folder, str):
        raise conflict(
            FORMAT,
            "batchMode",
            "spoolLocation",
            "a peek stores its rows in a folder beside the spool, which has to be on a file system for that",
            "Give a spoolLocation on a shared file system, or leave it out, for this read.",
        )
    info = read_subscription(options)
    _remove_old(options.spool_folder)
    jvm = spark_pid()
    root = f"{options.spool_folder}.peek-{jvm}-{secrets.token_hex(_NONCE_BYTES)}"
    try:
        ledger = _open(root, jvm, options.subscription)
        _fetch(options, info, ledger)
    except BaseException:
        # Nobody reads it, and the driver may live for weeks.
        shutil.rmtree(root, ignore_errors=True)
        raise
    dead_letters = ""
    if info is not None and info.dead_letter_topic:
        dead_letters = f" After its most attempts a message goes to the dead-letter topic {info.dead_letter_topic}."
    _log.warning(
        "[PUBSUB_PEEK] %d messages of %s were fetched and handed back; the service counts that as an attempt to "
        "deliver each of them.%s",
        ledger.state.counters.get("delivered", 0),
        options.subscription,
        dead_letters,
    )
    return root, min(ledger.state.head, options.peek_max_rows)


def _open(root: str, jvm: int, subscription: str) -> Ledger:
    """Create the private spool, which says whose it is."""
    store = LocalStore(root, secrets.token_hex(_NONCE_BYTES))
    store.make_root()
    holder = Path(root, _HOLDER)
    with disk_errors(root):
        holder.touch(mode=0o600)
        holder.write_text(json.dumps(Holder.this_process(jvm).to_json()))
        return open_ledger(store, open_identity(store, FORMAT, (subscription,)))


def _fetch(options: PubSubReadOptions, info: SubscriptionInfo | None, ledger: Ledger) -> None:
    """Fetch into the ledger's spool until it is time to end."""
    # One stream, so that the service sends little more than is asked for; an emulator sends what it likes.
    one_stream = replace(options, streams=1, max_outstanding_messages=options.peek_max_rows, segment_records=None)
    woken = threading.Event()
    group = FetcherGroup(on_published=lambda _fetcher, _number: woken.set(), free_bytes=options.max_outstanding_bytes)
    group.add(
        replace(fetch_plan(one_stream, info, ledger.identity), target=_TARGET, root=ledger.store.root, access=None), 1
    )
    group.start()
    error: ConnectorError | None = None
    try:
        opened, end = False, time.monotonic() + options.start_timeout
        while time.monotonic() < end and ledger.state.head < options.peek_max_rows and group.terminal_error() is None:
            if not opened and group.healthy:
                opened, end = True, time.monotonic() + options.peek_time
            woken.wait(_POLL_SECONDS)
            woken.clear()
            ledger.admit()
        if not opened and not ledger.state.head:
            error = next((status.error for status in group.status() if status.error is not None), None)
            error = error or ServiceUnavailableError(
                "PUBSUB_PEEK_NOT_STARTED",
                f"No stream was open {options.start_timeout:g} s after the fetcher was started",
                options.subscription,
                "Raise startTimeout if this machine is busy.",
            )
    finally:
        group.stop()
    error = group.terminal_error() or error
    # A subscription without a topic that gives nothing more has delivered all that it holds.
    if error is not None and error.code != "PUBSUB_TOPIC_DELETED":
        raise error
    ledger.admit()


def _remove_old(spool: Path) -> None:
    """Remove what peeks of drivers that have ended left behind, as far as this machine can tell that they have."""
    for folder in spool.parent.glob(f"{glob.escape(spool.name)}.peek-*"):
        # Another peek may remove it meanwhile, and one that has only begun has not said yet who it is.
        with suppress(OSError, ValueError, TypeError):
            holder = Holder.from_json(json.loads((folder / _HOLDER).read_text()))
            if holder.is_here and not holder.jvm_lives and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
