"""One writer: a lock for courtesy, epochs for correctness (rule R7).

The lock keeps a second query away from a spool that is in use. It can fail: a process may be paused, a network file
system may lose locks. Then epochs decide. Every writer claims the next epoch, seals all earlier ones, and only then
serves; a writer that was sealed finds the seal at its own next number, and stops.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from connectors.core.errors import SpoolDamagedError
from connectors.core.failpoints import failpoint
from connectors.spool.errors import OTHER_DISK, fenced_error, foreign_file, in_use_error, not_writable
from connectors.spool.ledger.records import FORMAT_VERSION, decode, encode, record_name
from connectors.spool.store.base import Store, start_time

__all__ = [
    "LOCK_NAME",
    "MOST_OF_A_LOCK",
    "Claim",
    "SpoolLock",
    "claim_epoch",
    "claimed_epochs",
    "is_holder",
    "process_gone",
    "put_seal",
    "read_claim",
    "spark_pid",
    "while_newest",
]

_GRACE = 5.0
_POLL = 0.05
LOCK_NAME = "lock"
MOST_OF_A_LOCK = 4096
"""Bytes; its content is far less."""
_HOLDER_KEYS = frozenset({"pid", "start", "jvm", "jvm_start"})
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Claim:
    """A writer's claim: its epoch, and the nonce by which it recognises its own claim."""

    epoch: int
    nonce: str


class SpoolLock:
    """A lock on a spool in a folder, which ends with the reader process that holds it.

    `root` exists; `jvm` is the pid of the Spark driver's JVM, or of whatever the reader process belongs to.
    """

    def __init__(self, root: str, jvm: int) -> None:
        self._root = root
        self._path = f"{root}/{LOCK_NAME}"
        self._jvm = jvm
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock; wait up to 5 s for it if the JVM of its holder is gone.

        Raises `SpoolInUseError` if another query holds it, and `SpoolError` if the file system has no locks.
        """
        file = self._open(os.O_RDWR | os.O_CREAT)
        deadline = time.monotonic() + _GRACE
        while not self._try_lock(file):
            holder = _read_holder(file)
            if _alive(holder.get("jvm"), holder.get("jvm_start")) or time.monotonic() > deadline:
                os.close(file)
                named = f"reader process {holder.get('pid')}, Spark driver {holder.get('jvm')}"
                raise in_use_error(named, self._path, can_take_over=False)
            time.sleep(_POLL)
        pid = os.getpid()
        holder = {"pid": pid, "start": start_time(pid), "jvm": self._jvm, "jvm_start": start_time(self._jvm)}
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(holder).encode(), 0)
        self._file = file

    def holder(self) -> dict[str, int] | None:
        """Return the process of this machine that the lock file names, if it lives; raises `SpoolError`."""
        try:
            file = self._open(os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            holder = _read_holder(file)
        finally:
            os.close(file)
        return holder if _alive(holder.get("pid"), holder.get("start")) else None

    def check(self) -> None:
        """Do nothing: nobody can take this lock away."""

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _try_lock(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            os.close(file)
            what = "The file system of the spool has no locks"
            raise not_writable(what, error, self._path, OTHER_DISK) from error
        return True

    def _open(self, flags: int) -> int:
        try:
            return os.open(self._path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise foreign_file(self._root, LOCK_NAME) from error
            raise not_writable(
                "The lock of the spool cannot be opened",
                error,
                self._path,
                "Choose a spoolLocation that is a folder, and that the user of the driver may write to.",
                root=self._root,
            ) from error


def claimed_epochs(store: Store) -> list[int]:
    """Return the epochs that were claimed, ascending; raises `SpoolDamagedError` if claims are missing."""
    epochs = sorted(int(name) for name in store.list("epochs") if name.isdigit())
    if epochs != list(range(1, len(epochs) + 1)):
        raise SpoolDamagedError(
            "SPOOL_CLAIM_MISSING",
            f"The claims of the spool are {epochs[:10]}, with gaps; claims are never deleted",
            f"{store.root}/epochs",
            "Restore the spool from a backup.",
        )
    return epochs


def claim_epoch(store: Store, spool: str) -> Claim:
    """Claim the next free epoch with a random nonce.

    Raises `SpoolDamagedError` if claims are missing, or the newest one is damaged or belongs to another spool.
    """
    nonce = secrets.token_hex(_NONCE_BYTES)
    epoch = len(claimed_epochs(store)) + 1
    if epoch > 1:
        read_claim(store, spool, epoch - 1)
    while True:
        data = encode({"v": FORMAT_VERSION, "spool": spool, "epoch": epoch, "nonce": nonce})
        failpoint("fence.before_claim")
        name = f"epochs/{epoch}"
        if store.put(name, data) or store.read(name) == data:
            failpoint("fence.after_claim")
            return Claim(epoch, nonce)
        read_claim(store, spool, epoch)
        epoch += 1


def read_claim(store: Store, spool: str, epoch: int) -> Claim:
    """Read a claim; raises `SpoolDamagedError` if it is damaged or belongs elsewhere."""
    where = f"{store.root}/epochs/{epoch}"
    claim = decode(store.read(f"epochs/{epoch}"), where, "A claim")
    if (claim.get("spool"), claim.get("epoch")) != (spool, epoch):
        raise SpoolDamagedError(
            "SPOOL_CLAIM_DAMAGED",
            f"A claim states spool {claim.get('spool')}, epoch {claim.get('epoch')}",
            where,
            "Restore the spool from a backup.",
        )
    return Claim(epoch, claim["nonce"])


def put_seal(store: Store, spool: str, epoch: int, number: int, claim: Claim) -> bool:
    """Put a seal at a number of an older epoch; return False if the number is taken."""
    by = [claim.epoch, claim.nonce]
    seal = {"v": FORMAT_VERSION, "kind": "seal", "spool": spool, "epoch": epoch, "number": number, "by": by}
    failpoint("fence.before_seal")
    put = store.put(record_name(epoch, number), encode(seal))
    failpoint("fence.after_seal")
    return put


@contextlib.contextmanager
def while_newest(store: Store, claim: Claim) -> Iterator[None]:
    """Raise `SpoolFencedError` for damaged or missing files if there is a newer claim: a newer writer deletes files."""
    try:
        yield
    except (SpoolDamagedError, FileNotFoundError) as error:
        if max(claimed_epochs(store), default=0) > claim.epoch:
            raise fenced_error(error.where if isinstance(error, SpoolDamagedError) else store.root) from error
        raise


def spark_pid() -> int:
    """Return the pid of the JVM this process belongs to: the nearest ancestor that runs Java, else the parent."""
    pid = os.getppid()
    while pid > 1:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            if fields[0].partition("(")[2] == "java":
                return pid
            pid = int(fields[2].split()[1])
        except (OSError, ValueError):
            break
    return os.getppid()


def process_gone(pid: int) -> Callable[[], bool]:
    """Return a function that returns whether a process, which lives now, has ended."""
    start = start_time(pid)
    return lambda: start_time(pid) != start


def _read_holder(file: int) -> dict[str, int]:
    try:
        value = json.loads(os.pread(file, MOST_OF_A_LOCK, 0) or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def is_holder(value: object) -> bool:
    """Return whether a JSON value is the content of a lock file."""
    return isinstance(value, dict) and value.keys() == _HOLDER_KEYS


def _alive(pid: int | None, start: int | None) -> bool:
    return pid is not None and start is not None and start_time(pid) == start
