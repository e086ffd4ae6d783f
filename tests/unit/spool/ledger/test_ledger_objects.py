"""The ledger's tests that need no folder, again over an object store; and what only an object store can do to it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from connectors.cli.spool import spool_commands
from connectors.core.diagnostics import Finding, Outcome
from connectors.core.errors import SpoolDamagedError, SpoolFencedError
from connectors.spool.admin.doctor import check_spool
from connectors.spool.admin.verify import verify
from connectors.spool.ledger.ledger import Ledger
from connectors.spool.ledger.records import while_newest
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.object_store.model import Request
from tests.support.damaged_spool import use
from tests.support.spool_writing import KEY_ID, SECRET, SOURCES, ObjectSpool, fill
from tests.unit.spool.ledger.test_ledger import (  # noqa: F401 - collected here with another fixture
    commit_batches,
    numbers,
    test_a_crash_while_segments_are_freed_forgets_no_id,
    test_a_plan_is_the_same_after_a_restart_and_after_later_admissions,
    test_a_record_whose_answer_was_lost_is_recognised_as_ones_own,
    test_a_run_goes_when_its_last_publish_time_is_older_than_the_horizon,
    test_a_writer_that_was_taken_over_writes_and_deletes_nothing_more,
    test_any_cut_of_a_batch_gives_the_same_rows,
    test_copies_are_dropped_within_a_segment_across_segments_and_after_a_restart,
    test_every_durable_segment_is_admitted_once,
    test_ids_outlive_their_segments_and_a_restart,
    test_positions_keep_their_rows_over_restarts_whatever_the_names_of_the_segments,
    test_retention_keeps_rows_for_so_long_after_their_commit_whenever_they_were_published,
    test_seals_of_a_claimant_that_died_are_finished_by_the_next_one,
)

QUICK = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@pytest.fixture
def spool(server: ObjectStoreServer) -> ObjectSpool:
    return ObjectSpool(server=server)


def test_ages_of_files_before_the_start_cost_two_lists_a_folder(
    spool: ObjectSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, late = spool.open("first"), [0.0]
    for number in range(5):
        spool.write([str(number)])
        ledger.admit()
        ledger.commit(number + 1)
    ledger = spool.open("second")
    settings = CompactionSettings(free_segments=1, retention=3600.0)
    compaction = Compaction(ledger, settings, clock=lambda: time.monotonic() + late[0])
    asked: list[str] = []
    look = ledger.store.written
    monkeypatch.setattr(ledger.store, "written", lambda folder: asked.append(folder) or look(folder))
    for late[0] in (0.0, 1800.0, 3500.0):
        compaction.step()
        assert ledger.state.oldest == 0
    assert asked == [f"ledger/{ledger.claim.epoch}", "inbox/f0"]
    late[0] = 3700.0
    compaction.step()
    assert ledger.state.oldest == 3


def life(spool: ObjectSpool) -> list[str]:
    """All that a ledger does, in two starts, with small numbers; the ids that come out."""
    found: list[str] = []
    for start in range(2):
        ledger = spool.open(f"start{start}")
        compaction = Compaction(ledger, CompactionSettings(free_segments=1, merge=2))
        for _ in range(5):
            head = ledger.state.head
            spool.write([*numbers(head, head + 3), "1"], fetcher=f"f{start}")
            ledger.admit()
            found += [text for part in spool.read(head, ledger.state.head) for _, text in part]
            ledger.commit(ledger.state.head)
            compaction.step()
            compaction.merge()
    return found


def test_a_lost_answer_at_every_put_of_a_run_changes_nothing() -> None:
    with ObjectStoreServer() as server:
        wanted = life(ObjectSpool(server=server))
        puts = server.counts["PUT"]
    assert len(wanted) == len(set(wanted))
    assert puts > 40
    with ObjectStoreServer() as server:
        # One put follows another: the first try of each is done and not answered, the second one is answered.
        for place in range(0, 10 * puts, 2):
            server.lose_answers("PUT", after=place)
        assert life(ObjectSpool(server=server, retries={"backoff": QUICK})) == wanted
        assert server.counts["PUT"] == 2 * puts


def test_an_earlier_fetcher_can_publish_nothing_once_the_next_one_may_start(spool: ObjectSpool) -> None:
    ledger = spool.open()
    spool.write(["1"], fetcher="old")
    late = spool.store.writer("inbox/old/1.arrow")
    late.write(b"late")
    assert not ledger.earlier_fetchers_done()
    ledger.admit()
    assert ledger.earlier_fetchers_done()
    with pytest.raises(FileNotFoundError):
        late.publish()
    assert ledger.admit() == 0
    spool.open()
    assert spool.all_ids() == ["1"]


def test_fetchers_are_forgotten_when_all_their_segments_are_freed(spool: ObjectSpool) -> None:
    ledger = spool.open()
    now = [0.0]
    compaction = Compaction(ledger, CompactionSettings(free_segments=1), lambda: now[0])
    spool.write(["a"], fetcher="gone")
    commit_batches(spool, compaction, 6)
    for now[0] in (10.0, 20.0):
        compaction.step()
    assert set(ledger.state.fetchers) == {"f0"}
    late = spool.store.writer("inbox/gone/1.arrow")
    with pytest.raises(FileNotFoundError):
        late.publish()
    spool.open()


def test_a_spool_in_another_bucket_is_a_moved_one(spool: ObjectSpool, server: ObjectStoreServer) -> None:
    spool.open()
    for path, data in list(server.objects.items()):
        server.objects[path.replace("spools/", "copies/", 1)] = data
    moved = ObjectSpool(server=server, root="s3://copies/of/tests")
    with pytest.raises(Exception, match="SPOOL_MOVED"):
        moved.open()


# Two writers.

ACTIONS: dict[str, Callable[[Ledger], object]] = {
    "commit": lambda ledger: ledger.commit(ledger.state.head),
    "admit": lambda ledger: ledger.admit(),
    "free": lambda ledger: Compaction(ledger, CompactionSettings(free_segments=1)).step(),
}


def busy(server: ObjectStoreServer) -> ObjectSpool:
    """A spool in which every action has something to do."""
    spool = ObjectSpool(server=server)
    ledger = spool.open("aa")
    for number in range(4):
        spool.write([f"{number}-a", f"{number}-b"])
        ledger.admit()
        ledger.commit(ledger.state.head)
    spool.write(["not committed"])
    ledger.admit()
    spool.write(["not admitted"])
    return spool


def can_write(ledger: Ledger) -> bool:
    try:
        ledger.commit(ledger.state.committed + 1)
    except SpoolFencedError:
        return False
    return True


def act_and_be_taken_over(action: str, at: int | None) -> int:
    """Take a writer over before one of the requests of an action; None for a run without that. The requests seen."""
    with ObjectStoreServer() as server:
        old, new = busy(server).ledger, ObjectSpool(server=server)
        assert old is not None
        seen: list[Request] = []
        files: dict[str, bytes] = {}

        def interrupt(request: Request) -> None:
            seen.append(request)
            if len(seen) - 1 == at:
                server.interrupt = None
                new.open("bb").admit()
                files.update(new.files())

        server.interrupt = interrupt
        fenced = False
        try:
            with while_newest(old.store, old.claim):
                ACTIONS[action](old)
        except SpoolFencedError:
            fenced = True
        server.interrupt = None
        if at is None:
            return len(seen)
        recorded = any(each.method == "PUT" and "/ledger/" in each.key for each in seen[:at])
        assert fenced or recorded, seen[at]
        after = new.files()
        changed = {name for name in files.keys() | after.keys() if files.get(name) != after.get(name)}
        # A record that stood before the takeover says what may go; a run of ids that no record names is not part of it.
        assert recorded or all(name.startswith("ids/") for name in changed), changed
        assert not can_write(old)
        assert new.ledger is not None
        assert can_write(new.ledger)
        later = ObjectSpool(server=server)
        later.open("cc").admit()
        wanted = [*(f"{number}-{letter}" for number in range(4) for letter in "ab"), "not committed", "not admitted"]
        found = later.all_ids()
        assert found == wanted[-len(found) :]
        return len(seen)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_writer_paused_before_any_request_and_taken_over_changes_nothing_more(action: str) -> None:
    requests = act_and_be_taken_over(action, None)
    assert requests > 0
    for at in range(requests):
        assert act_and_be_taken_over(action, at) == at + 1


def test_the_doctor_sees_what_is_there_and_who_holds_it(spool: ObjectSpool, server: ObjectStoreServer) -> None:
    def findings() -> dict[str, Finding]:
        findings = check_spool(str(spool.root), "pubsub", SOURCES, 1, spool.access())
        return {finding.check: finding for finding in findings}

    assert {check: finding.outcome for check, finding in findings().items()} == dict.fromkeys(
        ("writable", "held by", "content"), Outcome.OK
    )
    assert server.objects == {}
    lease = spool.lease()
    lease.acquire()
    spool.open()
    assert findings()["held by"].outcome is Outcome.WARNING
    assert "0 rows" in str(findings()["content"])
    lease.release()
    server.conditional = False
    assert findings()["writable"].outcome is Outcome.FAILURE
    assert findings()["content"].outcome is Outcome.SKIPPED


def test_the_command_line_looks_at_a_spool(spool: ObjectSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("ENDPOINT_URL", spool.server.endpoint),
        ("ACCESS_KEY_ID", KEY_ID),
        ("SECRET_ACCESS_KEY", SECRET),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    ledger = spool.open()
    spool.write(["1", "2", "2"])
    ledger.admit()
    lease = spool.lease()
    lease.acquire()
    found = CliRunner().invoke(spool_commands, ["inspect", str(spool.root), "--json"])
    assert found.exit_code == 0, found.output
    seen = json.loads(found.output)
    assert (seen["stats"]["rows"], seen["stats"]["duplicates"]) == (2, 1)
    assert seen["holder"]["pid"] == os.getpid()
    lease.release()
    assert spool.open().state.head == 2


FOREIGN_KEYS = (
    "epochs/²",
    "ledger/1/²",
    "ledger/1/",
    "inbox/f0/².arrow",
    "inbox/f0/x.arrow",
    "inbox/%2e%2e/0.arrow",
    "",
)
FOREIGN_KEYS += (
    "inbox/f0/-1.arrow",
    "spool.json/",
    "spool.json/x",
    "<x>&amp;",
    "inbox/f9/closed",
    f"epochs/{'9' * 300}",
)
NO_PATHS = ("inbox/f0/../f1/0.arrow", "inbox/f0/\x1b[2J/0.arrow", "inbox/f0/a\nb/x", "inbox/f0/..", "inbox/f0//0.arrow")


@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_an_object_whose_name_is_none_of_ours_is_nobodys(
    key: str, spool: ObjectSpool, server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(spool)
    wanted = use(spool)
    server.objects[f"spools/of/tests/{key}"] = b"x"
    assert use(spool) == wanted
    reach(server, monkeypatch)
    assert verify(spool.root).sound


@pytest.mark.parametrize("key", NO_PATHS)
def test_an_object_whose_name_is_no_path_is_named_and_is_no_store_that_does_not_answer(
    key: str, spool: ObjectSpool, server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(spool)
    server.objects[f"spools/of/tests/{key}"] = b"x"
    reach(server, monkeypatch)
    for action in (spool.store.client.sizes, lambda: verify(spool.root)):
        with pytest.raises(SpoolDamagedError, match="SPOOL_FOREIGN_FILE") as caught:
            action()
        assert str(caught.value).isprintable()
    with contextlib.suppress(SpoolDamagedError):  # where the store lists it beside ours
        use(spool)


def reach(server: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment say how to reach the store."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
