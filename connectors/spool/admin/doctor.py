"""Checks of a spool for ``connectors doctor``: can it be used, who holds it, does a checkpoint fit. Changes nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from connectors.core.diagnostics import Finding, Steps, look_at_checkpoint
from connectors.core.errors import OffsetError, SpoolError
from connectors.core.offsets import load_offset
from connectors.spool.ledger.identity import check_source, read_identity, refuse_foreign_folder
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.state import LedgerState
from connectors.spool.ledger.writer_lock import spool_holder
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.store.local import FOLDER_NAMES, LocalStore
from connectors.spool.store.object_store import ObjectStore
from connectors.spool.store.protection import check_protected
from connectors.spool.stream.slices import check_range, position_of

_AREA: Final = "spool"
_VOLATILE: Final = frozenset({"tmpfs", "ramfs", "overlay"})
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "9p"})


def check_spool(
    root: Path, connector: str, sources: tuple[str, ...], wanted_bytes: int, checkpoint: Path | None
) -> Iterator[Finding]:
    """Check the folder of a spool, which may not exist yet; a test folder is made in it and removed.

    `connector` and `sources` are what the query reads, `wanted_bytes` is how much the spool may hold.
    """
    steps, store = Steps(_AREA), LocalStore(str(root), "doctor")
    exists = os.path.isdir(root)  # noqa: PTH112 - it is False, and no error, where one may not look
    yield steps.step("writable", lambda: _writable(root))
    yield steps.step("one file system", lambda: _one_file_system(root))
    yield steps.step("kind of disk", lambda: _kind_of_disk(root))
    yield steps.step("room", lambda: _room(root, wanted_bytes))
    if exists:
        yield Steps(_AREA).step("held by", lambda: _holder(store))
    yield from _check_content(steps, store, connector, sources, checkpoint)


def check_object_spool(
    root: str, access: StoreAccess, connector: str, sources: tuple[str, ...], checkpoint: Path | None
) -> Iterator[Finding]:
    """Check a spool on an object store, which may not exist yet; a test object is put there and deleted."""
    steps, store = Steps(_AREA), ObjectStore(root, f"doctor-{secrets.token_hex(8)}", access)

    def usable() -> str:
        store.make_root()
        return f"{root} takes objects, and replaces none that it must not"

    yield steps.step("writable", usable)
    if not steps.failed:
        yield Steps(_AREA).step("held by", lambda: _holder(store))
    yield from _check_content(steps, store, connector, sources, checkpoint)


def _check_content(
    steps: Steps, store: Store, connector: str, sources: tuple[str, ...], checkpoint: Path | None
) -> Iterator[Finding]:
    states: list[LedgerState] = []
    yield steps.step("content", lambda: _content(store, connector, sources, states))
    if checkpoint is not None:
        find = partial(_checkpoint, checkpoint, store.root, connector, states)
        yield steps.step("checkpoint", lambda: look_at_checkpoint(checkpoint, find))


def _existing(root: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(folder for folder in (root, *root.parents) if os.path.lexists(folder))


def _writable(root: Path) -> str:
    folder = _existing(root)
    if not folder.is_dir():
        raise _unusable(f"{folder} is no folder", root)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as made:
            Path(made, "first").touch()
            os.link(Path(made, "first"), Path(made, "second"))
            descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise _unusable(f"{folder} does not take files, links and their sync: {error.strerror}", root) from None
    check_protected(str(root), FOLDER_NAMES)
    return f"{folder} takes files and links" + ("" if folder == root else f"; {root} can be made there")


def _unusable(what: str, root: Path) -> SpoolError:
    action = "Choose a spoolLocation that the user of the driver may write to."
    return SpoolError("SPOOL_NOT_WRITABLE", what, str(root), action)


def _one_file_system(root: Path) -> str:
    """Check the folders: files get their names by a link, which cannot cross file systems; links are not followed."""
    if not root.is_dir():
        return "its folders will be made side by side"
    device = root.stat().st_dev
    for name in FOLDER_NAMES:
        folder = root / name
        if folder.is_symlink():
            what, action = (
                "A link stands for a folder of the spool",
                "Move what it points to here, and remove the link.",
            )
            raise SpoolError("SPOOL_FOREIGN_FILE", what, str(folder), action)
        if folder.exists() and folder.stat().st_dev != device:
            what = "Another file system is mounted inside of the spool"
            action = "Unmount it, and mount one file system over the whole spool."
            raise SpoolError("SPOOL_TWO_FILE_SYSTEMS", what, str(folder), action)
    return "all its folders are on one"


def _kind_of_disk(root: Path) -> str | Finding:
    folder = _existing(root)
    kind = _file_system(folder)
    if kind in _VOLATILE or str(folder.resolve()).startswith(("/tmp", "/dev/shm")):  # noqa: S108 - it is warned of
        place = f"on {kind}" if kind in _VOLATILE else "in a folder for temporary files"
        what = f"{folder.resolve()} is {place}, which may be emptied with the machine or container"
        fix = "Put the spool beside the checkpoint, on a disk that is as durable: after the ack it is the only copy."
        return Finding.warning(_AREA, "kind of disk", what, fix, "SPOOL_VOLATILE")
    if kind in _NETWORK:
        what = f"{kind}: locks of this file system may not hold between machines"
        fix = "Start only one query on this spool; a second one is stopped by the ledger, later than by the lock."
        return Finding.warning(_AREA, "kind of disk", what, fix, "SPOOL_NETWORK_DISK")
    return f"{kind}; executors on other machines must see it under the same path"


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder, from ``/proc/self/mounts`` (proc(5))."""
    longest, kind = "", "an unknown file system"
    path = os.path.realpath(folder)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            point, mounted = line.split()[1:3]
            if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(longest):
                longest, kind = point, mounted
    return kind


def _room(root: Path, wanted_bytes: int) -> str | Finding:
    free = shutil.disk_usage(_existing(root)).free
    text = f"{free / 1e9:,.1f} GB free"
    if free >= wanted_bytes:
        return text
    what = f"{text}, and maxSpoolBytes allows {wanted_bytes / 1e9:,.1f} GB"
    fix = "Make room, or lower maxSpoolBytes: a full disk stops fetching, and loses nothing."
    return Finding.warning(_AREA, "room", what, fix, "SPOOL_LITTLE_ROOM")


def _holder(store: Store) -> str | Finding:
    holder = spool_holder(store)
    if holder is None:
        return "nobody"
    unsure = "" if holder.is_here else ", unless that has crashed"
    action = "Stop that query before another is started on this spool."
    return Finding.warning(_AREA, "held by", f"a running query: {holder}{unsure}", action, "SPOOL_IN_USE")


def _content(store: Store, connector: str, sources: tuple[str, ...], states: list[LedgerState]) -> str:
    """Check whose spool it is; the state of its ledger is added to `states`."""
    identity = read_identity(store)
    if identity is None:
        refuse_foreign_folder(store)
        return "nothing yet: the query makes the spool when it starts"
    check_source(store, identity, connector, sources)
    state = read_state(store, identity.spool)
    states.append(state)
    return f"spool {identity.spool}: {state.head:,} rows since it was made, {state.committed:,} committed by Spark"


def _checkpoint(
    checkpoint: Path, root: str, connector: str, states: list[LedgerState], newest: list[Mapping[str, Any]]
) -> str:
    """Compare the newest offset of a checkpoint with the ledger, as the query does when it starts."""
    offsets = [offset for offset in newest if "spool" in offset]
    if not offsets:
        return f"{checkpoint} holds no offset of a spool yet"
    where = f"checkpoint {checkpoint}"
    if not states:
        names = ", ".join(str(offset["spool"]) for offset in offsets)
        raise OffsetError(
            "SPOOL_OTHER",
            f"The checkpoint means spool {names}, and there is no spool in {root}",
            where,
            "Give the spoolLocation that this checkpoint was used with. If that spool is gone for good, begin with a "
            "new checkpoint too.",
        )
    (state,) = states
    for offset in [offset for offset in offsets if offset["spool"] == state.spool] or offsets:
        position = position_of(state, load_offset(offset, connector), where)
        check_range(state, position, state.head, where)
    return f"its newest batch, which runs again unless it was finished, ends at {position:,} of {state.head:,} rows"
