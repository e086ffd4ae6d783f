"""A snapshot names durable manifests, and no others stay; no crash and no error at any step of it changes a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import SpoolDamagedError
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool.admin.verify import verify
from connectors.spool.ledger.ledger import SNAPSHOT_EVERY, Ledger
from connectors.spool.ledger.recovery import read_state
from connectors.testing.object_store import ObjectStoreServer
from tests.support.power_loss_rig import UnsyncedDisk, on_disk
from tests.support.pubsub_sweep import points_in_code
from tests.support.spool_writing import HandSpool, ObjectSpool

pytestmark = pytest.mark.guarantee

STEPS = {
    *(f"manifest.{step}" for step in ("before_write", "after_write", "before_delete", "after_delete")),
    *(f"ledger.{step}" for step in ("before_put", "after_put")),
    "store.after_publish",
}
OF_A_SNAPSHOT = ("manifest.", "ledger.", "store.")


@pytest.fixture(params=["folder", "object store"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HandSpool]:
    """A spool, in a folder or in an object store."""
    if request.param == "folder":
        with on_disk(UnsyncedDisk()):
            yield HandSpool(tmp_path / "spool")
    else:
        with ObjectStoreServer() as server:
            yield ObjectSpool(server=server)


class Snapshots:
    """A spool of which each snapshot writes a manifest, and deletes one."""

    def __init__(self, spool: HandSpool) -> None:
        self.spool = spool
        self.ids: list[str] = []
        self.begin()
        self.add_many(4)
        self.begin()

    def begin(self) -> Ledger:
        """Another writer opens the spool."""
        self.ledger = self.spool.open(f"writer{len(self.ids)}")
        return self.ledger

    def add(self) -> None:
        """Admit one more segment, whose manifest takes the place of the one before."""
        self.ids.append(f"id-{len(self.ids)}")
        self.spool.write([self.ids[-1]])
        self.ledger.admit()
        self.ledger.clean()

    def add_many(self, count: int) -> None:
        for _ in range(count):
            self.add()

    def snapshot(self, failpoint: str) -> bool:
        """Free a segment and take a snapshot with a failpoint; whether that has failed."""
        self.add_many(len(self.ledger.state.segments))
        self.ledger.append({"free": [self.ledger.state.segments.first + 1, self.ledger.state.segments[0].end]})
        set_failpoints(failpoint)
        try:
            self.ledger.replace_state(lambda state: state)
            self.ledger.clean()
        except OSError:
            return True
        finally:
            set_failpoints("")
        return False

    def check(self) -> None:
        state = read_state(self.spool.store, self.spool.identity().spool)
        assert state.segments == self.ledger.state.segments
        assert self.spool.all_ids() == self.ids[state.oldest :]
        # What is freed is more than the test looks at; else the spool would grow.
        self.ledger.append({"free": [state.ordinal - 2, state.segments[-2].base]})


@pytest.mark.parametrize("then", ["crash", "go on"])
def test_a_crash_or_an_error_at_any_step_of_a_snapshot_changes_no_row_and_leaves_no_manifest(
    then: str, spool: HandSpool
) -> None:
    run = Snapshots(spool)
    passed = set()
    for point in sorted(point for point in points_in_code() if point.startswith(OF_A_SNAPSHOT)):
        number = 1
        while run.snapshot(f"{point}=raise:5:{number}"):
            passed.add(point)
            number += 1
            if then == "crash":
                run.begin()
            else:
                run.ledger.settle()
                run.ledger.replace_state(lambda state: state)
                run.ledger.clean()
            run.check()
            assert set(spool.store.list("manifests")) == run.ledger.state.segments.manifest_names(), point
        run.check()
    assert passed >= STEPS


def test_the_ledger_takes_a_snapshot_by_itself_and_survives_an_error_in_it(tmp_path: Path) -> None:
    with on_disk(UnsyncedDisk()):
        run = Snapshots(HandSpool(tmp_path / "spool"))
        for point in sorted(point for point in STEPS if point.startswith("manifest.")):
            set_failpoints(f"{point}=raise:5")
            with pytest.raises(OSError, match="Input/output"):
                run.add_many(2 * SNAPSHOT_EVERY)
            set_failpoints("")
            run.ledger.admit()
        kinds = [json.loads(path.read_bytes().splitlines()[0])["kind"] for path in tmp_path.glob("spool/ledger/2/*")]
        assert kinds.count("snapshot") >= 1
        assert run.spool.all_ids() == run.ids
        assert run.begin().state.segments == read_state(run.spool.store, run.spool.identity().spool).segments
        assert run.spool.all_ids() == run.ids


def test_a_writer_that_was_taken_over_deletes_no_manifest_and_no_id_run_of_the_newer_one(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    Snapshots(spool)
    for folder in ("manifests", "ids"):
        (spool.root / folder).mkdir(exist_ok=True)
        for name in ("9-0", "1-7"):
            (spool.root / folder / name).write_bytes(b"newer" if name == "9-0" else b"left by a crash")
    spool.open("late")
    for folder in ("manifests", "ids"):
        assert (spool.root / folder / "9-0").exists()
        assert not (spool.root / folder / "1-7").exists()


@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated"])
def test_a_damaged_manifest_is_named_by_start_look_and_check(damage: str, tmp_path: Path) -> None:
    run = Snapshots(HandSpool(tmp_path / "spool"))
    [path] = (tmp_path / "spool/manifests").iterdir()
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[:-9] if damage == "truncated" else data[:500] + bytes([data[500] ^ 1]) + data[501:])
    code = "SPOOL_RECORD_MISSING" if damage == "missing" else "SPOOL_RECORD_DAMAGED"
    for use in (run.begin, lambda: read_state(run.spool.store, run.spool.identity().spool)):
        with pytest.raises(SpoolDamagedError, match=rf"^\[{code}\].*manifests/{path.name}"):
            use()
    [finding] = [each for each in verify(str(tmp_path / "spool")).findings if each.code == code]
    assert path.name in f"{finding.file} {finding.what}"
