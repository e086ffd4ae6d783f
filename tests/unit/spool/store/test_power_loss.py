"""A loss of power at every point of a run loses nothing, doubles nothing, and changes no replay (DESIGN section 8).

``./dev chaos power_loss`` tries every point in every way, and deaths before the loss of power; here is what a run of
some seconds can hold.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from connectors.testing.power_loss import DiskCall, DiskModel, Way
from tests.support.power_loss_rig import check, losses, record

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
