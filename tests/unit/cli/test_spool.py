"""``connectors spool ...``: what it prints, what it touches, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.spool_commands import everything, flip, run, run_json
from tests.support.spool_streams import open_stream
from tests.support.spool_writing import HandSpool, fill


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    made = HandSpool(tmp_path / "spool")
    fill(made)
    return made


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


@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "adopt", "wipe"])
def test_a_folder_without_a_spool_is_a_named_error(command: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        assert "[SPOOL_NOT_FOUND]" in run(command, path, code=2).stderr
    assert list(tmp_path.iterdir()) == []


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
