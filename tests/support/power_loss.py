"""What a loss of power can leave of a spool: a disk that records every call, and the folders that could be left.

A kill is no loss of power: what a process wrote outlives it in the page cache. When the power goes, every name and byte
that was not synced may be there or not, and POSIX promises no order among them. So the calls of a run are recorded with
`RecordingDisk`, and a `DiskModel` that has been told them up to some point says what may be left then:

    recording = RecordingDisk(spool)
    LocalStore.disk = recording
    ...                                      # a run
    model = DiskModel()
    for call in recording.calls:
        model.apply(call)
        write_tree(spool, model.left(Way.LOST))
        ...                                  # start on what is left
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from connectors.spool.store.disk import Disk

__all__ = ["DiskCall", "DiskModel", "RecordingDisk", "Tree", "Way", "write_tree"]

Kind = Literal["create", "write", "truncate", "allocate", "fsync", "mkdir", "link", "rename", "unlink", "rmdir"]

Tree = dict[str, bytes | None]
"""What a folder holds: the bytes of each file, and None for each folder below it, by path."""


class Way(StrEnum):
    """What becomes of the names and bytes that were not synced."""

    LOST = "lost"
    """All are gone."""
    KEPT = "kept"
    """All are there, as after a kill."""
    NAMES = "names"
    """The names are there, the bytes are not: files end where they were last synced."""
    ZEROS = "zeros"
    """Names and lengths are there, the bytes are zero."""
    MIXED = "mixed"
    """Each name by chance; the bytes of each file in one of these ways, or cut anywhere."""


@dataclass(frozen=True, slots=True)
class DiskCall:
    """One call that changed the disk.

    Attributes:
        kind: the call, as `Disk` names it.
        path: what it is about, from the recorded folder on; "" is that folder itself.
        source: of a link or a rename, the name that the file had.
        data: what was written.
    """

    kind: Kind
    path: str
    source: str = ""
    data: bytes = b""


class RecordingDisk(Disk):
    """A disk that records every call that went well, of all threads in one order.

    It syncs nothing: what is durable follows from the record, and the machine that runs a test goes on.

    Args:
        folder: what is recorded; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self.calls: list[DiskCall] = []
        self.lock = threading.Lock()
        self._folder = os.path.realpath(folder)

    def create(self, name: str, folder: int, mode: int) -> int:
        """See `Disk.create`."""
        self.before("create", self._path(folder, name))
        with self.lock:
            file = super().create(name, folder, mode)
            self._note("create", self._path(folder, name))
            return file

    def open_or_create(self, name: str, folder: int, mode: int) -> int:
        """See `Disk.open_or_create`; recorded, as the creation of a file, if there was none."""
        path = self._path(folder, name)
        self.before("create", path)
        with self.lock:
            is_new = not os.path.lexists(f"{self._folder}/{path}")
            file = super().open_or_create(name, folder, mode)
            if is_new:
                self._note("create", path)
            return file

    def truncate(self, file: int) -> None:
        """See `Disk.truncate`."""
        self.before("truncate", self._path(file))
        with self.lock:
            super().truncate(file)
            self._note("truncate", self._path(file))

    def allocate(self, file: int, size: int) -> None:
        """See `Disk.allocate`."""
        self.before("allocate", self._path(file))
        with self.lock:
            super().allocate(file, size)
            self._note("allocate", self._path(file))

    def write(self, file: int, data: bytes | memoryview) -> int:
        """See `Disk.write`."""
        self.before("write", self._path(file))
        with self.lock:
            written = super().write(file, data)
            self._note("write", self._path(file), data=bytes(memoryview(data).cast("B")[:written]))
            return written

    def fsync(self, opened: int) -> None:
        """See `Disk.fsync`."""
        self.before("fsync", self._path(opened))
        with self.lock:
            self._note("fsync", self._path(opened))

    def mkdir(self, name: str, folder: int, mode: int) -> None:
        """See `Disk.mkdir`."""
        self.before("mkdir", self._path(folder, name))
        with self.lock:
            super().mkdir(name, folder, mode)
            self._note("mkdir", self._path(folder, name))

    def link(self, source: str, source_folder: int, name: str, folder: int) -> None:
        """See `Disk.link`."""
        self.before("link", self._path(folder, name))
        with self.lock:
            super().link(source, source_folder, name, folder)
            self._note("link", self._path(folder, name), source=self._path(source_folder, source))

    def rename(self, source: str, source_folder: int, name: str, folder: int) -> None:
        """See `Disk.rename`."""
        self.before("rename", self._path(folder, name))
        with self.lock:
            before = self._path(source_folder, source)
            super().rename(source, source_folder, name, folder)
            self._note("rename", self._path(folder, name), source=before)

    def unlink(self, name: str, folder: int) -> None:
        """See `Disk.unlink`."""
        self.before("unlink", self._path(folder, name))
        with self.lock:
            super().unlink(name, folder)
            self._note("unlink", self._path(folder, name))

    def rmdir(self, name: str, folder: int) -> None:
        """See `Disk.rmdir`."""
        self.before("rmdir", self._path(folder, name))
        with self.lock:
            super().rmdir(name, folder)
            self._note("rmdir", self._path(folder, name))

    def before(self, kind: Kind, path: str) -> None:
        """Called before each call; a test may override it to refuse the call, or to do something in between."""

    def _path(self, opened: int, name: str = "") -> str:
        path = os.readlink(f"/proc/self/fd/{opened}")  # noqa: PTH115 - a link of the kernel, not of a path
        return os.path.relpath(f"{path}/{name}" if name else path, self._folder).removeprefix(".")

    def _note(self, kind: Kind, path: str, source: str = "", data: bytes = b"") -> None:
        self.calls.append(DiskCall(kind, path, source, data))


@dataclass(eq=False)
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: int = 0


@dataclass(eq=False)
class _Folder:
    """A folder: its names now, those that are durable, and in order what changed since (None: the name was taken)."""

    names: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    changes: list[tuple[str, _File | _Folder | None]] = field(default_factory=list)

    def change(self, name: str, node: _File | _Folder | None) -> None:
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.changes.append((name, node))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()


class DiskModel:
    """A recorded folder after some calls, with what is durable of it; it begins empty.

    Allocated space is no content: such a file stays as it was. A truncation is durable at once.
    """

    def __init__(self) -> None:
        self._root = _Folder()

    def apply(self, call: DiskCall) -> None:
        """Go on by one call."""
        folder, _, name = call.path.rpartition("/")
        if call.kind == "write":
            self._file(call.path).data += call.data
        elif call.kind == "fsync":
            node = self._node(call.path)
            if isinstance(node, _Folder):
                node.sync()
            else:
                node.synced = len(node.data)
        elif call.kind == "truncate":
            file = self._file(call.path)
            file.data.clear()
            file.synced = 0
        elif call.kind == "create":
            self._folder(folder).change(name, _File())
        elif call.kind == "mkdir":
            self._folder(folder).change(name, _Folder())
        elif call.kind == "link":
            self._folder(folder).change(name, self._file(call.source))
        elif call.kind == "rename":
            before, _, old = call.source.rpartition("/")
            file = self._file(call.source)
            self._folder(before).change(old, None)
            self._folder(folder).change(name, file)
        elif call.kind != "allocate":
            self._folder(folder).change(name, None)

    def left(self, way: Way, choose: random.Random | None = None) -> Tree:
        """What is left when the power goes now.

        Args:
            way: what becomes of what is not synced.
            choose: decides in `Way.MIXED`.
        """
        chooser = choose or random.Random(0)
        tree: Tree = {}
        bytes_of: dict[int, bytes] = {}

        def visit(folder: _Folder, path: str) -> None:
            for name, node in sorted(_names_left(folder, way, chooser).items()):
                below = f"{path}/{name}" if path else name
                if isinstance(node, _Folder):
                    tree[below] = None
                    visit(node, below)
                else:
                    if id(node) not in bytes_of:
                        bytes_of[id(node)] = _bytes_left(node, way, chooser)
                    tree[below] = bytes_of[id(node)]

        visit(self._root, "")
        return tree

    def _node(self, path: str) -> _File | _Folder:
        node: _File | _Folder = self._root
        for part in filter(None, path.split("/")):
            if not isinstance(node, _Folder):
                raise NotADirectoryError(path)
            node = node.names[part]
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._node(path)
        if not isinstance(node, _Folder):
            raise NotADirectoryError(path)
        return node

    def _file(self, path: str) -> _File:
        node = self._node(path)
        if not isinstance(node, _File):
            raise IsADirectoryError(path)
        return node


def _names_left(folder: _Folder, way: Way, choose: random.Random) -> dict[str, _File | _Folder]:
    if way is Way.LOST:
        return folder.durable
    if way is not Way.MIXED:
        return folder.names
    names = dict(folder.durable)
    for name, node in folder.changes:
        if choose.random() < 0.5:
            continue
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
    return names


def _bytes_left(file: _File, way: Way, choose: random.Random) -> bytes:
    data, synced = bytes(file.data), file.synced
    if way is Way.MIXED:
        cut = choose.randint(synced, len(data))
        way = choose.choice((Way.KEPT, Way.NAMES, Way.ZEROS, Way.MIXED))
        if way is Way.MIXED:
            return data[:cut]
    if way is Way.KEPT:
        return data
    return data[:synced] + (bytes(len(data) - synced) if way is Way.ZEROS else b"")


def write_tree(folder: Path, tree: Tree) -> None:
    """Replace a folder by what was left of it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for path, data in tree.items():
        if data is None:
            (folder / path).mkdir(mode=0o700)
        else:
            (folder / path).write_bytes(data)
            (folder / path).chmod(0o600)
