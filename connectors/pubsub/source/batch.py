"""A batch read with ``batchMode=peek``: what a subscription would deliver now.

A fetcher fills a private spool while the read is planned, which is then read like any other, so every action
on the DataFrame sees the same rows. Spark never says when a batch read is over: the folder is removed by the next peek
on the machine after the driver's JVM has ended; that of a peek that fails, at once.
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
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connectors.core.errors import ConnectorError, ServiceUnavailableError
from connectors.core.options.declaration import conflict
from connectors.core.retry import WaitLog
from connectors.pubsub import FORMAT
from connectors.pubsub.source.micro_batch import feed_of, read_subscription
from connectors.spool.errors import disk_errors
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.ledger.writer_lock import spark_pid
from connectors.spool.source.start import fetch_plan
from connectors.spool.store.base import Holder
from connectors.spool.store.local import LocalStore

if TYPE_CHECKING:
    from connectors.pubsub.client.client import SubscriptionInfo
    from connectors.pubsub.options.source import PubSubReadOptions
    from connectors.spool.ledger.ledger import Ledger
    from connectors.spool.source.connector import SpoolConnector

_log = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.05
_NONCE_BYTES: Final = 8
_HOLDER: Final = "holder"
"""The file of a peek's folder that says whose it is; without it nobody removes the folder."""


def peek(connector: SpoolConnector[PubSubReadOptions], options: PubSubReadOptions) -> tuple[str, int]:
    """Fill a private spool; return its folder, and how many of its first rows were asked for.

    It ends ``peekTime`` after its stream is open, or as soon as there are ``peekMaxRows`` rows, and hands all messages
    back. It creates no subscription, and fails if the service is not reached within ``startTimeout``.
    """
    if isinstance(options.spool_folder, str):
        why = "a peek stores its rows in a folder beside the spool, which has to be on a file system for that"
        action = "Give a spoolLocation on a shared file system, or leave it out, for this read."
        raise conflict(FORMAT, "batchMode", "spoolLocation", why, action)
    info = read_subscription(options)
    _remove_old(options.spool_folder)
    jvm = spark_pid()
    root = f"{options.spool_folder}.peek-{jvm}-{secrets.token_hex(_NONCE_BYTES)}"
    try:
        store = LocalStore(root, secrets.token_hex(_NONCE_BYTES))
        store.make_root()
        holder = Path(root, _HOLDER)
        with disk_errors(root):
            holder.touch(mode=0o600)
            holder.write_text(json.dumps(asdict(Holder.this_process(jvm))))
            ledger = open_ledger(store, open_identity(store, FORMAT, options.subscriptions))
        _fetch(connector, options, info, ledger)
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


def _fetch(
    connector: SpoolConnector[PubSubReadOptions],
    options: PubSubReadOptions,
    info: SubscriptionInfo | None,
    ledger: Ledger,
) -> None:
    # One stream, so that the service sends little more than is asked for; an emulator sends what it likes.
    one_stream = replace(options, streams=1, max_outstanding_messages=options.peek_max_rows, segment_records=None)
    woken = threading.Event()
    plan = fetch_plan(connector, one_stream, feed_of(one_stream, info), ledger.identity)
    group = FetcherGroup(on_published=lambda _fetcher, _number: woken.set(), free_bytes=options.max_outstanding_bytes)
    group.add(replace(plan, root=ledger.store.root, access=None, settings={**plan.settings, "peek": True}), 1)
    group.start()
    error: ConnectorError | None = None
    try:
        opened, end = False, time.monotonic() + options.start_timeout
        log = WaitLog(lambda: f"messages of {options.subscription}, at most startTimeout and peekTime")
        while time.monotonic() < end and ledger.state.head < options.peek_max_rows and group.terminal_error() is None:
            if not opened and group.healthy:
                opened, end = True, time.monotonic() + options.peek_time
            woken.wait(_POLL_SECONDS)
            woken.clear()
            log.tick()
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
        # Another peek may remove it meanwhile, and one that has only begun has no holder yet.
        with suppress(OSError, ValueError, TypeError):
            holder = Holder(**json.loads((folder / _HOLDER).read_text()))
            if holder.is_here and not holder.jvm_lives and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
