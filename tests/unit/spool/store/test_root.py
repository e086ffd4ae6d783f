"""Who else could change or replace a local spool: the owners and the rights of its folder and of all parents."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import SpoolError
from connectors.spool.fetching.room import FetcherFolder
from tests.support.spool_folders import OTHER, USER, acting_as, is_root, made, make, refused


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can come to: pytest's folders let nobody through."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_folder_that_its_group_may_write_to_is_refused_with_chmod_advice(folder: Path) -> None:
    root = made(folder / "spool", 0o775)
    error = refused(root)
    assert error.code == "SPOOL_GROUP_WRITABLE"
    assert f"chmod -R go-w {root}" in error.action
    root.chmod(0o755)
    make(root)


def test_folder_inside_of_the_spool_that_others_may_write_to_is_refused(folder: Path) -> None:
    made(folder / "spool", 0o755)
    inbox = made(folder / "spool" / "inbox", 0o777)
    error = refused(folder / "spool")
    assert (error.code, error.where) == ("SPOOL_WORLD_WRITABLE", str(inbox))


def test_sticky_bit_does_not_protect_the_folder_of_the_spool_itself(folder: Path) -> None:
    assert refused(made(folder / "spool", 0o1777)).code == "SPOOL_WORLD_WRITABLE"


@pytest.mark.parametrize("depth", [1, 2])
def test_parent_that_everyone_may_write_to_is_refused_and_named(folder: Path, depth: int) -> None:
    shared = made(folder / "shared", 0o777)
    root = shared.joinpath(*["inner"] * depth)
    error = refused(root)
    assert (error.code, error.where) == ("SPOOL_WORLD_WRITABLE", str(shared))
    assert f"chmod go-w {shared}" in error.action
    shared.chmod(0o1777)
    make(root)


def test_parent_behind_a_link_is_looked_at(folder: Path) -> None:
    shared = made(folder / "shared", 0o777)
    made(shared / "mine", 0o700)
    (folder / "link").symlink_to("shared/../shared/mine")
    assert refused(folder / "link" / "spool").where == str(shared)
    shared.chmod(0o755)
    make(folder / "link" / "spool")
    make(folder / "link" / "spool")


def test_links_that_lead_in_a_circle_are_refused(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert refused(folder / "a" / "spool").code == "SPOOL_NOT_WRITABLE"


def test_folder_of_another_user_is_refused() -> None:
    root = Path("/usr/share")
    if os.geteuid() == 0:
        with acting_as(USER):
            error = refused(root)
    else:
        error = refused(root)
    assert (error.code, error.where) == ("SPOOL_FOREIGN_OWNER", str(root))
    assert "uid 0" in error.what


@is_root
def test_root_refuses_the_folder_of_another_user_as_others_do(folder: Path) -> None:
    assert refused(made(folder / "spool", 0o700, OTHER)).code == "SPOOL_FOREIGN_OWNER"


@is_root
def test_parents_may_be_of_root_or_of_the_user_and_of_nobody_else(folder: Path) -> None:
    mine = made(folder / "mine", 0o755, USER)
    theirs = made(folder / "theirs", 0o755, OTHER)
    made(theirs / "mine", 0o700, USER)
    with acting_as(USER):
        make(mine / "a" / "spool")
        error = refused(theirs / "mine" / "spool")
    assert (error.code, error.where) == ("SPOOL_FOREIGN_OWNER", str(theirs))


@is_root
def test_link_of_another_user_is_refused(folder: Path) -> None:
    shared = made(folder / "shared", 0o1777)
    target = made(folder / "target", 0o755, USER)
    (shared / "link").symlink_to(target)
    os.chown(shared / "link", OTHER, OTHER, follow_symlinks=False)
    with acting_as(USER):
        error = refused(shared / "link" / "spool")
        (shared / "own").symlink_to(target)
        make(shared / "own" / "spool")
    assert (error.code, error.where) == ("SPOOL_FOREIGN_OWNER", str(shared / "link"))


@is_root
def test_group_write_of_a_parent_is_refused_unless_nobody_else_is_in_the_group(folder: Path) -> None:
    parent = made(folder / "data", 0o2775)
    os.chown(parent, 0, 100)
    made(parent / "mine", 0o700, USER)
    with acting_as(USER):
        error = refused(parent / "mine" / "spool")
    assert (error.code, error.where) == ("SPOOL_GROUP_WRITABLE", str(parent))
    # As volumes of Kubernetes with fsGroup are, and folders of a group that only this user has.
    os.chown(parent, 0, USER)
    parent.chmod(0o2775)
    with acting_as(USER):
        make(parent / "mine" / "spool")


def test_fetcher_refuses_a_folder_that_others_may_write_to(folder: Path) -> None:
    root = folder / "spool"
    make(root)
    root.chmod(0o770)
    with pytest.raises(SpoolError, match="SPOOL_GROUP_WRITABLE"):
        FetcherFolder(str(root))
