"""A loss of power at every point of a run loses nothing, doubles nothing, and changes no replay (DESIGN section 8).

``./dev chaos power_loss`` tries every point in every way, and deaths before the loss of power; here is what a run of
some seconds can hold.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from connectors.spool.admin.repair import adopt
from connectors.spool.store.disk_space import DiskReserve
from tests.support.power_loss import DiskCall, DiskModel, RecordingDisk, Tree, Way
from tests.support.power_loss_rig import check, losses, on_disk, record
from tests.support.spool_writing import HandSpool, fill

pytestmark = pytest.mark.guarantee

SAMPLE = 40
DEATHS = 2


def chooser() -> random.Random:
    seed = random.randrange(1 << 30)
    sys.stdout.write(f"seed {seed}\n")
    return random.Random(seed)


def test_a_loss_of_power_at_every_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    recording = record(tmp_path / "life")
    kinds = {(call.kind, call.path.split("/")[1] if "/" in call.path else "") for call in recording.calls}
    done = {("link", "inbox"), ("link", "ledger"), ("link", "ids"), ("unlink", "inbox"), ("unlink", "ids")}
    done |= {("link", "manifests"), ("unlink", "manifests")}
    assert done | {("link", "epochs"), ("rmdir", "inbox"), ("unlink", "ledger")} <= kinds
    for left in losses(recording, [Way.LOST]):
        check(tmp_path / "life", left)


def test_what_was_not_synced_may_be_there_in_part(tmp_path: Path) -> None:
    recording = record(tmp_path / "life")
    choose = chooser()
    found = list(losses(recording, [Way.KEPT, Way.NAMES, Way.ZEROS, Way.MIXED], choose.randrange(1 << 30)))
    for left in choose.sample(found, SAMPLE):
        check(tmp_path / "life", left)


def test_a_loss_of_power_after_a_death_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Names that a dead process gave and did not sync are there for the next one, and not for the one after that."""
    choose = chooser()
    for number in range(DEATHS):
        folder = tmp_path / f"life-{number}"
        recording = record(folder, dies_at=choose.randrange(400))
        found = list(losses(recording, [Way.LOST]))
        for left in choose.sample(found, SAMPLE // DEATHS):
            check(folder, left)


def tree_of(folder: Path) -> Tree:
    """What a folder holds now."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: None if path.is_dir() else path.read_bytes() for name, path in paths.items()}


def model_of(folder: Path) -> DiskModel:
    """A folder of which all is durable."""
    model = DiskModel()
    for name, data in sorted(tree_of(folder).items()):
        model.apply(DiskCall("mkdir" if data is None else "create", name))
        if data is not None:
            model.apply(DiskCall("write", name, data=data))
        model.apply(DiskCall("fsync", name))
        model.apply(DiskCall("fsync", name.rpartition("/")[0]))
    return model


def test_the_record_of_a_life_has_every_change_of_the_disk(tmp_path: Path) -> None:
    """What goes past the watched disk is in no loss of power that is tried."""
    recording = record(tmp_path / "life")
    model = DiskModel()
    for call in recording.calls:
        model.apply(call)
    assert model.left(Way.KEPT) == tree_of(tmp_path / "life/disk")


def test_the_reserve_is_made_and_released_on_the_watched_disk(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "disk/spool")
    spool.identity()
    before = model_of(tmp_path / "disk")
    recording = RecordingDisk(tmp_path / "disk")
    with on_disk(recording):
        reserve = DiskReserve(spool.store)
        reserve.keep()
        reserve.release()
    assert "allocate" in [call.kind for call in recording.calls]
    for call in recording.calls:
        before.apply(call)
    assert before.left(Way.KEPT) == tree_of(tmp_path / "disk")


def test_a_loss_of_power_in_an_adoption_leaves_the_old_identity_or_the_new_one(tmp_path: Path) -> None:
    fill(HandSpool(tmp_path / "before"))
    root = tmp_path / "disk/spool"
    root.parent.mkdir()
    (tmp_path / "before").rename(root)
    old = (root / "spool.json").read_bytes()
    model = model_of(root.parent)
    recording = RecordingDisk(root.parent)
    with on_disk(recording):
        adopt(str(root))
    new = (root / "spool.json").read_bytes()
    assert new != old
    for call in recording.calls:
        model.apply(call)
        for way in Way:
            assert model.left(way)["spool/spool.json"] in {old, new}, (call, way)
    assert model.left(Way.KEPT) == tree_of(root.parent)
    assert model.left(Way.LOST)["spool/spool.json"] == new


def test_a_model_of_a_disk_loses_what_was_not_synced_and_nothing_else() -> None:
    model = DiskModel()
    for call in (
        DiskCall("mkdir", "a"),
        DiskCall("fsync", ""),
        DiskCall("create", "a/t"),
        DiskCall("write", "a/t", data=b"one"),
        DiskCall("fsync", "a/t"),
        DiskCall("write", "a/t", data=b"two"),
        DiskCall("link", "a/x", source="a/t"),
    ):
        model.apply(call)
    assert model.left(Way.LOST) == {"a": None}
    assert model.left(Way.KEPT) == {"a": None, "a/t": b"onetwo", "a/x": b"onetwo"}
    assert model.left(Way.NAMES) == {"a": None, "a/t": b"one", "a/x": b"one"}
    assert model.left(Way.ZEROS) == {"a": None, "a/t": b"one\0\0\0", "a/x": b"one\0\0\0"}
    mixed = [model.left(Way.MIXED, random.Random(seed)) for seed in range(200)]
    assert {tuple(tree) for tree in mixed} == {("a",), ("a", "a/t"), ("a", "a/x"), ("a", "a/t", "a/x")}
    assert {tree.get("a/x") for tree in mixed} == {None, *(b"onetwo"[:end] for end in range(3, 7)), b"one\0\0\0"}
    model.apply(DiskCall("fsync", "a"))
    model.apply(DiskCall("unlink", "a/t"))
    assert model.left(Way.LOST) == {"a": None, "a/t": b"one", "a/x": b"one"}
    assert model.left(Way.KEPT) == {"a": None, "a/x": b"onetwo"}
    model.apply(DiskCall("fsync", "a"))
    assert model.left(Way.LOST) == {"a": None, "a/x": b"one"}
