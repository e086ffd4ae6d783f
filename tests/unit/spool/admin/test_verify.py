"""``connectors spool verify``: all damage is found, and nothing is touched."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connectors.core.errors import SpoolDamagedError
from connectors.spool.ledger.records import decode, encode, record_name
from connectors.spool.store.local import LocalStore
from tests.support.spool_commands import flip, read_all, run, run_json
from tests.support.spool_streams import open_stream
from tests.support.spool_writing import HandSpool, fill


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    made = HandSpool(tmp_path / "spool")
    fill(made)
    return made


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


def test_verify_of_a_folder_without_a_spool_does_not_list_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(_store: LocalStore) -> dict[str, int]:
        pytest.fail("it may hold millions of files")

    monkeypatch.setattr(LocalStore, "sizes", listed)
    assert "[SPOOL_NOT_FOUND]" in run("verify", tmp_path, code=2).stderr
