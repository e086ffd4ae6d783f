"""The storage interface of the spool: named files that are either whole and durable, or absent.

`LocalStore` has them in a folder, `ObjectStore` in a bucket. Names are relative, with ``/`` between at most three
parts; folders are made as they are needed.
"""

from __future__ import annotations

import io
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self
from urllib.parse import urlsplit

from connectors.core.options.kinds import CUT_FROM_URL, Secret
from connectors.core.processes.table import start_time
from connectors.spool.store.disk import LockFile

Version = Mapping[str, Any]
"""How a store recognizes the content of a file: an entity tag, a generation, or the content itself."""

_KINDS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "azure": "az", "abfs": "az", "abfss": "az"}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_ACCOUNT = re.compile(r"([a-z0-9]{3,24})\.(dfs|blob)\.core\.[a-z0-9.]+")


class Pieces(Protocol):
    """A file of which pieces can be read."""

    def __len__(self) -> int: ...

    def __getitem__(self, piece: slice, /) -> memoryview: ...


class StoreWriting(Protocol):
    """A file that is being written; a context manager that discards it at its end."""

    length: int
    """Bytes written so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; any buffer of bytes will do."""

    def publish(self) -> bool:
        """Make the file durable under its name; return False, and change nothing, if that name is taken."""

    def discard(self) -> None:
        """Release the file and what is temporary of it; a published file stays."""


class FolderHold(Protocol):
    """A folder that a process holds until it ends."""

    def is_present(self) -> bool:
        """Return whether files may still be published in the folder."""

    def release(self) -> None:
        """Release the folder."""


@dataclass(frozen=True, slots=True)
class Space:
    """The disk of a store: its size, and how much of it is free, in bytes."""

    size: int
    free: int


class Store(Protocol):
    """A place for a spool: files, and folders that are held by one process at a time (rule R2)."""

    root: str
    """The location as a user gave it."""
    owner: str
    """A name that no other process uses; temporary files begin with it."""
    look_seconds: float = 0.0
    """How often to look for changes that nobody reported; where this is not 0, each look costs a request."""
    has_locks: bool = False
    """Whether a process can lock a file until it ends; where it cannot, the writer of a spool holds a lease."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file durably if its name is free; return False, and change nothing, if it is taken."""
        with self.writer(name) as writer:
            writer.write(data)
            return writer.publish()

    def writer(self, name: str) -> StoreWriting:
        """Begin a file that gets its name only when it is published."""

    def map(self, name: str) -> memoryview:
        """Return a whole file as read-only memory; raises `FileNotFoundError`."""

    def pieces(self, name: str) -> Pieces:
        """Return a file of which some pieces will be read; raises `FileNotFoundError`."""
        return self.map(name)

    def read(self, name: str) -> bytes:
        """Return a copy of a whole file; raises `FileNotFoundError`."""
        with self.map(name) as view:
            return bytes(view)

    def exists(self, name: str) -> bool:
        """Return whether there is a file of this name."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder, without their path, in any order; empty if there is no such folder."""

    def list(self, folder: str) -> list[str]:
        """Return what `names` returns, sorted."""
        return sorted(self.names(folder))

    def written(self, folder: str) -> dict[str, float]:
        """Return when each file in a folder was written, and each folder of the inbox was made.

        In seconds since 1970 of the store's clock. A folder on a file system gets a new time with each file.
        """

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if it is absent."""

    def sync_folder(self, name: str) -> None:
        """Make durable which names a folder holds: those that another process made or removed may not be yet."""

    def overwrite(self, name: str, data: bytes) -> None:
        """Write a file durably, replacing an existing one; a reader finds one of the two, whole."""

    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        """Return a whole file and its version; None if it is absent."""

    def swap(self, name: str, data: bytes, version: Version) -> Version | None:
        """Write a file durably in the place of this version of it; return the new version.

        None if the file is absent or has another version; of several that swap one version at a time, one does.
        """

    def open_lock(self, name: str, *, make: bool) -> LockFile:  # noqa: ARG002 - as a store with locks has them
        """Open a file to lock it, or only to read it without `make`.

        Raises `FileNotFoundError`, `SpoolError` if it isn't a lock or can't be written, and
        `io.UnsupportedOperation` where the store has no locks.
        """
        raise io.UnsupportedOperation(name)

    def make_folder(self, name: str) -> None:
        """Make a folder, durably; nothing happens if it exists."""

    def hold_folder(self, name: str) -> FolderHold | None:
        """Hold a folder until this process ends; None if another one holds it. Raises `FileNotFoundError`."""

    def is_locked(self, name: str) -> bool:
        """Return whether a living process, as far as this machine can see, holds a folder."""

    def held_elsewhere(self, name: str) -> bool:  # noqa: ARG002 - only an object store has such holders
        """Return whether a process that this machine cannot see has claimed a folder and not released it."""
        return False

    def close_folder(self, name: str, next_file: str) -> bool:
        """Make sure that nothing more is published in a folder, where `next_file` would be next; return whether so.

        That is: nobody holds the folder, and `next_file` does not exist.
        """

    def is_closed(self, name: str) -> bool:  # noqa: ARG002 - only an object store closes names
        """Return whether `close_folder` has taken the name of a file."""
        return False

    def remove_unlocked_folder(self, name: str) -> None:
        """Remove a folder if it is empty and nobody holds it."""

    def folders(self, name: str) -> Sequence[str]:
        """Return the names of the folders in a folder, sorted; a file or a link in the place of one is none."""
        return self.list(name)

    def remove_empty_folders(self, name: str) -> None:
        """Remove a folder and those below it, as far as they are empty."""

    def remove_root(self) -> Sequence[str]:
        """Remove the location if it is empty; return what is left of it: names in it, or the location itself."""
        return ()

    @property
    def location(self) -> str:
        """The same text for every spelling of the location."""

    def make_root(self) -> None:
        """Make the location and check that it can be used; raises `ConnectorError`."""

    def keep_root(self) -> None:
        """From now on refuse, with `SpoolError`, another place under the same name, as after an unmount."""

    def check_visible(self) -> None:
        """Raise `SpoolError` if this machine cannot see the location."""

    def temporary_files(self) -> Sequence[str]:
        """Return the names, without the folder, of the temporary files that spools have written."""
        return []

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files at the location, by name, foreign files too; links are not followed."""

    def is_own_name(self, name: str) -> bool:
        """Return whether the store itself makes files of this name, such as temporary ones."""

    def permissions(self, name: str) -> int | None:  # noqa: ARG002 - who may use an object is a matter of its bucket
        """Return the mode bits of a file; None where files have none. Raises `FileNotFoundError`."""
        return None

    def name_of(self, path: str) -> str:
        """Return the name of a file from its whole path, as errors give it; a name stays as it is."""
        return path.removeprefix(f"{self.root.rstrip('/')}/")

    def space(self) -> Space | None:
        """Return the space of the disk; None where nothing can be full."""
        return None

    def allocate(self, name: str, size: int) -> None:
        """Take space of the disk by a new file of zeros; nothing happens where nothing can be full."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How to reach an object store. None: from the environment, as the store's own tools have it.

    For Azure `key_id` and `secret` are the name and the key of the account; `credentials_file` is Google's.
    `credential_provider` is the import path of code that gives the credentials.
    """

    endpoint: str | None = None
    region: str | None = None
    key_id: str | None = field(default=None, repr=False)
    secret: Secret | None = None
    session_token: Secret | None = None
    credentials_file: str | None = None
    credential_provider: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the secrets in it, for a pipe between processes; never to be shown."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        secrets = {name: Secret(value[name]) for name in ("secret", "session_token") if value.get(name) is not None}
        return cls(**{**value, **secrets})


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    """A place in an object store; as text it is the same for every spelling of the URL.

    `kind` is ``s3``, ``gs`` or ``az``; `prefix` has no ``/`` at its ends and may be empty, as may the Azure `account`.
    """

    kind: str
    bucket: str
    prefix: str
    account: str = ""

    def __str__(self) -> str:
        prefix = f"/{self.prefix}" if self.prefix else ""
        if self.account:
            return f"abfss://{self.bucket}@{self.account}.dfs.core.windows.net{prefix}"
        return f"{self.kind}://{self.bucket}{prefix}"


def parse_object_url(text: str) -> ObjectUrl:
    """Parse ``s3://``, ``gs://``, ``az://`` or ``abfss://``.

    Raises `ValueError` with a reason that can be shown; it never repeats the URL, which may hold a secret.
    """
    url = urlsplit(text)
    scheme = url.scheme.lower()
    if scheme not in _KINDS:
        raise ValueError(f"{scheme} locations are not supported, only s3, gs, az and abfss are")
    if CUT_FROM_URL.search(text):
        raise ValueError("an object store's URL has no ?, # or control characters")
    user, at, host = url.netloc.rpartition("@")
    account = ""
    if scheme in {"abfs", "abfss"}:
        match = _ACCOUNT.fullmatch(host)
        if not at or match is None:
            raise ValueError(f"it is not like {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER")
        account, bucket = match[1], user
    elif at:
        raise ValueError("credentials do not belong in a URL; give them as options or in the environment")
    else:
        bucket = host
    if not _BUCKET.fullmatch(bucket):
        raise ValueError("it names no bucket")
    parts = [part for part in url.path.split("/") if part]
    if any(part in {".", ".."} for part in parts):
        raise ValueError("it has . or .. in its path")
    return ObjectUrl(_KINDS[scheme], bucket, "/".join(parts), account)


@cache
def _machine() -> str:
    """Return the boot of this machine and the namespace of its pids; without ``/proc`` its host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds something, told apart from every other one (rules R2 and R7).

    Attributes:
        machine: the boot of the machine and the namespace of its pids; two containers of one machine differ.
        host: its name, for people; empty if it is not recorded.
        pid, start: of the process.
        jvm, jvm_start: of Spark's driver, or of whatever it belongs to; 0 if that does not matter.
        this_machine: returns the machine of this process.
    """

    this_machine: ClassVar[Callable[[], str]] = staticmethod(_machine)

    machine: str
    host: str
    pid: int
    start: int
    jvm: int = 0
    jvm_start: int = 0

    @classmethod
    def this_process(cls, jvm: int = 0) -> Self:
        here, pid = Holder.this_machine(), os.getpid()
        return cls(here, socket.gethostname(), pid, start_time(pid), jvm, start_time(jvm) if jvm else 0)

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine; if not, `lives` and `jvm_lives` are False."""
        return self.machine == Holder.this_machine()

    @property
    def lives(self) -> bool:
        return self.is_here and start_time(self.pid) == self.start

    @property
    def jvm_lives(self) -> bool:
        return self.is_here and self.jvm_start != 0 and start_time(self.jvm) == self.jvm_start

    def __str__(self) -> str:
        return f"reader process {self.pid}, Spark driver {self.jvm}" + (self.host and f", on the host {self.host}")
