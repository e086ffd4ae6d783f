"""Options of a spool: the same for every source, and the folder that lasts no longer than its machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.options.declaration import declared_options
from connectors.pubsub.options.source import PubSubReadOptions
from connectors.spool import SpoolOptions
from connectors.spool.options import ephemeral_folder
from tests.support.spool_folders import OTHER, USER, acting_as, is_root, make, refused
from tests.support.sqs_rig import EXAMPLES


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can come to: pytest's folders let nobody through."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@is_root
def test_ephemeral_folder_that_another_user_made_before_is_refused(folder: Path) -> None:
    folder.chmod(0o1777)
    with acting_as(USER):
        root = ephemeral_folder("pubsub", "s", {"TMPDIR": str(folder)})
    assert str(USER) in str(root)
    with acting_as(OTHER):
        root.mkdir(parents=True)
        root.parent.chmod(0o777)
        root.chmod(0o777)
    with acting_as(USER):
        error = refused(root)
    assert (error.code, error.where) == ("SPOOL_FOREIGN_OWNER", str(root.parent))


def test_ephemeral_folder_and_its_parent_are_made_for_the_user_alone(folder: Path) -> None:
    folder.chmod(0o1777)
    root = ephemeral_folder("pubsub", "s", {"TMPDIR": str(folder)})
    before = os.umask(0)
    try:
        make(root)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (root, root.parent)] == [0o700, 0o700]


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_each_option_of_the_spool_is_one_of_pubsub_with_the_same_kind_and_default() -> None:
    of_spool, of_pubsub = declared_options(SpoolOptions), declared_options(PubSubReadOptions)
    assert len(of_spool) == 32
    for field, declared in of_spool.items():
        other = of_pubsub[field]
        assert (other.name, other.kind, other.default) == (declared.name, declared.kind, declared.default)
        assert other.doc.startswith(declared.doc)
    assert of_pubsub["fetchers"].aliases == ("numFetchPartitions",)
