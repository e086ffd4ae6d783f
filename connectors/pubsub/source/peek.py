"""``batchMode=peek``: look at what a subscription would deliver, and hand all of it back.

While the read is planned, a fetcher fills a private spool; what it holds stays leased, and goes back when enough was
seen. Then the private spool is read like any other, so every action on the DataFrame sees the same rows. Spark never
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
from connectors.pubsub.source.fetcher import PubSubFetch
from connectors.pubsub.source.micro_batch import fetch_plan, look_at
from connectors.spool.errors import disk_errors
from connectors.spool.fetching.group import FetcherGroup
from connectors.spool.fetching.target import FetchContext
from connectors.spool.ledger.fencing import spark_pid
from connectors.spool.ledger.identity import open_identity
from connectors.spool.ledger.recovery import open_ledger
from connectors.spool.store.local import LocalStore
from connectors.spool.store.lock_owner import Holder

if TYPE_CHECKING:
    from connectors.pubsub.client.client import SubscriptionInfo
    from connectors.pubsub.options.source import PubSubReadOptions
    from connectors.pubsub.source.leases import Received
    from connectors.spool.ledger.ledger import Ledger

__all__ = ["PubSubPeek", "peek"]

_log = logging.getLogger(__name__)
_TARGET: Final = "connectors.pubsub.source.peek:PubSubPeek"
_POLL_SECONDS: Final = 0.05
_NONCE_BYTES: Final = 8
_HOLDER: Final = "holder"
"""The file of a peek's folder that says whose it is; without it nobody removes the folder."""


class PubSubPeek(PubSubFetch):
    """A fetcher's target that acknowledges nothing: what is durable stays leased until the end, and then goes back."""

    def __init__(self, settings: Mapping[str, Any], context: FetchContext) -> None:
        super().__init__(settings, context)
        self._seen: list[Received] = []

    def on_durable(self, token: object) -> None:
        """Keep the lease of a block."""
        self._seen.append(token)  # type: ignore[arg-type]  # `decode` made it

    def close(self, deadline: float) -> None:
        """Hand everything back, then close."""
        self._deadlines.give_back(self._seen)
        super().close(deadline)


def peek(options: PubSubReadOptions) -> tuple[str, int]:
    """Fill a private spool with what the subscription delivers now.

    Fetching ends ``peekTime`` after the stream is open, or as soon as there are ``peekMaxRows`` rows, and all messages
    are handed back. A subscription that is absent is not created.

    Returns:
        The folder of the spool, and how many of its first rows were asked for.

    Raises:
        SourceGoneError: there is no such subscription, or it was detached from its topic.
        OptionError: it delivers by itself to somewhere else.
        ConnectorError: the service cannot be reached within ``startTimeout``, or refuses.
    """
    if isinstance(options.spool_folder, str):
        raise conflict(
            "pubsub",
            "batchMode",
            "spoolLocation",
            "a peek keeps what it saw in a folder beside the spool, which has to be a file system for that",
            "Give a spoolLocation on a shared file system, or leave it out, for this read.",
        )
    info = look_at(options)
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
    _warn(options, info, ledger.state.counters.get("delivered", 0))
    return root, min(ledger.state.head, options.peek_max_rows)


def _open(root: str, jvm: int, subscription: str) -> Ledger:
    """Make the private spool, which says whose it is."""
    store = LocalStore(root, secrets.token_hex(_NONCE_BYTES))
    store.make_root()
    holder = Path(root, _HOLDER)
    with disk_errors(root):
        holder.touch(mode=0o600)
        holder.write_text(json.dumps(Holder.this_process(jvm).to_json()))
        return open_ledger(store, open_identity(store, "pubsub", (subscription,)))


def _fetch(options: PubSubReadOptions, info: SubscriptionInfo | None, ledger: Ledger) -> None:
    """Fetch into the ledger's spool until it is time to end."""
    # One stream, so that the service sends little more than is asked for; an emulator sends what it likes.
    told = replace(options, streams=1, max_outstanding_messages=options.peek_max_rows, segment_records=None)
    woken = threading.Event()
    group = FetcherGroup(
        replace(fetch_plan(told, info, ledger.identity), target=_TARGET, root=ledger.store.root, access=None),
        1,
        on_published=lambda _fetcher, _number: woken.set(),
        free_bytes=options.max_outstanding_bytes,
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
            error = _not_opened(options, group)
    finally:
        group.stop()
    error = group.terminal_error() or error
    # A subscription without a topic that gives nothing more has shown all that it holds.
    if error is not None and error.code != "PUBSUB_TOPIC_DELETED":
        raise error
    ledger.admit()


def _not_opened(options: PubSubReadOptions, group: FetcherGroup) -> ConnectorError:
    trouble = next((status.error for status in group.status() if status.error is not None), None)
    return trouble or ServiceUnavailableError(
        "PUBSUB_PEEK_NOT_STARTED",
        f"No stream was open {options.start_timeout:g} s after the fetcher was started",
        options.subscription,
        "Raise startTimeout if this machine is busy.",
    )


def _warn(options: PubSubReadOptions, info: SubscriptionInfo | None, delivered: int) -> None:
    dead_letters = ""
    if info is not None and info.dead_letter_topic:
        dead_letters = f" After its most attempts a message goes to the dead-letter topic {info.dead_letter_topic}."
    _log.warning(
        "[PUBSUB_PEEK] %d messages of %s were looked at and handed back; the service counts that as an attempt to "
        "deliver each of them.%s",
        delivered,
        options.subscription,
        dead_letters,
    )


def _remove_old(spool: Path) -> None:
    """Remove what peeks of drivers that have ended left behind, as far as this machine can tell that they have."""
    for folder in spool.parent.glob(f"{glob.escape(spool.name)}.peek-*"):
        # Another peek may remove it meanwhile, and one that has only begun has not said yet who it is.
        with suppress(OSError, ValueError, TypeError):
            holder = Holder.from_json(json.loads((folder / _HOLDER).read_text()))
            if holder.is_here and not holder.jvm_lives and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
