"""A disk that refuses what a spool needs: no hard links, no locks, files of another user. Each is told by name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import SpoolError
from connectors.core.offsets import SENTINEL
from connectors.spool.admin.survey import stats
from connectors.spool.segments.segment import read_slices
from connectors.spool.store.disk import Disk
from connectors.spool.stream.slices import SpoolRange, plan, plan_spool_rows
from tests.support.power_loss_rig import on_disk
from tests.support.spool_streams import open_stream
from tests.support.spool_writing import SOURCES, HandSpool, fill

pytestmark = pytest.mark.guarantee

NOBODY = 65534


class NoLinks(Disk):
    """The disk of a file system without hard links; the errors are as `os.link` raises them."""

    def __init__(self, number: int) -> None:
        self._number = number

    def link(self, source: str, source_folder: int, name: str, folder: int) -> None:  # noqa: ARG002 - as of the base
        raise OSError(self._number, os.strerror(self._number), source, None, name)


@pytest.fixture
def spool() -> Iterator[HandSpool]:
    """A spool that other users can come to: pytest's folders let nobody through."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = HandSpool(Path(folder, "spool"))
        fill(made)
        with open_stream(made.root):
            pass
        yield made


@contextlib.contextmanager
def refused(path: Path, root: Path) -> Iterator[None]:
    """All of a spool belongs to the user of the query, but for one file or folder of another user."""
    if os.geteuid() != 0:
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            yield
        finally:
            path.chmod(mode)
        return
    for each in (root, *root.rglob("*")):
        owner = 0 if each == path or path in each.parents else NOBODY
        os.chown(each, owner, owner)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def start(root: Path) -> None:
    with open_stream(root) as stream:
        stream.latest_offset(SENTINEL, 10)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV])
def test_a_file_system_without_hard_links_is_refused_with_what_to_do(number: int, tmp_path: Path) -> None:
    with on_disk(NoLinks(number)), pytest.raises(SpoolError, match=r"^\[SPOOL_NOT_WRITABLE\].*hard links") as caught:
        start(tmp_path / "spool")
    assert caught.value.where == f"{tmp_path}/spool/spool.json"
    assert "one file system with hard links and locks" in caught.value.action


def test_an_error_of_a_real_link_names_both_files_in_full(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    spool.open()
    with (
        pytest.raises(FileNotFoundError) as caught,
        spool.store.tree.open("tmp") as source,
        spool.store.tree.open("epochs") as target,
    ):
        Disk().link("gone", source, "9", target)
    assert caught.value.filename == f"{spool.root}/tmp/gone"
    assert caught.value.filename2 == f"{spool.root}/epochs/9"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused_with_what_to_do(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: int, _how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SpoolError, match=rf"^\[SPOOL_NOT_WRITABLE\].*no locks.*{tmp_path}/spool/lock.*hard links"):
        start(tmp_path / "spool")


@pytest.mark.parametrize("name", ["spool.json", "lock", "epochs", "ledger", "ids", "inbox/f1", "tmp", ""])
def test_a_start_on_a_spool_with_files_of_another_user_names_the_file_and_the_way_on(
    name: str, spool: HandSpool
) -> None:
    path = spool.root / name
    code = "SPOOL_NOT_WRITABLE" if name or os.geteuid() != 0 else "SPOOL_FOREIGN_OWNER"
    with refused(path, spool.root), pytest.raises(SpoolError, match=rf"^\[{code}\]") as caught:
        start(spool.root)
    assert caught.value.where.startswith(str(path))
    assert ("run as uid" if code == "SPOOL_FOREIGN_OWNER" else "user") in caught.value.action


def test_those_who_only_read_name_the_file_of_another_user_and_the_way_on(spool: HandSpool) -> None:
    ledger = spool.ledger
    assert ledger is not None
    (slices,) = plan(ledger.state, 0, 2, ledger.row_sizes)
    wanted = SpoolRange("earliest", "latest", 1 << 20, 4)
    for path in (spool.root / "ledger", spool.root):
        with refused(path, spool.root):
            with pytest.raises(SpoolError, match=rf"^\[SPOOL_UNREADABLE\].*{path}.*chown"):
                stats(str(spool.root))
            with pytest.raises(SpoolError, match=rf"^\[SPOOL_UNREADABLE\].*{path}.*chown"):
                plan_spool_rows(str(spool.root), "pubsub", SOURCES, wanted)
    with refused(spool.root, spool.root), pytest.raises(SpoolError, match=rf"^\[SPOOL_UNREADABLE\].*{spool.root}"):
        list(read_slices(str(spool.root), slices))


class FullSync(Disk):
    """A disk of a system with a command for durability beside fsync(2), as a Mac's F_FULLFSYNC is."""

    full_sync = fcntl.F_GETFD


class RefusedFullSync(Disk):
    """A disk of such a system whose file system does not have the command."""

    full_sync = 0x7FFF


class NoReserve(Disk):
    """A disk of a system that reserves no space."""

    reserves = False


@pytest.fixture
def pipe() -> Iterator[int]:
    """What fsync(2) refuses, and other commands of fcntl(2) take."""
    reading, writing = os.pipe()
    yield writing
    os.close(reading)
    os.close(writing)


def test_a_system_with_a_command_for_durability_gets_it_instead_of_fsync(pipe: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        Disk().fsync(pipe)
    FullSync().fsync(pipe)


def test_fsync_does_where_the_file_system_refuses_that_command(tmp_path: Path, pipe: int) -> None:
    for path in (tmp_path, tmp_path / "file"):
        opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT)
        RefusedFullSync().fsync(opened)
        os.close(opened)
    with pytest.raises(OSError, match="Invalid argument"):
        RefusedFullSync().fsync(pipe)


def test_another_error_of_that_command_is_raised(tmp_path: Path) -> None:
    closed = os.open(tmp_path, os.O_RDONLY)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        FullSync().fsync(closed)


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (5 << 20) + 1])
def test_space_is_reserved_by_writing_where_the_system_reserves_none(tmp_path: Path, size: int) -> None:
    with (tmp_path / "reserve").open("wb", buffering=0) as file:
        NoReserve().allocate(file.fileno(), size)
    state = (tmp_path / "reserve").stat()
    assert state.st_size == size
    assert state.st_blocks * 512 >= size
