"""``connectors spool ...``: what it prints, what it touches, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from connectors.cli.main import app
from connectors.core.errors import SpoolDamagedError, SpoolError, SpoolFencedError
from connectors.core.offsets import SENTINEL
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool import stats
from connectors.spool.ledger.records import decode, encode, record_name
from connectors.spool.segments.segment import SEGMENT, SealedReader
from connectors.spool.store.local import LocalStore, lock_folder
from tests.support.spool_streams import open_stream, rows_of
from tests.support.spool_writing import HandSpool, fill

NO_LIMIT = (1 << 63) - 1


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    made = HandSpool(tmp_path / "spool")
    fill(made)
    return made


def run(*arguments: object, answer: str | None = None, code: int = 0, columns: int = 200) -> Result:
    result = CliRunner().invoke(app, ["spool", *map(str, arguments)], input=answer, env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments: object, code: int = 0) -> dict[str, Any]:
    value = json.loads(run(*arguments, "--json", code=code).stdout)
    assert isinstance(value, dict)
    return value


def everything(root: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, time and mode of every file, the times of folders too: nothing of it may be touched."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns, path.stat().st_mode)
        for path in [root, *root.rglob("*")]
    }


def lasting(spool: HandSpool) -> dict[str, bytes]:
    """The files of a spool in use, less those that its query writes in the background."""
    return {name: data for name, data in spool.files().items() if not name.startswith(("tmp/", "ledger/"))}


def flip(spool: HandSpool, name: str, kind: str) -> None:
    section = SealedReader(spool.store, name, SEGMENT, None).of_kind(kind)[0]
    data = bytearray((spool.root / name).read_bytes())
    data[section["offset"] + section["length"] // 2] ^= 1
    (spool.root / name).write_bytes(data)


def read_all(spool: HandSpool) -> list[str]:
    with open_stream(spool.root, starting_position="earliest") as stream:
        end = stream.latest_offset(SENTINEL, NO_LIMIT)
        return [text for _, text in rows_of(spool.root, stream.partitions(SENTINEL, end))]


def code_of(spool: HandSpool) -> str:
    """The code of the error that a query on the spool stops with; empty if it runs."""
    try:
        read_all(spool)
    except SpoolError as error:
        return error.code
    return ""


def test_inspect_says_what_a_spool_holds(spool: HandSpool) -> None:
    text = run("inspect", spool.root).output
    for part in (spool.identity().spool, "projects/p/subscriptions/s", "no query", "dropped: duplicate", "f0", "f1"):
        assert part in text
    found = run_json("inspect", spool.root)
    assert (found["path"], found["location"]) == (str(spool.root), str(spool.root))
    counts = found["stats"]
    assert (counts["delivered"], counts["dropped"]["duplicate"], counts["rows"]) == (7, 1, 6)
    assert (counts["ready_rows"], counts["ready_bytes"], counts["waiting_rows"]) == (3, 30, 1)
    assert {each["fetcher"]: (each["segments"], each["waiting"]) for each in found["fetchers"]} == {
        "f0": (3, 0),
        "f1": (0, 1),
    }


def test_rows_that_spark_has_not_committed_are_not_called_ready_to_read(spool: HandSpool) -> None:
    """After a finished AvailableNow run the table had them: Spark commits a batch when it plans the next one."""
    text = " ".join(run("inspect", spool.root, columns=500).output.split())
    assert "ready to read" not in text
    assert "not committed │ 3 rows, 30 bytes" in text
    assert "the last finished batch is committed when Spark plans the next one" in text


@pytest.mark.parametrize("columns", [20, 80, 120])
def test_names_are_printed_in_one_piece_on_a_terminal_of_any_width(spool: HandSpool, columns: int) -> None:
    """`inbox/88dd3f084` and `402ddda/3.arrow` in two lines could not be passed to `quarantine`."""
    long_folder = spool.root.with_name("long" * 40)
    spool.root.rename(long_folder)
    run("adopt", long_folder, "--yes")
    assert str(long_folder) in run("inspect", long_folder, columns=columns).output
    names = ["inbox/f0/1.arrow"]
    (long_folder / names[0]).unlink()
    shown = run("verify", long_folder, columns=columns, code=1).output
    assert all(name in shown for name in names)
    assert "SPOOL_SEGMENT_" in shown
    for command in (("repair", "--dry-run"), ("repair", "--yes")):
        done = run(command[0], long_folder, *command[1:], columns=columns, code=int(command[1] == "--dry-run"))
        assert all(name in done.output for name in names)
    assert all(name in run("inspect", long_folder, columns=columns).output for name in names)


def test_inspect_names_the_query_that_uses_the_spool(spool: HandSpool) -> None:
    with open_stream(spool.root):
        assert run_json("inspect", spool.root)["holder"]["pid"] == os.getpid()
    assert run_json("inspect", spool.root, "--rates", "0.1")["rates"]["admitted"] == 0


def test_verify_finds_nothing_in_a_sound_spool_also_beside_a_query(spool: HandSpool) -> None:
    assert run_json("verify", spool.root)["findings"] == []
    with open_stream(spool.root):
        assert run_json("verify", spool.root)["sound"] is True
    assert "no damage" in run("verify", spool.root).output


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("inbox/f0/0.arrow", "end"),  # no query reads it
        ("inbox/f0/0.arrow", "index"),  # its ids are in a run: no start reads it
        ("inbox/f0/0.arrow", "block"),
        ("inbox/f0/2.arrow", "index"),
        ("inbox/f1/0.arrow", "block"),
    ],
)
def test_verify_sees_damage_that_no_query_would_see(name: str, kind: str, spool: HandSpool) -> None:
    flip(spool, name, kind)
    found = run_json("verify", spool.root, code=1)
    assert [(each["severity"], each["file"], each["code"]) for each in found["findings"]] == [
        ("damage", name, "SPOOL_SEGMENT_DAMAGED")
    ]
    assert name in run("verify", spool.root, code=1).output


def test_verify_sees_a_flipped_bit_in_any_file(spool: HandSpool) -> None:
    for name, data in spool.files().items():
        for place in {0, len(data) // 2, len(data) - 1}:
            damaged = bytearray(data)
            damaged[place] ^= 1
            (spool.root / name).write_bytes(damaged)
            found = run_json("verify", spool.root, code=1)
            assert found["findings"], f"{name} at {place}"
        (spool.root / name).write_bytes(data)
    assert run_json("verify", spool.root)["sound"]


def test_verify_sees_a_missing_file(spool: HandSpool) -> None:
    ledger = spool.ledger
    assert ledger is not None
    for name, data in spool.files().items():
        if name in {"epochs/1", f"ledger/1/{ledger.state.number}", "inbox/f1/0.arrow"}:
            continue  # the last of their kind leave no trace
        (spool.root / name).unlink()
        assert run_json("verify", spool.root, code=1)["findings"], name
        (spool.root / name).write_bytes(data)
        (spool.root / name).chmod(0o600)
    assert run_json("verify", spool.root)["findings"] == []


def test_verify_sees_a_record_that_frees_other_segments_than_the_oldest(spool: HandSpool) -> None:
    ledger = spool.ledger
    assert ledger is not None
    free = {"free": [ledger.state.segments[0].ordinal + 1, 1 << 20]}
    epoch, number = ledger.claim.epoch, ledger.state.number
    with pytest.raises(SpoolDamagedError, match="SPOOL_RECORD_DAMAGED"):
        ledger.append(free)
    assert run_json("verify", spool.root)["findings"] == [], "it was not put"
    last = decode(spool.store.read(record_name(epoch, number)), "the last record")
    spool.store.create(record_name(epoch, number + 1), encode({**last, **free, "number": number + 1}))
    found = run_json("verify", spool.root, code=1)["findings"]
    assert ("damage", "ledger", "SPOOL_RECORD_DAMAGED") in {
        (each["severity"], each["file"], each["code"]) for each in found
    }
    assert "frees other segments" in found[0]["what"]


def test_verify_does_not_ask_to_restore_what_no_query_reads_again(spool: HandSpool) -> None:
    spool.open("cd")  # a second start: a newer claim, and a snapshot that stands for the first start's records
    (spool.root / "epochs/1").write_bytes(b"")
    last = max((spool.root / "ledger/1").iterdir(), key=lambda path: int(path.name))
    last.write_bytes(b"")
    found = run_json("verify", spool.root)
    assert found["sound"] is True
    assert {(each["severity"], each["file"]) for each in found["findings"]} == {
        ("note", "epochs/1"),
        ("note", f"ledger/1/{last.name}"),
    }
    for each in found["findings"]:
        assert "no query reads it" in each["what"]
        assert each["action"] == "Nothing to restore. If no one has changed the file, check the disk."
    assert read_all(spool)[-1] == "late"


def test_what_is_quarantined_is_not_to_be_restored(spool: HandSpool, caplog: pytest.LogCaptureFixture) -> None:
    (spool.root / "inbox/f0/0.arrow").unlink()
    flip(spool, "inbox/f0/1.arrow", "block")
    (spool.root / "inbox/f1/0.arrow").write_bytes(b"torn")
    dry = run("repair", spool.root, "--dry-run", code=1).output
    done = run("repair", spool.root, "--yes").output
    texts = [dry, done, caplog.text, run("verify", spool.root).output, run("inspect", spool.root).output]
    for text in texts:
        assert "A segment is missing" in " ".join(text.replace("│", " ").split())
        assert not re.search("[Rr]estore|backup", text)


def test_what_was_quarantined_is_not_to_be_restored(spool: HandSpool) -> None:
    (spool.root / "inbox/f0/0.arrow").unlink()
    run("repair", spool.root, "--yes")
    for command in ("verify", "inspect"):
        text = run(command, spool.root).output
        assert "A segment is missing" in " ".join(text.replace("│", " ").split())
        assert "Restore" not in text


def test_verify_notes_strange_files_links_and_open_modes_as_harmless(spool: HandSpool) -> None:
    (spool.root / "notes.txt").write_text("mine")
    (spool.root / "inbox/f0/link").symlink_to("0.arrow")
    (spool.root / "ids").chmod(0o700)
    (spool.root / "inbox/f0/1.arrow").chmod(0o644)
    found = run_json("verify", spool.root)
    assert {(each["severity"], each["file"], each["code"]) for each in found["findings"]} == {
        ("note", "notes.txt", "SPOOL_STRANGE_FILE"),
        ("note", "inbox/f0/link", "SPOOL_STRANGE_FILE"),
        ("note", "inbox/f0/1.arrow", "SPOOL_OPEN_TO_OTHERS"),
    }


def test_looking_touches_nothing(spool: HandSpool) -> None:
    flip(spool, "inbox/f0/1.arrow", "block")
    (spool.root / "inbox/f0/0.arrow").unlink()
    (spool.root / "inbox/f1/0.arrow").write_bytes(b"torn")
    before = everything(spool.root)
    run("inspect", spool.root)
    run("inspect", spool.root, "--json")
    run("verify", spool.root, code=1)
    text = run("repair", spool.root, "--dry-run", code=1).output
    due = run_json("repair", spool.root, "--dry-run", code=1)
    assert everything(spool.root) == before
    assert "would be quarantined" in text
    assert {(each["segment"], each["first"], each["end"], each["committed"]) for each in due["segments"]} == {
        ("inbox/f0/0.arrow", 0, 2, 2),
        ("inbox/f0/1.arrow", 2, 4, 1),
        ("inbox/f1/0.arrow", 0, 0, 0),
    }
    assert due["rows"] == 4


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


@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "adopt", "wipe"])
def test_a_folder_without_a_spool_is_a_named_error(command: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert "[SPOOL_NOT_FOUND]" in run(command, path, code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_verify_of_a_folder_without_a_spool_does_not_list_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(_store: LocalStore) -> dict[str, int]:
        pytest.fail("it may hold millions of files")

    monkeypatch.setattr(LocalStore, "sizes", listed)
    assert "[SPOOL_NOT_FOUND]" in run("verify", tmp_path, code=2).stderr


COMMANDS = {
    "inspect": [],
    "verify": [],
    "repair": ["--yes"],
    "adopt": ["--yes"],
    "wipe": ["--yes"],
    "quarantine": ["segments/f0/x"],
}


@pytest.mark.parametrize(
    "location", ["http://b/x", "s3://", "gs:///x", "file://host/x", "FILE:x", "://x", "s3://[", ""]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_location_that_can_hold_no_spool_is_a_named_error(command: str, location: str) -> None:
    done = run(command, location, *COMMANDS[command], code=2)
    assert "[SPOOL_LOCATION]" in done.stderr
    assert "Give a folder, or s3://BUCKET/FOLDER" in done.stderr
    assert done.stdout == ""


def test_a_location_that_is_refused_shows_no_secret() -> None:
    done = run("verify", "s3://me:hunter2@bucket/x", "--json", code=2)
    assert "[SPOOL_LOCATION]" in done.stderr
    assert "hunter2" not in done.output


def test_a_file_url_and_a_relative_folder_mean_the_same_spool(
    spool: HandSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(spool.root.parent)
    for location in (f"file://{spool.root}", f"file:{spool.root}", f"FILE://localhost{spool.root}", spool.root.name):
        assert run_json("inspect", location)["stats"]["spool"] == spool.identity().spool
        assert run_json("verify", location)["sound"] is True
    assert f"Delete the spool {spool.root}?" in run("wipe", f"file://{spool.root}", answer="no\n", code=1).stderr
    run("wipe", f"file://{spool.root}", "--yes")
    assert not (spool.root / "spool.json").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_failure_is_an_object_on_standard_output_with_json(command: str, tmp_path: Path) -> None:
    for location, code in ((tmp_path / "nothing", "SPOOL_NOT_FOUND"), ("http://b/x", "SPOOL_LOCATION")):
        done = run(command, location, *COMMANDS[command], "--json", code=2)
        error = json.loads(done.stdout)["error"]
        assert error["code"] == code
        assert done.stderr.startswith(f"[{code}] {error['what']}")
        assert error["action"]
