"""What the spool asks of a store.

A store keeps named, immutable files that are either whole and durable, or absent. `LocalStore` keeps them in a folder,
`ObjectStore` in a bucket; every module of the spool works with either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from connectors.core.options.kinds import Secret

__all__ = ["FolderHold", "Pieces", "Store", "StoreAccess", "StoreWriting"]


class Pieces(Protocol):
    """A file of which pieces can be read."""

    def __len__(self) -> int: ...

    def __getitem__(self, piece: slice, /) -> memoryview: ...


class StoreWriting(Protocol):
    """A file that is being written; `publish` gives it its name."""

    length: int
    """Bytes written so far."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""

    def publish(self) -> bool:
        """Make the file durable under its name; False, and nothing is changed, if that is taken."""

    def discard(self) -> None:
        """Let go of it; a published file stays."""


class FolderHold(Protocol):
    """A folder that a process holds for its life."""

    def is_present(self) -> bool:
        """Whether the folder is there and files may still be published in it."""

    def release(self) -> None:
        """Give it back."""


class Store(Protocol):
    """A store. Names are relative, with ``/`` between at most three parts; folders are made as they are needed."""

    root: str
    """The location as a user gave it."""
    owner: str
    """A name of this process life, which no other uses."""

    @property
    def location(self) -> str:
        """The same for every way to write the location."""

    @property
    def look_seconds(self) -> float:
        """How often to look for news that nobody reported; each look costs a request where this is not 0."""

    def make_root(self) -> None:
        """Make the location, and see that it can be used; raises `ConnectorError`."""

    def keep_root(self) -> None:
        """From now on refuse, with `SpoolError`, another place under the same name, as after an unmount."""

    def check_visible(self) -> None:
        """Raise `SpoolError` if this machine cannot see the location."""

    def put(self, name: str, data: bytes) -> bool:
        """Write a file if its name is free, durably; False, and nothing is changed, if the name is taken."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a file in the place of the one that is there, durably. Only for the identity."""

    def sync_folder(self, name: str) -> None:
        """Make durable what is in a folder and what is not: names that another process gave or took may not be yet."""

    def writer(self, name: str) -> StoreWriting:
        """Begin a file that gets its name only when it is published."""

    def map(self, name: str) -> memoryview:
        """A whole file as read-only memory; raises `FileNotFoundError`."""

    def pieces(self, name: str) -> Pieces:
        """A file of which some pieces will be read; raises `FileNotFoundError`."""

    def read(self, name: str) -> bytes:
        """A copy of a whole file; raises `FileNotFoundError`."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    def list(self, folder: str) -> list[str]:
        """The names in a folder, without their path, sorted; empty if there is no such folder."""

    def names(self, folder: str) -> Sequence[str]:
        """As `list`, in no order."""

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens if it is not there."""

    def make_folder(self, name: str) -> None:
        """Make a folder, durably; nothing happens if it is there."""

    def hold_folder(self, name: str) -> FolderHold | None:
        """Hold a folder for the life of this process; None if another one holds it.

        Raises:
            FileNotFoundError: there is no such folder.
        """

    def is_locked(self, name: str) -> bool:
        """Whether a process that lives, as far as can be seen from here, holds a folder."""

    def held_elsewhere(self, name: str) -> bool:
        """Whether a process that cannot be looked at from here has said to hold a folder, and has not given it back."""

    def close_folder(self, name: str, next_file: str) -> bool:
        """See that nothing more is ever published in a folder whose files are numbered.

        Args:
            name: of the folder.
            next_file: the name that whoever held the folder would publish next.

        Returns:
            Whether it is so: nobody holds the folder, and there is no such file.
        """

    def is_closed(self, name: str) -> bool:
        """Whether `close_folder` has taken a file's name."""

    def remove_unlocked_folder(self, name: str) -> None:
        """Remove a folder if it is empty and nobody holds it."""

    def written(self, folder: str) -> dict[str, float]:
        """When each file in a folder was written, and each folder of the inbox was made, by the store's own clock.

        Seconds since 1970; empty if there is no such folder. A folder on a file system gets a new time with each file.
        """


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How to reach an object store. What is None comes from the environment, as the store's own tools have it.

    Attributes:
        endpoint: URL of a service that speaks S3, where it is not Amazon's.
        region: of the bucket.
        key_id: S3's access key id, or the name of the Azure account.
        secret: S3's secret access key, or the key of the Azure account.
        session_token: of temporary S3 credentials.
        credentials_file: path of a Google service account's key file.
    """

    endpoint: str | None = None
    region: str | None = None
    key_id: str | None = field(default=None, repr=False)
    secret: Secret | None = None
    session_token: Secret | None = None
    credentials_file: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object with the secrets in it, for a pipe between processes; never to be shown."""
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "key_id": self.key_id,
            "secret": None if self.secret is None else self.secret.reveal(),
            "session_token": None if self.session_token is None else self.session_token.reveal(),
            "credentials_file": self.credentials_file,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` wrote."""
        secrets = {name: Secret(value[name]) for name in ("secret", "session_token") if value.get(name) is not None}
        return cls(**{**value, **secrets})
