"""The lease on a spool of an object store, in the place of the lock on a local one (rule R7).

It is a courtesy, as the lock is: it keeps a second query away. What makes the spool safe are the epochs. A holder that
can be seen, on the same machine, is judged by whether its process lives. Any other one is judged by whether the lease
changes while the challenger watches, on the challenger's own monotonic clock: no clocks of two machines are compared.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from connectors.core.errors import ConnectorError, SpoolDamagedError, SpoolInUseError, SpoolVersionError
from connectors.core.failpoints import failpoint
from connectors.spool.errors import fenced_error, in_use_error
from connectors.spool.ledger.fencing import SpoolLock
from connectors.spool.ledger.records import FORMAT_VERSION, decode, encode
from connectors.spool.store.base import Store
from connectors.spool.store.lock_owner import Holder
from connectors.spool.store.object_client import Version
from connectors.spool.store.object_store import ObjectStore

__all__ = ["LeaseTimes", "SpoolLease", "WriterLock", "lease_holder", "writer_lock"]

_log = logging.getLogger(__name__)
_NAME = "lease"
_GRACE = 5.0
_POLL = 0.5
_NONCE_BYTES = 12


class WriterLock(Protocol):
    """What keeps a second writer away from a spool."""

    def acquire(self) -> None:
        """Take it; raises `SpoolInUseError`, and has changed nothing then."""

    def check(self) -> None:
        """Raise `SpoolFencedError` if another writer has it now."""

    def release(self) -> None:
        """Give it back."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds of a lease.

    Attributes:
        renew: between two renewals by its holder.
        expire: without a renewal, as the challenger sees it, after which the challenger takes it.
        poll: between two looks of the challenger.
    """

    renew: float = 10.0
    expire: float = 35.0
    poll: float = _POLL


class SpoolLease:
    """A lease on a spool.

    Args:
        store: where the spool is; it can be used.
        jvm: pid of the Spark driver's JVM, or of whatever the reader process belongs to.
        take_over: take it at once, whoever holds it.
        times: see there.
    """

    def __init__(
        self, store: ObjectStore, jvm: int, *, take_over: bool = False, times: LeaseTimes | None = None
    ) -> None:
        self._store = store
        self._holder = Holder.this_process(jvm)
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        self._take_over = take_over
        self._times = times or LeaseTimes()
        self._count = 0
        self._version: Version | None = None
        self._lost_to: Holder | None = None
        self._is_lost = False
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lease, and renew it from now on in the background.

        Raises:
            SpoolInUseError: another query holds it: its process lives, or it renewed the lease while this call watched.
            OSError: the store does not answer.
        """
        first: Any = None
        since = time.monotonic()
        while True:
            data, version = self._store.client.read_version(_NAME) or (None, None)
            free, holder = _read(data)
            if first is None:
                first = data
            if free or self._take_over or self._has_ended(holder, time.monotonic() - since, changed=data != first):
                if self._put(version):
                    break
                # Somebody was faster; that is then the lease to judge.
                first, since, self._take_over = None, time.monotonic(), False
            else:
                time.sleep(self._times.poll)
        self._thread = threading.Thread(target=self._renew, name="spool-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `SpoolFencedError` if another query took the lease."""
        if self._is_lost:
            raise fenced_error(f"{self._store.root}/{_NAME}", _named(self._lost_to))

    def release(self) -> None:
        """Give the lease back, so that the next query need not wait."""
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        if self._version is not None and not self._is_lost:
            try:
                self._store.client.replace(_NAME, self._bytes(released=True), self._version)
            except (OSError, ConnectorError) as error:
                _log.warning("the lease of the spool was not given back: %s", error)
            self._version = None

    def _has_ended(self, holder: Holder | None, watched: float, *, changed: bool) -> bool:
        """Whether the holder of the lease is gone; not known yet if it returns False.

        Raises:
            SpoolInUseError: it is not.
        """
        if holder is not None and holder.is_here:
            if not holder.lives:
                return True
            # A reader process whose JVM is gone ends by itself.
            if holder.jvm_lives or watched > _GRACE:
                raise self._in_use(holder)
            return False
        if changed:
            raise self._in_use(holder)
        return watched >= self._times.expire

    def _put(self, version: Version | None) -> bool:
        failpoint("lease.before_put")
        data = self._bytes()
        if version is not None:
            self._version = self._store.client.replace(_NAME, data, version)
        elif self._store.put(_NAME, data):
            found = self._store.client.read_version(_NAME)
            self._version = None if found is None or found[0] != data else found[1]
        else:
            self._version = None
        failpoint("lease.after_put")
        return self._version is not None

    def _renew(self) -> None:
        while not self._released.wait(self._times.renew):
            try:
                self._count += 1
                version = self._version
                renewed = None if version is None else self._store.client.replace(_NAME, self._bytes(), version)
                if renewed is None and not self._recover():
                    return
                self._version = renewed or self._version
            except (OSError, ConnectorError) as error:
                # What the store refuses now it may take at the next renewal; a lease that nobody renews is lost.
                _log.warning("the lease of the spool was not renewed: %s", error)

    def _recover(self) -> bool:
        """Look why the lease could not be replaced; False if another query has it, or it was given back."""
        while not self._released.is_set():
            data, version = self._store.client.read_version(_NAME) or (None, None)
            if data is None:
                if self._put(None):
                    return True
                # Somebody was faster; that is then the lease to judge.
                self._released.wait(self._times.poll)
                continue
            if _nonce(data) == self._nonce:
                self._version = version
                return True
            self._lost_to = _read(data)[1]
            self._is_lost = True
            return False
        return False

    def _bytes(self, *, released: bool = False) -> bytes:
        return encode(
            {
                "v": FORMAT_VERSION,
                "kind": "lease",
                "nonce": self._nonce,
                "count": self._count,
                "released": released,
                "holder": self._holder.to_json(),
            }
        )

    def _in_use(self, holder: Holder | None) -> SpoolInUseError:
        return in_use_error(_named(holder), f"{self._store.root}/{_NAME}", can_take_over=True)


def lease_holder(store: ObjectStore) -> Holder | None:
    """Who holds the lease of a spool, as far as can be seen at once; takes nothing."""
    found = store.client.read_version(_NAME)
    free, holder = _read(None if found is None else found[0])
    return None if free or holder is None or (holder.is_here and not holder.lives) else holder


def writer_lock(store: Store, jvm: int, *, take_over: bool = False) -> WriterLock:
    """The lock or the lease of a spool, not taken yet."""
    if isinstance(store, ObjectStore):
        return SpoolLease(store, jvm, take_over=take_over)
    return SpoolLock(store.root, jvm)


def _value(data: bytes | None) -> dict[str, Any]:
    """What a lease says; nothing if it is damaged, which a watch over its changes sorts out as well."""
    try:
        return {} if data is None else decode(data, _NAME, "The lease of the spool")
    except (SpoolDamagedError, SpoolVersionError):
        return {}


def _read(data: bytes | None) -> tuple[bool, Holder | None]:
    """Whether a lease is free, and who holds it as far as it says so."""
    value = _value(data)
    holder = Holder.from_json(value["holder"]) if "holder" in value else None
    return data is None or bool(value.get("released")), holder


def _nonce(data: bytes) -> str | None:
    nonce = _value(data).get("nonce")
    return nonce if isinstance(nonce, str) else None


def _named(holder: Holder | None) -> str:
    if holder is None:
        return "it does not say which"
    return f"reader process {holder.pid}, Spark driver {holder.jvm}, on the host {holder.host}"
