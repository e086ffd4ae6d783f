"""A spool on an object store, by conditional puts, which are atomic and durable (rules R1, R2, R7 and R9).

A folder of the inbox is an object ``folders/inbox/<fetcher>``, which names its holder; only its own machine can see
whether that process lives. So before a fetcher is forgotten, or another one follows it, its next name is *closed*: an
object with a fixed content is put there, if the name is free. From then on the fetcher cannot publish, however late its
put arrives; and if the name was taken, there is a segment to admit. A closed name stays for ever, and counts as absent.
"""

from __future__ import annotations

import errno
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from connectors.core.errors import ServiceUnavailableError, SpoolError
from connectors.core.formats import install_command
from connectors.core.processes.failpoints import failpoint
from connectors.spool.errors import foreign_file
from connectors.spool.store.base import FolderHold, Holder, Store, StoreAccess, StoreWriting, Version, parse_object_url

if TYPE_CHECKING:
    from connectors.spool.store.object_client import ObjectClient

_INBOX: Final = "inbox"
_FOLDERS: Final = "folders"
_TEMPORARY: Final = "tmp"
_CLOSED: Final = b"closed: nothing is published under this name any more\n"
_TAIL_BYTES: Final = 256 << 10
_OWN_NAME: Final = re.compile(rf"{_FOLDERS}/{_INBOX}/[^/]+|probe/[^/]+")


class ObjectStore(Store):
    """A store in a bucket; `root` is its URL, and `retries` are those of `ObjectClient`."""

    look_seconds = 5.0

    def __init__(self, root: str, owner: str, access: StoreAccess, retries: Mapping[str, Any] | None = None) -> None:
        self.root = root.rstrip("/")
        self.owner = owner
        self.unsure = False
        """Whether a put of this process may or may not have been done, or found its name taken."""
        self._url = parse_object_url(root)
        self._access, self._retries = access, retries
        self._closed: set[str] = set()

    @cached_property
    def client(self) -> ObjectClient:
        """Import obstore at the first call; a local spool does not need it. Raises `SpoolError` without obstore."""
        try:
            from connectors.spool.store.object_client import ObjectClient  # noqa: PLC0415 - it imports obstore
        except ImportError:
            what = (
                f"A spool on an object store needs obstore, which is not installed on the host {socket.gethostname()}"
            )
            action = f"Install the extra objects there: {install_command('objects')}."
            raise SpoolError("SPOOL_OBSTORE_MISSING", what, self.location, action) from None
        return ObjectClient(self._url, self._access, self._retries)

    @property
    def location(self) -> str:
        return str(self._url)

    def make_root(self) -> None:
        """Check that the store can be reached, and that it honours the condition of a put; raises `ConnectorError`."""
        name = f"probe/{self.owner}"
        try:
            self.client.create(name, b"1")
            replaced = self.client.create(name, b"2")
            self.client.delete(name)
        except TimeoutError as error:
            raise ServiceUnavailableError("SPOOL_STORE_NO_ANSWER", str(error.strerror), self.root) from None
        if replaced:
            what = "The object store replaced an object although the put was conditional"
            raise SpoolError("SPOOL_STORE_NOT_CONDITIONAL", what, self.root)

    def keep_root(self) -> None:
        """Do nothing: a URL means one place."""

    def check_visible(self) -> None:
        """Do nothing: what cannot be reached says so when it is read."""

    def sync_folder(self, name: str) -> None:
        """Do nothing: what was answered is durable."""

    def overwrite(self, name: str, data: bytes) -> None:
        self.client.overwrite(name, data)

    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        return self.client.read_version(name)

    def swap(self, name: str, data: bytes, version: Version) -> Version | None:
        return self.client.swap(name, data, version)

    def writer(self, name: str) -> _ObjectWriter:
        return _ObjectWriter(self, name)

    def map(self, name: str) -> memoryview:
        data = self.client.download(name)
        self._refuse_closed(name, data)
        return data

    def pieces(self, name: str) -> _RemotePieces:
        pieces = _RemotePieces(self.client, name)
        self._refuse_closed(name, pieces.tail)
        return pieces

    def exists(self, name: str) -> bool:
        if name in self._closed:
            return False
        size = self.client.size(name)
        return size is not None and not self._is_closed_by_size(name, size)

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder; those of the inbox are the folders that were made and not removed."""
        if folder == _TEMPORARY:
            return []
        if folder == _INBOX:
            return list(self.client.names(f"{_FOLDERS}/{_INBOX}"))
        return [
            name
            for name, size in self.client.names(folder).items()
            if size is None or not self._is_closed_by_size(f"{folder}/{name}", size)
        ]

    def written(self, folder: str) -> dict[str, float]:
        return self.client.written(f"{_FOLDERS}/{_INBOX}" if folder == _INBOX else folder)

    def remove_empty_folders(self, name: str) -> None:
        """Do nothing: a folder is an object, and deleted as one."""

    def allocate(self, name: str, size: int) -> None:
        """Do nothing: a bucket is never full."""

    def sizes(self) -> dict[str, int]:
        return self.client.sizes()

    def is_own_name(self, name: str) -> bool:
        return _OWN_NAME.fullmatch(name) is not None

    def delete(self, name: str) -> None:
        self.client.delete(name)

    def make_folder(self, name: str) -> None:
        self.client.create(f"{_FOLDERS}/{name}", b"{}")

    def hold_folder(self, name: str) -> _HeldFolder:
        self.client.overwrite(f"{_FOLDERS}/{name}", json.dumps(asdict(Holder.this_process())).encode())
        return _HeldFolder(self, name)

    def is_locked(self, name: str) -> bool:
        holder = self._holder(name)
        return holder is not None and holder.lives

    def held_elsewhere(self, name: str) -> bool:
        holder = self._holder(name)
        return holder is not None and not holder.is_here

    def _holder(self, name: str) -> Holder | None:
        data = self.client.read(f"{_FOLDERS}/{name}")
        try:
            value = json.loads(data) if data else {}
            return Holder(**value) if value else None
        except (ValueError, TypeError, RecursionError):
            raise foreign_file(self.root, f"{_FOLDERS}/{name}") from None

    def close_folder(self, name: str, next_file: str) -> bool:
        """Close the next name of a folder, unless it is held on this machine; return False if the name is taken."""
        if next_file not in self._closed:
            if self.is_locked(name):
                return False
            failpoint("store.before_close")
            if not self.client.create(next_file, _CLOSED):
                return False
            failpoint("store.after_close")
            self._closed.add(next_file)
        return True

    def is_closed(self, name: str) -> bool:
        return name in self._closed or self._is_closed_by_size(name, self.client.size(name))

    def remove_unlocked_folder(self, name: str) -> None:
        if not self.is_locked(name) and not self.names(name):
            self.client.delete(f"{_FOLDERS}/{name}")

    def _is_closed_by_size(self, name: str, size: int | None) -> bool:
        return size == len(_CLOSED) and self._is_closed(name, self.client.read(name) or b"")

    def _is_closed(self, name: str, data: bytes | memoryview) -> bool:
        closed = name.startswith(f"{_INBOX}/") and data == _CLOSED
        if closed:
            self._closed.add(name)
        return closed

    def _refuse_closed(self, name: str, data: bytes | memoryview) -> None:
        if self._is_closed(name, data):
            raise FileNotFoundError(errno.ENOENT, "Nothing is published under this name any more", name)


class _HeldFolder(FolderHold):
    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name

    def is_present(self) -> bool:
        # After a put whose outcome is not known, its number can be neither used again nor skipped.
        return not self._store.unsure

    def release(self) -> None:
        self._store.client.overwrite(f"{_FOLDERS}/{self._name}", b"{}")


class _ObjectWriter(StoreWriting):
    """An object that is collected in memory until it is put."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._data = BytesIO()
        self.length = 0

    def write(self, data: bytes | memoryview) -> None:
        self.length += self._data.write(data)

    def publish(self) -> bool:
        """Put the object if its name is free; raises `FileNotFoundError` if its folder was closed (rule R2)."""
        failpoint("store.before_put")
        try:
            with self._data.getbuffer() as view:
                published = self._store.client.create(self._name, view)
        except OSError:
            self._store.unsure = True
            raise
        if not published and self._name.startswith(f"{_INBOX}/"):
            self._store.unsure = True
            raise FileNotFoundError(errno.ENOENT, "The folder was closed, or a late put was done", self._name)
        failpoint("store.after_publish")
        return published

    def discard(self) -> None:
        self._data.close()


class _RemotePieces:
    """An object that is read piece by piece; its end, where footers are, comes with the first request."""

    def __init__(self, client: ObjectClient, name: str) -> None:
        self._client = client
        self._name = name
        self.tail, self._length = client.tail(name, _TAIL_BYTES)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, piece: slice, /) -> memoryview:
        start, end, _ = piece.indices(self._length)
        in_tail = start - (self._length - len(self.tail))
        if in_tail >= 0:
            return memoryview(self.tail)[in_tail : in_tail + max(end - start, 0)]
        return self._client.piece(self._name, start, end)
