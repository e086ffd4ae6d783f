"""``connectors spool quarantine``, ``adopt`` and ``wipe``: what they change, refuse and finish."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from connectors.core.errors import SpoolError, SpoolFencedError
from connectors.core.offsets import SENTINEL
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool import stats
from connectors.spool.store.local import lock_folder
from tests.support.spool_commands import code_of, flip, lasting, read_all, run, run_json
from tests.support.spool_streams import open_stream, rows_of
from tests.support.spool_writing import HandSpool, fill

NO_LIMIT = (1 << 63) - 1


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    made = HandSpool(tmp_path / "spool")
    fill(made)
    return made


def test_quarantine_takes_one_segment_and_the_query_goes_on(spool: HandSpool) -> None:
    flip(spool, "inbox/f0/1.arrow", "block")
    found = run_json("quarantine", spool.root, "inbox/f0/1.arrow")
    assert [(each["segment"], each["first"], each["end"], each["committed"]) for each in found["segments"]] == [
        ("inbox/f0/1.arrow", 2, 4, 1)
    ]
    assert (spool.root / "quarantine/f0-1.arrow").exists()
    assert read_all(spool) == ["0-a", "0-b", "2-a", "2-b", "late"]
    assert run_json("verify", spool.root)["findings"][0]["severity"] == "loss"
    assert [each["segment"] for each in run_json("inspect", spool.root)["lost"]] == ["inbox/f0/1.arrow"]
    assert "inbox/f0/1.arrow" in run("inspect", spool.root).output
    assert stats(str(spool.root)).dropped["quarantined"] == 2


def test_quarantine_takes_the_path_of_an_error_and_works_while_other_damage_is_left(spool: HandSpool) -> None:
    (spool.root / "inbox/f0/0.arrow").unlink()
    (spool.root / "inbox/f0/2.arrow").write_bytes(b"")
    run("quarantine", spool.root, spool.root / "inbox/f0/2.arrow")
    with pytest.raises(SpoolError, match=r"SPOOL_SEGMENT_DAMAGED.*f0/0\.arrow"):
        read_all(spool)
    run("quarantine", spool.root, "inbox/f0/0.arrow")
    assert read_all(spool) == ["1-a", "1-b", "late"]


def test_quarantine_takes_the_path_of_an_error_however_the_location_is_written(
    spool: HandSpool, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(spool.root)
    missing = [f"inbox/f0/{number}.arrow" for number in range(3)]
    for name in missing:
        (spool.root / name).unlink()
    run("quarantine", tmp_path / "alias", spool.root / missing[0])
    run("quarantine", spool.root, tmp_path / "alias" / missing[1])
    run("quarantine", f"file:{tmp_path}/alias/", tmp_path / "alias" / missing[2])
    assert read_all(spool) == ["late"]
    assert "SPOOL_NO_SUCH_SEGMENT" in run("quarantine", spool.root, tmp_path / missing[0], code=2).stderr


def test_a_waiting_segment_is_quarantined_and_counted_when_its_turn_comes(spool: HandSpool) -> None:
    spool.write(["later"], fetcher="f1")
    flip(spool, "inbox/f1/0.arrow", "index")
    run("quarantine", spool.root, "inbox/f1/0.arrow")
    assert read_all(spool)[-2:] == ["2-b", "later"]
    assert stats(str(spool.root)).dropped["quarantined"] == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("inbox/f0/1.arrow", "SPOOL_SEGMENT_WHOLE"),
        ("inbox/f0/9.arrow", "SPOOL_NO_SUCH_SEGMENT"),
        ("inbox/../1.arrow", "SPOOL_NO_SUCH_SEGMENT"),
        ("spool.json", "SPOOL_NO_SUCH_SEGMENT"),
        ("", "SPOOL_NO_SUCH_SEGMENT"),
    ],
)
def test_quarantine_refuses_what_is_whole_or_no_segment_and_changes_nothing(
    name: str, code: str, spool: HandSpool
) -> None:
    before = spool.files()
    assert code in run("quarantine", spool.root, name, code=2).stderr
    assert spool.files() == before


def test_repair_quarantines_all_that_is_damaged_after_a_yes(spool: HandSpool) -> None:
    (spool.root / "inbox/f0/0.arrow").unlink()
    flip(spool, "inbox/f0/1.arrow", "end")
    before = spool.files()
    run("repair", spool.root, answer="n\n", code=1)
    run("repair", spool.root, code=1)
    assert spool.files() == before
    assert "4 rows in 2 segments" in run("repair", spool.root, answer="y\n").stderr
    assert read_all(spool) == ["2-a", "2-b", "late"]
    assert run_json("repair", spool.root, "--yes") == {"rows": 0, "segments": []}
    assert run_json("repair", spool.root, "--dry-run")["segments"] == []


def test_repair_does_not_touch_what_only_a_backup_mends(spool: HandSpool) -> None:
    (spool.root / "inbox/f0/0.arrow").unlink()
    (spool.root / "ledger/1/0").write_bytes(b"")
    before = spool.files()
    assert "SPOOL_RECORD_DAMAGED" in run("repair", spool.root, "--yes", code=2).stderr
    assert spool.files() == before


def test_what_changes_a_spool_is_refused_while_a_query_uses_it(spool: HandSpool, tmp_path: Path) -> None:
    shutil.copytree(spool.root, tmp_path / "copy")
    with open_stream(spool.root):
        before = lasting(spool)
        for arguments in (
            ("quarantine", spool.root, "inbox/f0/0.arrow"),
            ("wipe", spool.root, "--yes"),
            ("adopt", spool.root, "--yes"),
            ("adopt", tmp_path / "copy", "--yes"),
        ):
            assert "SPOOL_IN_USE" in run(*arguments, code=2).stderr, arguments
        assert lasting(spool) == before
    assert read_all(spool)[-1] == "late"


def test_a_moved_spool_is_adopted_and_its_checkpoint_goes_on(spool: HandSpool, tmp_path: Path) -> None:
    with open_stream(spool.root, starting_position="earliest") as stream:
        start = stream.latest_offset(SENTINEL, 4)
    moved = HandSpool(tmp_path / "moved")
    spool.root.rename(moved.root)
    with pytest.raises(SpoolError, match=r"SPOOL_MOVED.*connectors spool adopt"):
        read_all(moved)
    assert run_json("verify", moved.root)["findings"][0]["code"] == "SPOOL_MOVED"
    assert "adopt it" in run("inspect", moved.root).output
    before = moved.files()
    assert "cannot be seen" in run("adopt", moved.root, code=1).stderr
    assert moved.files() == before
    found = run_json("adopt", moved.root, "--yes")
    assert (found["old"], found["new"], found["fenced"]) == (str(spool.root), str(moved.root), False)
    with open_stream(moved.root) as stream:
        end = stream.latest_offset(start, NO_LIMIT)
        assert [text for _, text in rows_of(moved.root, stream.partitions(start, end))] == ["2-a", "2-b", "late"]
    assert "Nothing to do" in run("adopt", moved.root).output


def test_a_spool_is_adopted_though_its_old_place_leads_to_it_by_a_link(tmp_path: Path) -> None:
    old = HandSpool(tmp_path / "disk1" / "spool")
    old.root.parent.mkdir()
    fill(old)
    (tmp_path / "disk1").rename(tmp_path / "disk2")
    (tmp_path / "disk1").symlink_to(tmp_path / "disk2")
    with pytest.raises(SpoolError, match="SPOOL_MOVED"):
        read_all(old)
    found = run_json("adopt", old.root)
    assert (found["old"], found["new"], found["fenced"]) == (str(old.root), f"{tmp_path}/disk2/spool", False)
    assert read_all(old)[-1] == "late"
    assert "Nothing to do" in run("adopt", f"{tmp_path}/disk2/spool").output


def test_an_adopted_copy_fences_the_one_at_the_old_place(spool: HandSpool, tmp_path: Path) -> None:
    paused = spool.ledger
    assert paused is not None
    copy = HandSpool(tmp_path / "copy")
    shutil.copytree(spool.root, copy.root)
    assert run_json("adopt", copy.root)["fenced"] is True
    with pytest.raises(SpoolFencedError, match="SPOOL_FENCED"):
        paused.commit(6)
    with pytest.raises(SpoolError, match=r"SPOOL_MOVED.*copy"):
        read_all(spool)
    assert read_all(copy)[-1] == "late"
    # And back again: the copy is then the one that is fenced.
    assert run_json("adopt", spool.root)["fenced"] is True
    assert read_all(spool)[-1] == "late"
    with pytest.raises(SpoolError, match="SPOOL_MOVED"):
        read_all(copy)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("point", ["adopt.before_replace", "store.before_rename", "adopt.after_replace"])
def test_an_adoption_that_was_cut_short_is_finished_by_the_next_one(
    point: str, passes: int, spool: HandSpool, tmp_path: Path
) -> None:
    copy = HandSpool(tmp_path / "copy")
    shutil.copytree(spool.root, copy.root)
    set_failpoints(f"{point}=raise:5:{passes}")
    try:
        run("adopt", copy.root, code=2)
    finally:
        set_failpoints("")
    codes = [code_of(each) for each in (spool, copy)]
    assert codes.count("SPOOL_MOVED") >= 1
    assert set(codes) <= {"SPOOL_MOVED", ""}
    run("adopt", copy.root, "--yes")
    assert read_all(copy)[-1] == "late"
    with pytest.raises(SpoolError, match="SPOOL_MOVED"):
        read_all(spool)


def test_wipe_asks_and_deletes_all(spool: HandSpool) -> None:
    before = spool.files()
    assert "4 rows that no batch has committed" in run("wipe", spool.root, answer="n\n", code=1).stderr
    run("wipe", spool.root, code=1)
    assert spool.files() == before
    run("wipe", spool.root, "--yes")
    assert not spool.root.exists()
    assert "SPOOL_NOT_FOUND" in run("wipe", spool.root, "--yes", code=2).stderr


def test_wipe_leaves_what_is_no_part_of_a_spool(spool: HandSpool, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    (spool.root / "inbox/f0/notes.txt").write_text("mine")
    (spool.root / "inbox/link").symlink_to(tmp_path / "mine")
    found = run_json("wipe", spool.root, "--yes")
    assert set(found["left"]) == {"inbox/f0/notes.txt", "inbox/link"}
    assert (tmp_path / "mine/file").read_text() == "mine"
    assert set(spool.files()) == {"inbox/f0/notes.txt"}


def test_wipe_of_a_folder_that_cannot_be_removed_ends_well_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("real", "here", "mount"):
        fill(HandSpool(tmp_path / name))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert f"left, because it cannot be removed: {tmp_path}/link" in run("wipe", tmp_path / "link", "--yes").output
    assert list((tmp_path / "real").iterdir()) == []
    (tmp_path / "mount/lost+found").mkdir()
    assert run_json("wipe", tmp_path / "mount", "--yes")["left"] == ["lost+found"]
    assert [path.name for path in (tmp_path / "mount").iterdir()] == ["lost+found"]
    monkeypatch.chdir(tmp_path / "here")
    assert run_json("wipe", ".", "--yes")["left"] == ["."]
    assert list((tmp_path / "here").iterdir()) == []


def test_wipe_refuses_a_folder_that_is_no_spool(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/precious").write_text("mine")
    assert "SPOOL_NOT_FOUND" in run("wipe", tmp_path, "--yes", code=2).stderr
    assert (tmp_path / "tmp/precious").exists()


def test_wipe_is_refused_while_a_fetcher_lives(spool: HandSpool) -> None:
    lock = lock_folder(spool.store.tree, "inbox/f1")
    assert lock is not None
    before = spool.files()
    assert "SPOOL_IN_USE" in run("wipe", spool.root, "--yes", code=2).stderr
    assert spool.files() == before
    os.close(lock)
    run("wipe", spool.root, "--yes")


@pytest.mark.parametrize("point", ["wipe.before_identity", "wipe.after_identity", "wipe.before_end"])
def test_a_wiping_that_was_cut_short_leaves_no_spool_that_a_query_takes_for_its_own(
    point: str, spool: HandSpool
) -> None:
    identity = spool.identity().spool
    set_failpoints(f"{point}=raise:5")
    try:
        run("wipe", spool.root, "--yes", code=2)
    finally:
        set_failpoints("")
    shutil.copytree(spool.root, spool.root.parent / "half")
    if point == "wipe.after_identity":
        with pytest.raises(SpoolError, match="SPOOL_IDENTITY_MISSING"):
            read_all(spool)
    elif point == "wipe.before_end":
        read_all(spool)
        assert spool.identity().spool != identity
    run("wipe", spool.root.parent / "half", "--yes")
    assert not (spool.root.parent / "half").exists()
