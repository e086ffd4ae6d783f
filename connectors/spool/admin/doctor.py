"""Checks of a spool for ``connectors doctor``: can it be used, does it last, who holds it. Changes nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from connectors.core.diagnostics import Finding, FindingError, run_checks
from connectors.core.errors import ConnectorError, SpoolError
from connectors.spool.ledger.identity import check_source, read_identity, refuse_foreign_folder
from connectors.spool.ledger.recovery import read_state
from connectors.spool.ledger.writer_lock import spool_holder
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.store.disk import FOLDER_NAMES, check_protected

_VOLATILE: Final = frozenset({"tmpfs", "ramfs", "overlay"})
_TEMPORARY: Final = ("/tmp", "/dev/shm", "/private/tmp", "/private/var/folders")  # noqa: S108 - it is warned of


def check_spool(
    root: str, connector: str, sources: tuple[str, ...], wanted_bytes: int, access: StoreAccess | None = None
) -> Iterator[Finding]:
    """Check the spool of a query, which may not exist yet; a test file or object is put there and deleted.

    `connector` and `sources` are what the query reads, `wanted_bytes` is how much the spool may hold.
    """
    store = open_store(root, f"doctor-{secrets.token_hex(8)}", access)

    def results() -> Iterator[str | ConnectorError]:
        if "://" in root:
            store.make_root()
            yield f"{root} takes objects, and replaces none that it must not"
        else:
            folder = next(folder for folder in (Path(root), *Path(root).parents) if os.path.lexists(folder))
            yield _writable(folder, root)
            yield _disk(folder.resolve())
            yield _room(folder, wanted_bytes)
        yield _content(store, connector, sources)
        yield _holder(store)

    local = () if "://" in root else ("disk", "room")
    return run_checks("spool", ("writable", *local, "content", "held by"), results())


def _writable(folder: Path, root: str) -> str:
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder) as made:
            Path(made, "first").touch()
            os.link(Path(made, "first"), Path(made, "second"))
    except OSError as error:
        what = f"{folder} does not accept files and links: {error.strerror}"
        raise SpoolError("SPOOL_NOT_WRITABLE", what, root) from None
    check_protected(root, FOLDER_NAMES)
    return f"{folder} takes files and links" + ("" if str(folder) == root else f"; {root} can be made there")


def _disk(folder: Path) -> str | ConnectorError:
    kind = _file_system(str(folder))
    if kind in _VOLATILE or str(folder).startswith(_TEMPORARY):
        what = f"{folder} is on {kind} or for temporary files, and may be emptied with the machine or container"
        return FindingError("SPOOL_VOLATILE", what)
    return f"{kind}; executors on other machines must see it under the same path"


def _room(folder: Path, wanted_bytes: int) -> str | ConnectorError:
    free = shutil.disk_usage(folder).free
    if free >= wanted_bytes:
        return f"{free / 1e9:,.1f} GB free"
    what = f"{free / 1e9:,.1f} GB free, but maxSpoolBytes allows {wanted_bytes / 1e9:,.1f} GB"
    return FindingError("SPOOL_LITTLE_ROOM", what)


def _file_system(path: str) -> str:
    """Return the type of the file system that holds a folder, from ``/proc/self/mounts`` (proc(5))."""
    longest, kind = "", "an unknown file system"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            point, mounted = line.split()[1:3]
            if Path(path).is_relative_to(point) and len(point) >= len(longest):
                longest, kind = point, mounted
    return kind


def _content(store: Store, connector: str, sources: tuple[str, ...]) -> str:
    identity = read_identity(store)
    if identity is None:
        refuse_foreign_folder(store)
        return "nothing yet: the query makes the spool when it starts"
    check_source(store, identity, connector, sources)
    state = read_state(store, identity.spool)
    return f"spool {identity.spool}: {state.head:,} rows since it was made, {state.committed:,} committed by Spark"


def _holder(store: Store) -> str | ConnectorError:
    holder = None if read_identity(store) is None else spool_holder(store)
    if holder is None:
        return "nobody"
    what = f"a running query uses it: {holder}{'' if holder.is_here else ', unless that has crashed'}"
    return FindingError("SPOOL_IN_USE", what)
