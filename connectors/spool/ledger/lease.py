"""The lease on a spool of an object store, in the place of the lock on a local one (rule R7).

It is a courtesy, as the lock is; the epochs make the spool safe. A holder on the same machine has lost its lease when
its process is gone. Any other one has lost it when the lease does not change while the challenger watches, by the
challenger's own monotonic clock: no clocks of two machines are compared.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from connectors.core.errors import ConnectorError, SpoolDamagedError, SpoolInUseError, SpoolVersionError
from connectors.core.failpoints import failpoint
from connectors.spool.errors import fenced_error, in_use_error
from connectors.spool.ledger.fencing import SpoolLock
from connectors.spool.ledger.records import FORMAT_VERSION, decode, encode
from connectors.spool.store.base import Holder, Store, Version
from connectors.spool.store.object_store import ObjectStore

__all__ = ["LeaseTimes", "SpoolLease", "WriterLock", "lease_holder", "writer_lock"]

_log = logging.getLogger(__name__)
_NAME = "lease"
_GRACE = 5.0
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds between two renewals, until an unrenewed lease may be taken, and between two reads by a challenger."""

    renew: float = 10.0
    expire: float = 35.0
    poll: float = 0.5


class _Lease(NamedTuple):
    free: bool
    holder: Holder | None
    nonce: str | None


class SpoolLease:
    """A lease on a spool; `jvm` is as in `SpoolLock`, and `take_over` takes it at once, whoever holds it."""

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

        Raises `SpoolInUseError` if its holder lives or renewed it meanwhile, and `OSError` if the store does not
        answer.
        """
        first: Any = None
        since = time.monotonic()
        while True:
            data, version = self._store.client.read_version(_NAME) or (None, None)
            free, holder, _ = _parse(data)
            if first is None:
                first = data
            if free or self._take_over or self._has_ended(holder, time.monotonic() - since, changed=data != first):
                if self._put(version):
                    break
                # Another challenger was faster; now its lease is to be judged.
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
        """Release the lease, so that the next query need not wait."""
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        if self._version is not None and not self._is_lost:
            try:
                self._store.client.replace(_NAME, self._bytes(released=True), self._version)
            except (OSError, ConnectorError) as error:
                _log.warning("the lease of the spool was not released: %s", error)
            self._version = None

    def _has_ended(self, holder: Holder | None, watched: float, *, changed: bool) -> bool:
        """Return whether the holder is gone, False if that is not known yet; raises `SpoolInUseError` if it lives."""
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
            present = self._store.client.read_version(_NAME)
            self._version = None if present is None or present[0] != data else present[1]
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
                # The next renewal may succeed; without one the lease is lost.
                _log.warning("the lease of the spool was not renewed: %s", error)

    def _recover(self) -> bool:
        """Find out why the lease was not replaced; return False if another query has it, or it was released."""
        while not self._released.is_set():
            data, version = self._store.client.read_version(_NAME) or (None, None)
            if data is None:
                if self._put(None):
                    return True
                # Another challenger was faster; now its lease is to be judged.
                self._released.wait(self._times.poll)
                continue
            lease = _parse(data)
            if lease.nonce == self._nonce:
                self._version = version
                return True
            self._lost_to = lease.holder
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


WriterLock = SpoolLock | SpoolLease
"""What keeps a second writer away from a spool."""


def lease_holder(store: ObjectStore) -> Holder | None:
    """Return who holds the lease of a spool; None if it is free or its holder, on this machine, is gone."""
    free, holder, _ = _parse(store.client.read(_NAME))
    return None if free or holder is None or (holder.is_here and not holder.lives) else holder


def writer_lock(store: Store, jvm: int, *, take_over: bool = False) -> WriterLock:
    """Return the lock or the lease of a spool, not taken yet."""
    if isinstance(store, ObjectStore):
        return SpoolLease(store, jvm, take_over=take_over)
    return SpoolLock(store.root, jvm)


def _parse(data: bytes | None) -> _Lease:
    try:
        value = {} if data is None else decode(data, _NAME, "The lease of the spool")
    except (SpoolDamagedError, SpoolVersionError):
        value = {}  # then only whether it changes decides
    holder = Holder.from_json(value["holder"]) if "holder" in value else None
    return _Lease(data is None or bool(value.get("released")), holder, value.get("nonce"))


def _named(holder: Holder | None) -> str:
    if holder is None:
        return "it is not named"
    return f"reader process {holder.pid}, Spark driver {holder.jvm}, on the host {holder.host}"
