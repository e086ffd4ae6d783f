"""``connectors spool ...`` on an object store: what the commands do to a folder they do there too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from connectors.cli.main import app
from connectors.core.errors import SpoolFencedError
from connectors.testing.object_store import ObjectStoreServer
from tests.support.spool_writing import KEY_ID, SECRET, ObjectSpool, fill

FIRST = "inbox/f0/0.arrow"
PREFIX = "spools/of/tests/"


@pytest.fixture
def spool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectSpool]:
    """Three admitted segments, the ids of the first two in a run, three rows committed; one waits."""
    with ObjectStoreServer() as server:
        for name, value in (
            ("ENDPOINT_URL", server.endpoint),
            ("ACCESS_KEY_ID", KEY_ID),
            ("SECRET_ACCESS_KEY", SECRET),
        ):
            monkeypatch.setenv(f"AWS_{name}", value)
        made = ObjectSpool(server=server)
        fill(made)
        yield made


def run(*arguments: object, answer: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["spool", *map(str, arguments)], input=answer, env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    assert SECRET not in result.output
    return result


def run_json(*arguments: object, code: int = 0) -> dict[str, Any]:
    value = json.loads(run(*arguments, "--json", code=code).stdout)
    assert isinstance(value, dict)
    return value


def damage(spool: ObjectSpool, name: str) -> None:
    data = bytearray(spool.server.objects[PREFIX + name])
    data[len(data) // 3] ^= 0xFF
    spool.server.objects[PREFIX + name] = bytes(data)


def test_verify_reads_every_object_and_changes_none(spool: ObjectSpool) -> None:
    before = dict(spool.server.objects)
    found = run_json("verify", spool.root)
    assert found["sound"]
    assert (found["files"], found["findings"]) == (len(before), [])
    damage(spool, FIRST)
    spool.server.objects[PREFIX + "inbox/notes.txt"] = b"mine"
    found = run_json("verify", spool.root, code=1)
    assert [(each["severity"], each["file"]) for each in found["findings"]] == [
        ("damage", FIRST),
        ("note", "inbox/notes.txt"),
    ]


def test_verify_notices_a_segment_that_is_gone(spool: ObjectSpool) -> None:
    del spool.server.objects[PREFIX + FIRST]
    assert [each["file"] for each in run_json("verify", spool.root, code=1)["findings"]] == [FIRST]


@pytest.mark.parametrize("command", ["quarantine", "repair"])
def test_a_damaged_segment_is_quarantined_and_the_query_goes_on_without_it(spool: ObjectSpool, command: str) -> None:
    damage(spool, FIRST)
    damaged = spool.server.objects[PREFIX + FIRST]
    if command == "repair":
        assert run_json("repair", spool.root, "--dry-run", code=1)["rows"] == 2
        assert PREFIX + FIRST in spool.server.objects
    arguments = ("repair", spool.root, "--yes") if command == "repair" else ("quarantine", spool.root, FIRST)
    done = run_json(*arguments)
    assert [(loss["segment"], loss["first"], loss["end"], loss["committed"]) for loss in done["segments"]] == [
        (FIRST, 0, 2, 2)
    ]
    assert spool.server.objects[PREFIX + "quarantine/f0-0.arrow"] == damaged
    assert PREFIX + FIRST not in spool.server.objects
    assert run_json("verify", spool.root)["sound"]
    ledger = spool.open("next")
    ledger.admit()
    assert spool.all_ids() == ["1-a", "1-b", "2-a", "2-b", "late"]


def test_a_whole_segment_is_not_quarantined(spool: ObjectSpool) -> None:
    before = dict(spool.server.objects)
    assert "[SPOOL_SEGMENT_WHOLE]" in run("quarantine", spool.root, FIRST, code=2).output
    kept = {name: data for name, data in spool.server.objects.items() if not name.endswith("/lease")}
    assert kept == before


def test_a_spool_that_is_in_use_is_left_alone(spool: ObjectSpool) -> None:
    lease = spool.lease()
    lease.acquire()
    for arguments in (("repair", "--yes"), ("adopt", "--yes"), ("wipe", "--yes"), ("quarantine", FIRST)):
        damage(spool, FIRST)
        command, *more = arguments
        assert "[SPOOL_IN_USE]" in run(command, spool.root, *more, code=2).output
        damage(spool, FIRST)
    lease.release()
    assert run_json("verify", spool.root)["sound"]


def test_a_copy_in_another_bucket_is_adopted_and_the_old_one_is_fenced(spool: ObjectSpool) -> None:
    old = spool.ledger
    assert old is not None
    for name, data in list(spool.server.objects.items()):
        spool.server.objects[name.replace("spools/", "copies/", 1)] = data
    copy = ObjectSpool(server=spool.server, root="s3://copies/of/tests")
    assert "SPOOL_MOVED" in str(run_json("verify", copy.root)["findings"])
    done = run_json("adopt", copy.root, "--yes")
    assert (done["old"], done["new"], done["fenced"]) == ("s3://spools/of/tests", "s3://copies/of/tests", True)
    with pytest.raises(SpoolFencedError):
        old.commit(5)
    with pytest.raises(Exception, match="SPOOL_MOVED"):
        spool.open("again")
    ledger = copy.open()
    ledger.admit()
    copy.ledger = ledger
    assert ledger.state.head == 7


def test_a_moved_spool_whose_old_place_cannot_be_seen_is_adopted_after_a_question(spool: ObjectSpool) -> None:
    for name in list(spool.server.objects):
        spool.server.objects[name.replace("spools/", "copies/", 1)] = spool.server.objects.pop(name)
    asked = run("adopt", "s3://copies/of/tests", "--yes")
    assert "there is no other one there" in asked.output


def test_wipe_deletes_all_of_a_spool_and_nothing_else(spool: ObjectSpool) -> None:
    spool.server.objects[PREFIX + "mine.txt"] = b"mine"
    spool.server.objects["spools/of/others/spool.json"] = b"other"
    assert run("wipe", spool.root, answer="n\n", code=1)
    assert PREFIX + "spool.json" in spool.server.objects
    done = run_json("wipe", spool.root, "--yes")
    assert done["left"] == ["mine.txt"]
    assert set(spool.server.objects) == {PREFIX + "mine.txt", "spools/of/others/spool.json"}
    assert "[SPOOL_NOT_FOUND]" in run("wipe", spool.root, "--yes", code=2).output


def test_wipe_goes_on_where_one_was_cut_off_and_leaves_a_fetcher_that_lives(spool: ObjectSpool) -> None:
    spool.store.hold_folder("inbox/f1")
    assert "[SPOOL_IN_USE]" in run("wipe", spool.root, "--yes", code=2).output
    spool.store.overwrite("folders/inbox/f1", b"{}")
    spool.server.objects[PREFIX + "wiping"] = b""
    del spool.server.objects[PREFIX + "spool.json"]
    run("wipe", spool.root, "--yes")
    assert not spool.server.objects


def test_no_bucket_and_no_spool_are_named(spool: ObjectSpool) -> None:
    for command in (("verify",), ("repair", "--yes"), ("adopt", "--yes"), ("wipe", "--yes")):
        assert "[SPOOL_NOT_FOUND]" in run(command[0], "s3://empty/place", *command[1:], code=2).output
    assert spool.server.objects
