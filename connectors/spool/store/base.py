"""The storage interface of the spool: named, immutable files that are either whole and durable, or absent.

`LocalStore` keeps them in a folder, `ObjectStore` in a bucket. Names are relative, with ``/`` between at most three
parts; folders are made as they are needed. Where a method has a body, that is what a store does that needs no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from connectors.core.options.kinds import Secret

__all__ = ["Blobs", "FolderHold", "Pieces", "Store", "StoreAccess", "StoreWriting"]


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


class Blobs(Protocol):
    """Named files: all that segments and id runs need."""

    root: str
    """The location as a user gave it."""
    owner: str
    """A name that no other process uses; temporary files begin with it."""

    def put(self, name: str, data: bytes) -> bool:
        """Write a file durably if its name is free; return False, and change nothing, if it is taken."""
        with self.writer(name) as writer:
            writer.write(data)
            return writer.publish()

    def replace(self, name: str, data: bytes) -> None:
        """Write a file in the place of the one that is there, durably. Only for the identity, in an adoption."""

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
        """Return when each file in a folder was written, and each folder of the inbox was made, by the store's clock.

        Seconds since 1970; empty if there is no such folder. A folder on a file system gets a new time with each file.
        """

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if it is absent."""

    def sync_folder(self, name: str) -> None:
        """Make durable which names a folder holds: those that another process made or removed may not be yet."""


class FolderClaims(Protocol):
    """Folders, each held by one process at a time (rule R2)."""

    def make_folder(self, name: str) -> None:
        """Make a folder, durably; nothing happens if it exists."""

    def hold_folder(self, name: str) -> FolderHold | None:
        """Hold a folder until this process ends; None if another one holds it.

        Raises `FileNotFoundError`, and `SpoolError` if another user could change the spool.
        """

    def is_locked(self, name: str) -> bool:
        """Return whether a living process, as far as this machine can see, holds a folder."""

    def held_elsewhere(self, name: str) -> bool:  # noqa: ARG002 - only an object store has such holders
        """Return whether a process that this machine cannot see has claimed a folder and not released it."""
        return False

    def close_folder(self, name: str, next_file: str) -> bool:
        """Make sure that nothing more is ever published in a folder whose files are numbered.

        `next_file` is the name that the holder of the folder would publish next. Return whether that is so: nobody
        holds the folder, and `next_file` does not exist.
        """

    def is_closed(self, name: str) -> bool:  # noqa: ARG002 - only an object store closes names
        """Return whether `close_folder` has taken the name of a file."""
        return False

    def remove_unlocked_folder(self, name: str) -> None:
        """Remove a folder if it is empty and nobody holds it."""


class Store(Blobs, FolderClaims, Protocol):
    """A place for a spool."""

    look_seconds: float = 0.0
    """How often to look for changes that nobody reported; where this is not 0, each look costs a request."""

    @property
    def location(self) -> str:
        """The same text for every spelling of the location."""

    def make_root(self) -> None:
        """Make the location and check that it can be used; raises `ConnectorError`."""

    def keep_root(self) -> None:
        """From now on refuse, with `SpoolError`, another place under the same name, as after an unmount."""

    def check_visible(self) -> None:
        """Raise `SpoolError` if this machine cannot see the location."""

    def temporary_files(self) -> list[str]:
        """Return the names, without the folder, of the temporary files that spools have written."""
        return []


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How to reach an object store. None: from the environment, as the store's own tools have it.

    For Azure `key_id` and `secret` are the name and the key of the account; `credentials_file` is Google's.
    """

    endpoint: str | None = None
    region: str | None = None
    key_id: str | None = field(default=None, repr=False)
    secret: Secret | None = None
    session_token: Secret | None = None
    credentials_file: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the secrets in it, for a pipe between processes; never to be shown."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.reveal() if isinstance(value, Secret) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return what `to_json` wrote."""
        secrets = {name: Secret(value[name]) for name in ("secret", "session_token") if value.get(name) is not None}
        return cls(**{**value, **secrets})
