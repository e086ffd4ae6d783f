"""What keeps a second query away from a spool that is in use: a lock on a disk, a lease on an object store (rule R7).

Both are a courtesy; the epochs make the spool safe. A holder on the same machine has lost its lease when its process is
gone. Any other one has lost it when the lease does not change while the challenger watches, by the challenger's own
monotonic clock: no clocks of two machines are compared.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from connectors.core.errors import ConnectorError, SpoolDamagedError, SpoolVersionError
from connectors.core.processes.failpoints import failpoint
from connectors.core.processes.table import PROCESSES, start_time
from connectors.core.retry import WaitLog
from connectors.spool.errors import fenced_error, in_use_error
from connectors.spool.ledger.records import SIDE_FORMAT, decode, encode
from connectors.spool.segments.shapes import misfit
from connectors.spool.store.base import Holder, Store, Version
from connectors.spool.store.disk import LockFile

_log = logging.getLogger(__name__)
LOCK_NAME = "lock"
MOST_OF_A_LOCK = 4096
"""Bytes; its content is far less."""
_PROCESSES = dict.fromkeys(("pid", "start", "jvm", "jvm_start"), int)
"""The shape of a lock file."""
_HOLDER = {"machine": str, "host": str, **_PROCESSES}
_LEASE = {"nonce": str, "count": int, "released": bool, "holder": _HOLDER}
LEASE_NAME = "lease"
_GRACE = 5.0
_POLL = 0.05
_NONCE_BYTES = 12


class SpoolLock:
    """A lock on a spool whose store has locks; it ends with the reader process that holds it.

    The location exists; `jvm` is the pid of the Spark driver's JVM, or of whatever the reader process belongs to.
    """

    def __init__(self, store: Store, jvm: int) -> None:
        self._store = store
        self._jvm = jvm
        self._file: LockFile | None = None

    def acquire(self) -> None:
        """Take the lock; wait up to 5 s if the JVM of its holder is gone. Raises `SpoolInUseError`, `SpoolError`."""
        file = self._store.open_lock(LOCK_NAME, make=True)
        try:
            self._wait_for(file)
            own = Holder.this_process(self._jvm)
            file.write(json.dumps({key: getattr(own, key) for key in _PROCESSES}).encode())
        except BaseException:
            file.close()
            raise
        self._file = file

    def _wait_for(self, file: LockFile) -> None:
        deadline = time.monotonic() + _GRACE
        while not file.try_lock():
            holder = lock_holder(file.read(MOST_OF_A_LOCK))
            if (holder is not None and holder.jvm_lives) or time.monotonic() > deadline:
                raise in_use_error(holder, f"{self._store.root}/{LOCK_NAME}")
            time.sleep(_POLL)

    def check(self) -> None:
        """Do nothing: nobody can take this lock away."""

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Lease(NamedTuple):
    free: bool
    holder: Holder | None
    nonce: str | None


class SpoolLease:
    """A lease on a spool; `jvm` is as in `SpoolLock`, and `take_over` takes it at once, whoever holds it.

    It is renewed every `renew` seconds. If it has not been renewed for `expire` seconds, another process that polls it
    every `poll` seconds may take it.
    """

    def __init__(
        self,
        store: Store,
        jvm: int,
        *,
        take_over: bool = False,
        renew: float = 10.0,
        expire: float = 35.0,
        poll: float = 0.5,
    ) -> None:
        self._store = store
        self._holder = Holder.this_process(jvm)
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        self._take_over = take_over
        self._renewal, self._expiry, self._poll = renew, expire, poll
        self._count = 0
        self._version: Version | None = None
        self._lost_to: Holder | None = None
        self._is_lost = False
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lease, and renew it in the background; raises `SpoolInUseError` if its holder lives."""
        first: Any = None
        since, attempted = time.monotonic(), set[str | None]()
        log = WaitLog(lambda: f"the lease of the spool {self._store.root} to expire")
        while True:
            data, version = self._store.read_version(LEASE_NAME) or (None, None)
            free, holder, nonce = _parse(data)
            if first is None:
                first = data
            if attempted - {nonce}:
                self._take_over = False  # another challenger was faster, and now its lease is to be judged
            if free or self._take_over or self._has_ended(holder, time.monotonic() - since, changed=data != first):
                if self._put(version):
                    break
                attempted.add(nonce)
                first, since = None, time.monotonic()
            else:
                log.tick()
                time.sleep(self._poll)
        self._thread = threading.Thread(target=self._renew, name="spool-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `SpoolFencedError` if another query took the lease."""
        if self._is_lost:
            raise fenced_error(f"{self._store.root}/{LEASE_NAME}", self._lost_to)

    def release(self) -> None:
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        if self._version is not None and not self._is_lost:
            try:
                self._store.swap(LEASE_NAME, self._bytes(released=True), self._version)
            except (OSError, ConnectorError) as error:
                _log.warning("the lease of the spool was not released: %s", error)
            self._version = None

    def _has_ended(self, holder: Holder | None, watched: float, *, changed: bool) -> bool:
        """Return whether the holder is gone, False if that is not known yet; raises `SpoolInUseError` if it lives."""
        if holder is None or not holder.is_here:
            in_use, ended = changed, watched >= self._expiry
        else:  # a reader process whose JVM is gone ends by itself
            ended = not holder.lives
            in_use = not ended and (holder.jvm_lives or watched > _GRACE)
        if in_use:
            raise in_use_error(holder, f"{self._store.root}/{LEASE_NAME}")
        return ended

    def _put(self, version: Version | None) -> bool:
        failpoint("lease.before_put")
        data = self._bytes()
        if version is not None:
            self._version = self._store.swap(LEASE_NAME, data, version)
        else:
            present = self._store.read_version(LEASE_NAME) if self._store.create(LEASE_NAME, data) else None
            self._version = None if present is None or present[0] != data else present[1]
        failpoint("lease.after_put")
        return self._version is not None

    def _renew(self) -> None:
        while not self._released.wait(self._renewal):
            try:
                self._count += 1
                version = self._version
                renewed = None if version is None else self._store.swap(LEASE_NAME, self._bytes(), version)
                if renewed is None and not self._recover():
                    return
                self._version = renewed or self._version
            except (OSError, ConnectorError) as error:
                # The next renewal may succeed; without one the lease is lost.
                _log.warning("the lease of the spool was not renewed: %s", error)

    def _recover(self) -> bool:
        """Find out why the lease was not replaced; return False if another query has it, or it was released."""
        while not self._released.is_set():
            data, version = self._store.read_version(LEASE_NAME) or (None, None)
            if data is None:
                if self._put(None):
                    return True
                # Another challenger was faster; now its lease is to be judged.
                self._released.wait(self._poll)
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
        lease = {"nonce": self._nonce, "count": self._count, "released": released, "holder": asdict(self._holder)}
        # So that older versions, which refuse the spool, can tell who has it.
        return encode({"v": SIDE_FORMAT, "kind": "lease", **lease})


WriterLock = SpoolLock | SpoolLease
"""What keeps a second writer away from a spool."""


def spool_holder(store: Store) -> Holder | None:
    """Return who uses a spool; None if nobody does, as far as this machine can see. Raises `SpoolError`."""
    if store.has_locks:
        try:
            file = store.open_lock(LOCK_NAME, make=False)
        except FileNotFoundError:
            return None
        with closing(file):
            holder = lock_holder(file.read(MOST_OF_A_LOCK))
        return holder if holder is not None and holder.lives else None
    data, _ = store.read_version(LEASE_NAME) or (None, None)
    free, holder, _ = _parse(data)
    return None if free or holder is None or (holder.is_here and not holder.lives) else holder


def writer_lock(store: Store, jvm: int, *, take_over: bool = False) -> WriterLock:
    if store.has_locks:
        return SpoolLock(store, jvm)
    return SpoolLease(store, jvm, take_over=take_over)


def spark_pid() -> int:
    """Return the pid of the JVM this process belongs to: the nearest ancestor that runs Java, else the parent."""
    pid = os.getppid()
    while pid > 1:
        process = PROCESSES.find(pid)
        if process is None:
            break
        if process.program == "java":
            return pid
        pid = process.parent
    return os.getppid()


def process_gone(pid: int) -> Callable[[], bool]:
    start = start_time(pid)
    return lambda: start_time(pid) != start


def lock_holder(data: bytes) -> Holder | None:
    """Return the process of this machine that a lock file names; None if the file has other content."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if misfit(value, _PROCESSES):
        return None
    return replace(Holder.this_process(), host="", **{key: value[key] for key in _PROCESSES})


def is_lock(data: bytes) -> bool:
    """Return whether this is what a lock file holds, or the part of it that a loss of power leaves."""
    begun = re.sub(rb"\d+", b"0", data)
    return json.dumps(dict.fromkeys(_PROCESSES, 0)).encode().startswith(begun)


def _parse(data: bytes | None) -> _Lease:
    try:
        value = {} if data is None else decode(data, LEASE_NAME, "The lease of the spool", _LEASE)
    except (SpoolDamagedError, SpoolVersionError):
        value = {}  # then only whether it changes decides
    holder = Holder(**{key: value["holder"][key] for key in _HOLDER}) if value else None
    return _Lease(data is None or bool(value.get("released")), holder, value.get("nonce"))
