"""Folders of a local spool, their owners and rights."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import SpoolError
from connectors.spool.store.local import LocalStore

USER, OTHER = 65533, 65532
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of another user")


@contextlib.contextmanager
def acting_as(user: int) -> Iterator[None]:
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def make(root: Path) -> None:
    LocalStore(str(root), "ab").make_root()


def refused(root: Path) -> SpoolError:
    with pytest.raises(SpoolError) as caught:
        make(root)
    return caught.value


def made(path: Path, mode: int, owner: int | None = None) -> Path:
    path.mkdir()
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path
