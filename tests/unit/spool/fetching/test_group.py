"""Fetcher processes, with a target that needs no service: order, durability, ends of every kind."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from connectors.core.errors import ConnectorError
from connectors.spool.errors import missing_spool
from connectors.spool.fetching import process as fetch_process
from connectors.spool.fetching.contract import Block, Intake, TargetStatus
from connectors.spool.fetching.group import FetcherChild, FetcherGroup, FetcherStatus
from connectors.spool.fetching.messages import (
    MAX_COMMAND_BYTES,
    REPORTS,
    Allow,
    Fault,
    FetchPlan,
    Note,
    Ordered,
    Published,
    Report,
    Start,
    decode,
    encode,
)
from connectors.spool.fetching.process import FetchProcess, Reporter
from connectors.spool.fetching.room import FetcherFolder, next_allowance
from connectors.spool.segments.segment import SegmentInfo, SegmentReader
from connectors.spool.store.local import LocalStore
from tests.support.fetch_targets import FAILPOINTS, PATIENT, numbers_of, read_log
from tests.support.fetch_waiting import only
from tests.support.waiting import wait_for

REPOSITORY = Path(__file__).parents[4]
SECRET = "s3cr3t-of-a-service-account"


class Spool:
    """A folder for segments, a log of the target, and the groups that a test starts."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "spool"
        self.root.mkdir(mode=0o700)
        self.log_path = folder / "log"
        self.groups: list[FetcherGroup] = []

    def plan(self, **settings: Any) -> FetchPlan:
        target_settings = {"log": str(self.log_path), "total": 200, "rows": 10, "bytes": 100, **settings}
        return FetchPlan(
            "tests.support.fetch_targets:NumberTarget", str(self.root), "spool", b"k" * 16, settings=target_settings
        )

    def start(self, plan: FetchPlan | None = None, count: int = 1, **arguments: Any) -> FetcherGroup:
        group = FetcherGroup(**arguments)
        group.add(plan or self.plan(), count)
        self.groups.append(group)
        group.start()
        return group

    def log(self) -> list[dict[str, Any]]:
        return read_log(self.log_path)

    def numbers(self, kind: str) -> list[int]:
        return numbers_of(self.log(), kind)

    def received_in_the_end(self) -> int:
        """How many numbers were received after a moment in which more would come: no event shows that none does."""
        time.sleep(0.3)
        return len(self.numbers("receive"))

    def segments(self, fetcher: str) -> list[int]:
        names = LocalStore(str(self.root), "test").list(f"inbox/{fetcher}")
        return sorted(int(name.partition(".")[0]) for name in names)

    def rows(self, fetcher: str) -> list[int]:
        """The numbers in a fetcher's segments, in order."""
        store = LocalStore(str(self.root), "test")
        found = []
        for number in self.segments(fetcher):
            for _, batch in SegmentReader(store, f"inbox/{fetcher}/{number}.arrow").batches(0, 1 << 30):
                found += [int(text) for text in batch.column("messageId").to_pylist()]
        return found

    def fetchers(self) -> list[str]:
        return LocalStore(str(self.root), "test").list("inbox")


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spool]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    made = Spool(tmp_path)
    yield made
    for group in made.groups:
        group.stop(timeout=0.0)


def ready(group: FetcherGroup) -> FetcherStatus:
    def status() -> FetcherStatus | None:
        found = only(group)
        return found if found.fetcher else None

    found: FetcherStatus = wait_for(status)
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


# Where the target is found.


def plant_target(folder: Path, notes: Path) -> None:
    """A module of the user's, with one that it imports, among some that have the names of others and note a run."""
    folder.mkdir()
    (folder / "mine.py").write_text("from mine_parts import Numbers as Target\n")
    (folder / "mine_parts.py").write_text("from tests.support.fetch_targets import NumberTarget as Numbers\n")
    for name in ("json", "numpy", "pyarrow", "connectors", "boto3", "ctypes"):
        (folder / f"{name}.py").write_text(f"open({str(notes)!r}, 'a').write({name!r})\nraise SystemExit(name)\n")


@pytest.mark.parametrize("is_present", [True, False], ids=["present folder", "other folder"])
def test_a_target_beside_the_script_of_a_job_is_found_and_nothing_else_there_runs(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_present: bool
) -> None:
    """As ``python job.py`` in the folder of the job has it first on its path, which is the present folder, too."""
    folder, notes = tmp_path / "job", tmp_path / "notes"
    plant_target(folder, notes)
    if is_present:
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
    else:
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])  # first, it would be meant: as in this process
        for name in ("json", "numpy", "pyarrow", "connectors", "boto3", "ctypes"):
            (folder / f"{name}.py").unlink()
    group = spool.start(replace(spool.plan(total=50), target="mine:Target"))
    wait_for(lambda: len(spool.numbers("ack")) == 50)
    assert only(group).error is None
    assert not notes.exists()


# What is durable, and what is acked.


def test_everything_received_is_published_in_order_with_numbers_without_gaps(spool: Spool) -> None:
    reported: list[tuple[str, int]] = []
    plan = replace(spool.plan(total=500, gap=0.01), segment_bytes=10_000)  # several segments, however late it writes
    group = spool.start(plan, on_published=lambda *segment: reported.append(segment))
    wait_for(lambda: len(spool.numbers("ack")) == 500)
    (fetcher,) = spool.fetchers()
    assert spool.rows(fetcher) == list(range(500))
    numbers = spool.segments(fetcher)
    assert len(numbers) > 1
    assert numbers == list(range(len(numbers)))
    wait_for(lambda: reported == [(fetcher, number) for number in numbers])
    wait_for(lambda: only(group).published_bytes == 500 * 100)
    assert only(group).fetched_rows <= 500
    assert list((spool.root / "tmp").iterdir()) == []


def test_a_segment_keeps_the_notes_of_its_blocks_and_needs_no_ids(spool: Spool) -> None:
    spool.start(spool.plan(total=50, notes=True))
    wait_for(lambda: len(spool.numbers("ack")) == 50)
    (fetcher,) = spool.fetchers()
    assert spool.rows(fetcher) == list(range(50))
    store = LocalStore(str(spool.root), "test")
    readers = [SegmentReader(store, f"inbox/{fetcher}/{number}.arrow") for number in spool.segments(fetcher)]
    assert [number for reader in readers for note in reader.notes for number in note] == list(range(50))
    assert [len(reader.index()[0]) for reader in readers] == [reader.info.rows for reader in readers]


def test_orders_reach_a_fetcher_and_each_that_follows_it_and_its_notes_come_back(spool: Spool) -> None:
    noted: list[tuple[int, Any]] = []
    group = FetcherGroup(on_note=lambda index, value: noted.append((index, value)))
    group.add(spool.plan(), 1)
    spool.groups.append(group)
    group.order(0, "first", {"a": 1})
    group.start()
    wait_for(lambda: (0, ["first", {"a": 1}]) in noted)
    for number in range(2000):  # more than the pipe holds at once
        group.order(0, f"later-{number}", "x" * 100)
    wait_for(lambda: (0, ["later-1999", "x" * 100]) in noted)
    group.order(0, "first", None)
    wait_for(lambda: (0, ["first", None]) in noted)
    noted.clear()
    os.kill(ready(group).pid or 0, signal.SIGKILL)
    wait_for(lambda: (0, ["later-1999", "x" * 100]) in noted)
    assert noted[0] == (0, None), "its end is told before the next one starts"
    assert [value[0] for _, value in noted[1:]] == [f"later-{number}" for number in range(2000)]


def test_a_first_row_is_published_at_once_and_later_ones_once_a_period(spool: Spool) -> None:
    plan = spool.plan(total=100, rows=10, gap=0.02, first_alone=True, limits=PATIENT)
    group = spool.start(replace(plan, publish_period=60.0))
    wait_for(lambda: len(spool.numbers("receive")) == 100)
    (fetcher,) = spool.fetchers()
    assert spool.segments(fetcher) == [0]
    assert spool.rows(fetcher) == spool.numbers("ack") == list(range(10))
    group.stop(timeout=60.0)
    assert spool.rows(fetcher) == list(range(100))


@pytest.mark.parametrize(
    "point", ["fetch.before_publish", "store.before_sync", "store.before_link", "store.before_folder_sync"]
)
def test_nothing_is_acked_before_its_segment_is_durable(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    flag = tmp_path / "paused"
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"{point}=pause:{flag}")
    spool.start()
    wait_for(lambda: flag.exists() and len(spool.numbers("receive")) == 200)
    assert spool.numbers("ack") == []
    monkeypatch.delenv("CONNECTORS_FAILPOINTS")

    def released() -> bool:
        flag.unlink(missing_ok=True)
        return len(spool.numbers("ack")) == 200

    wait_for(released)


def test_the_next_segment_is_written_while_one_is_published(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "paused"
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"store.before_sync=pause:{flag}")
    plan = replace(spool.plan(total=40_000, rows=1000), segment_bytes=400_000)
    group = spool.start(plan)
    ready(group)
    wait_for(lambda: flag.exists() and len(spool.numbers("receive")) == 40_000)
    wait_for(lambda: len(list((spool.root / "tmp").iterdir())) == 2)
    assert spool.segments(ready(group).fetcher or "") == []


def test_a_segment_is_closed_at_its_bytes_and_at_its_rows(spool: Spool) -> None:
    by_rows = replace(spool.plan(total=1000, rows=10, gap=0.001), publish_period=60.0, segment_rows=100)
    by_rows = replace(by_rows, segment_bytes=2000)
    group = spool.start(by_rows)
    fetcher = ready(group).fetcher or ""
    wait_for(lambda: len(spool.numbers("ack")) >= 900)
    assert len(spool.segments(fetcher)) > 3


# When a segment cannot be kept.


def test_after_a_full_disk_everything_later_is_given_back_in_order_and_fetching_goes_on_by_itself(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"fetch.before_publish=raise:{errno.ENOSPC}:2")
    group = spool.start(spool.plan(total=400, gap=0.01, first_alone=True))
    fetcher = ready(group).fetcher or ""
    wait_for(lambda: len(spool.numbers("ack")) == 400)
    log = spool.log()
    nack = next(index for index, line in enumerate(log) if line["kind"] == "nack")
    acked_before = numbers_of(log[:nack], "ack")
    received_before = numbers_of(log[:nack], "receive")
    assert acked_before
    assert log[nack]["numbers"] == [number for number in received_before if number not in set(acked_before)]
    assert log[nack]["numbers"] == sorted(log[nack]["numbers"])
    # Nothing more was received before the disk was tried again.
    assert [line["kind"] for line in log[nack - 1 : nack + 2]] == ["stop", "nack", "start"]
    assert spool.rows(fetcher) == list(range(400))
    numbers = spool.segments(fetcher)
    assert numbers == list(range(len(numbers)))


def test_a_block_that_cannot_be_written_is_given_back_itself(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the deliveries that it was decoded from: the target would keep its lease for ever."""
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"segment.before_append=raise:{errno.ENOSPC}:2")
    group = spool.start(spool.plan(total=400, gap=0.01, first_alone=True))
    fetcher = ready(group).fetcher or ""
    wait_for(lambda: len(spool.numbers("ack")) == 400)
    assert spool.numbers("nack")
    assert spool.rows(fetcher) == list(range(400))
    assert only(group).starts == 1


def test_a_full_disk_is_reported_and_its_end_too(spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [f"fetch.before_publish=raise:{errno.ENOSPC}:1", f"fetch.before_nack=pause:{tmp_path / 'paused'}"]
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", ",".join(points))
    group = spool.start(spool.plan(total=400, gap=0.01))
    wait_for((tmp_path / "paused").exists)
    wait_for(lambda: (error := only(group).error) and error.code == "SPOOL_DISK_FULL")
    assert not group.healthy
    (tmp_path / "paused").unlink()
    wait_for(lambda: len(spool.numbers("ack")) == 400)
    wait_for(lambda: only(group).error is None)
    assert group.terminal_error() is None


def test_a_disk_that_is_full_from_the_start_is_waited_for(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"fetch.before_folder=raise:{errno.ENOSPC}:1")
    group = spool.start()
    wait_for(lambda: (error := only(group).error) and error.code == "SPOOL_DISK_FULL")
    wait_for(lambda: len(spool.numbers("ack")) == 200)
    assert only(group).starts == 1


def test_a_segment_that_may_or_may_not_be_durable_ends_the_life_of_its_fetcher(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"store.before_folder_sync=raise:{errno.EIO}:2")
    may_start = [True]
    plan = spool.plan(total=300, gap=0.01, first_alone=True)
    group = spool.start(plan, may_start=lambda *_: bool(may_start) and may_start.pop())
    wait_for(lambda: only(group).starts == 1 and only(group).pid is None)
    (first,) = spool.fetchers()
    log = spool.log()
    acked = set(numbers_of(log, "ack"))
    last = spool.segments(first)[-1]
    store = LocalStore(str(spool.root), "test")
    unsure = SegmentReader(store, f"inbox/{first}/{last}.arrow").info.published or (0, 0)
    assert not acked & set(range(unsure[0], unsure[1] + 1))
    assert {line["kind"] for line in log} >= {"nack", "close"}
    may_start.append(True)
    wait_for(lambda: len(spool.fetchers()) == 2)


def test_a_fetcher_whose_folder_is_gone_acks_nothing_more_gives_back_and_ends(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "paused"
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"segment.before_append=pause:{flag}")
    group = spool.start()
    status = ready(group)
    wait_for(lambda: flag.exists() and len(spool.numbers("receive")) == 200)
    shutil.rmtree(spool.root / "inbox" / (status.fetcher or ""))
    monkeypatch.delenv("CONNECTORS_FAILPOINTS")
    flag.unlink()
    wait_for(lambda: gone(status.pid or 0))
    first = [line for line in spool.log() if line["pid"] == status.pid]
    assert numbers_of(first, "ack") == []
    assert numbers_of(first, "nack") == list(range(200))
    wait_for(lambda: only(group).starts == 2 and only(group).fetcher)
    assert spool.fetchers() == [only(group).fetcher]


# How it ends.


def test_a_stop_publishes_and_acks_what_is_held(spool: Spool) -> None:
    plan = replace(spool.plan(first_alone=True, limits=PATIENT), publish_period=60.0)
    group = spool.start(plan)
    fetcher = ready(group).fetcher or ""
    wait_for(lambda: len(spool.numbers("receive")) == 200)
    assert spool.numbers("ack") == list(range(10))
    group.stop(timeout=60.0)
    assert spool.rows(fetcher) == list(range(200))
    assert spool.numbers("ack") == list(range(200))
    assert spool.numbers("nack") == []
    assert spool.log()[-1]["kind"] == "close"


def test_what_cannot_be_published_at_the_end_is_given_back_and_not_acked(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "paused"
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"store.before_sync=pause:{flag}")
    group = spool.start(spool.plan(gap=0.005))
    pid = ready(group).pid or 0
    wait_for(lambda: flag.exists() and len(spool.numbers("receive")) == 200)
    began = time.monotonic()
    group.stop(timeout=60.0)
    assert time.monotonic() - began < 30, "it ends by itself, while its segment is stuck"
    assert gone(pid)
    assert spool.numbers("ack") == []
    assert spool.numbers("nack") == list(range(200))


def test_the_time_for_the_end_is_five_seconds_and_most_of_it_is_for_handing_back() -> None:
    assert fetch_process._PUBLISH_LIMIT < 2
    assert fetch_process._PUBLISH_LIMIT + 2 < fetch_process._CLOSE_LIMIT < fetch_process._HARD_LIMIT < 5


def test_a_fetcher_that_hangs_at_the_end_is_ended_by_the_kernel_at_its_limit(spool: Spool) -> None:
    group = spool.start(spool.plan(hang_at_close=True))
    pid = ready(group).pid or 0
    began = time.monotonic()
    group.stop(timeout=60.0)
    assert fetch_process._HARD_LIMIT - 0.5 < time.monotonic() - began < 30, "much less than it hangs"
    assert gone(pid)


PARENT = """
import json, os, sys, time
from pathlib import Path
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.fetching.group import FetcherGroup

limits = json.loads(sys.argv[4])
settings = {"log": sys.argv[2], "total": 1000, "rows": 10, "bytes": 100, "gap": 0.02, "limits": limits}
plan = FetchPlan("tests.support.fetch_targets:NumberTarget", sys.argv[1], "spool", bytes(16), settings=settings)
group = FetcherGroup()
group.add(plan, 1)
group.start()
while not group.healthy:
    time.sleep(0.01)
stranger = 0
if sys.argv[3] == "fork":
    stranger = os.fork()
    if stranger == 0:
        time.sleep(250)
        os._exit(0)
print(group.status()[0].pid, stranger, flush=True)
time.sleep(250)
"""


@pytest.mark.parametrize("kind", ["alone", "fork"])
def test_a_fetcher_ends_when_its_parent_was_killed_also_if_a_stranger_holds_its_pipe(spool: Spool, kind: str) -> None:
    arguments = [sys.executable, "-c", PARENT, str(spool.root), str(spool.log_path), kind, json.dumps(PATIENT)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        pid, stranger = map(int, parent.stdout.readline().split())
        wait_for(lambda: spool.numbers("ack"))
        parent.kill()
        try:
            wait_for(lambda: gone(pid))  # the stranger lives on much longer
        finally:
            if stranger:
                os.kill(stranger, signal.SIGKILL)
    (fetcher,) = spool.fetchers()
    assert sorted(spool.numbers("ack") + spool.numbers("nack")) == spool.numbers("receive")
    assert spool.rows(fetcher) == spool.numbers("ack")


def test_an_interrupt_from_the_terminal_does_not_reach_a_fetcher(spool: Spool) -> None:
    group = spool.start(spool.plan(total=100_000, gap=0.01))
    pid = ready(group).pid or 0
    assert os.getsid(pid) != os.getsid(os.getpid())
    os.kill(pid, signal.SIGINT)
    seen = len(spool.numbers("ack"))
    wait_for(lambda: len(spool.numbers("ack")) > seen)
    assert only(group).pid == pid
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: gone(pid))
    assert sorted(spool.numbers("ack") + spool.numbers("nack")) == spool.numbers("receive")


# Supervision.


@pytest.mark.guarantee
def test_a_killed_fetcher_is_followed_by_another_with_a_folder_of_its_own(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "paused"
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"store.before_link=pause:{flag}")
    group = spool.start()
    first = ready(group)
    wait_for(flag.exists)
    monkeypatch.delenv("CONNECTORS_FAILPOINTS")
    assert list((spool.root / "tmp").iterdir())
    os.kill(first.pid or 0, signal.SIGKILL)
    wait_for(lambda: only(group).starts == 2)
    assert not list((spool.root / "tmp").glob(f"{first.fetcher}-*"))
    second = ready(group)
    assert second.fetcher != first.fetcher
    assert second.pid != first.pid
    wait_for(lambda: group.healthy)


def test_a_start_waits_until_it_is_allowed(spool: Spool) -> None:
    allowed: list[bool] = []
    asked: list[int] = []

    def may_start(*_: Any) -> bool:
        asked.append(1)
        return bool(allowed)

    group = spool.start(may_start=may_start)
    wait_for(lambda: len(asked) >= 3)
    assert only(group).starts == 0
    allowed.append(True)
    assert ready(group).starts == 1


def test_a_start_waits_while_it_cannot_be_found_out_whether_it_is_allowed(spool: Spool) -> None:
    answers: list[OSError] = [OSError(errno.ETIMEDOUT, "The object store does not answer", "s3://bucket/spool")] * 2

    def may_start(*_: Any) -> bool:
        if answers:
            raise answers.pop()
        return True

    group = spool.start(may_start=may_start)
    assert ready(group).starts == 1
    assert group.terminal_error() is None


def test_an_error_that_no_retry_can_mend_ends_all_fetchers(spool: Spool) -> None:
    group = spool.start(spool.plan(fail="gone"), count=2)
    error = wait_for(group.terminal_error)
    assert error.code == "NUMBERS_GONE"
    wait_for(lambda: all(status.pid is None for status in group.status()))
    assert [status.starts for status in group.status()] == [1, 1]
    assert not group.healthy


def test_a_spool_that_is_found_to_be_away_before_a_start_ends_all_fetchers(spool: Spool) -> None:
    def may_start(*_: Any) -> bool:
        raise missing_spool(str(spool.root))

    group = spool.start(may_start=may_start)
    assert wait_for(group.terminal_error).code == "SPOOL_MISSING"
    assert only(group).starts == 0


class Silent(Reporter):
    """Reports to nobody."""

    def __init__(self) -> None:
        """There is no pipe."""

    def send(self, report: Report) -> None:
        """Drop it."""


def test_a_life_of_many_segments_takes_no_more_memory_than_one_of_few() -> None:
    process = FetchProcess(io.BytesIO(), Silent())
    segment = SegmentInfo("fetcher", 0, 0, 500, 50_000, (1, 2), "", {})
    tracemalloc.start()
    try:
        process.published(segment)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10_000):
            process.published(segment)
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("point", ["start", "decode", "thread"])
def test_an_unexpected_error_is_reported_and_the_fetcher_started_anew(spool: Spool, point: str) -> None:
    may_start = [True, True]  # and not a third time, however late that is seen
    group = spool.start(spool.plan(fail=point), may_start=lambda *_: bool(may_start) and may_start.pop())
    error = wait_for(lambda: only(group).error)
    assert error.code == "FETCHER_FAILED"
    wait_for(lambda: only(group).starts == 2)
    assert group.terminal_error() is None
    if point == "decode":
        first = spool.log()[0]["pid"]
        wait_for(lambda: gone(first))
        written = [line for line in spool.log() if line["pid"] == first]
        assert numbers_of(written, "receive"), "it met the error while it received"
        assert numbers_of(written, "nack") == numbers_of(written, "receive"), "all that was received is given back"


def test_fetchers_that_never_get_ready_stop_the_query(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", "fetch.before_folder=kill")
    group = spool.start()
    assert wait_for(group.terminal_error).code == "FETCHER_CANNOT_START"
    assert only(group).starts == 5


def test_secrets_are_in_no_argument_no_environment_and_no_text(spool: Spool) -> None:
    plan = spool.plan(credentials=SECRET)
    assert SECRET not in repr(plan)
    pid = ready(spool.start(plan)).pid
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_a_fetcher_starts_no_threads_for_blas_unless_that_is_asked_for(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    for asked in ("1", "2"):
        pid = ready(spool.start(spool.plan())).pid
        assert f"\0OPENBLAS_NUM_THREADS={asked}\0" in f"\0{Path(f'/proc/{pid}/environ').read_text()}"
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")


# Holding back.


def test_no_more_is_held_than_the_caps_and_one_delivery(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "paused"
    monkeypatch.setenv("CONNECTORS_FAILPOINTS", f"fetch.before_publish=pause:{flag}")
    group = spool.start(replace(spool.plan(), max_held_bytes=4500), count=1)
    wait_for(lambda: flag.exists() and only(group).paused)
    assert spool.received_in_the_end() == 50
    rows = spool.start(replace(spool.plan(), max_held_rows=31), count=1)
    wait_for(lambda: only(rows).paused)
    assert spool.received_in_the_end() == 50 + 40


def test_fetching_stops_at_the_allowance_and_goes_on_with_a_larger_one(spool: Spool) -> None:
    group = spool.start(spool.plan(), free_bytes=4500)
    wait_for(lambda: only(group).paused and len(spool.numbers("ack")) == 50)
    wait_for(lambda: only(group).published_bytes == 5000)
    group.allow(0)
    assert spool.received_in_the_end() == 50
    group.allow(1)
    wait_for(lambda: len(spool.numbers("ack")) == 60)
    group.allow(0)
    assert spool.received_in_the_end() == 60
    group.allow(1 << 40)
    wait_for(lambda: len(spool.numbers("ack")) == 200)


def test_an_allowance_is_split_among_the_fetchers(spool: Spool) -> None:
    group = spool.start(spool.plan(), count=2, free_bytes=4000)
    wait_for(lambda: all(status.paused for status in group.status()) and len(spool.numbers("ack")) == 40)
    assert spool.received_in_the_end() == 40


def test_sources_share_an_allowance_evenly_and_a_start_sees_the_fetchers_of_the_others(spool: Spool) -> None:
    starts: dict[int, set[str]] = {}

    def may_start(plan: FetchPlan, beside: set[str]) -> bool:
        starts[plan.source] = beside
        return plan.source == 0 or bool(beside)

    group = FetcherGroup(may_start=may_start, free_bytes=4000)
    spool.groups.append(group)
    for source, count in ((0, 1), (1, 2)):
        group.add(replace(spool.plan(), source=source), count)
    group.start()
    wait_for(lambda: all(status.paused for status in group.status()) and len(spool.numbers("ack")) == 40)
    assert spool.received_in_the_end() == 40
    assert sorted(status.fetched_bytes for status in group.status()) == [1000, 1000, 2000]
    assert starts == {0: set(), 1: {group.status()[0].fetcher}}


@pytest.mark.parametrize(
    ("published", "share", "sent", "expected"),
    [
        (0, 1000, None, 1000),
        (100, 1000, 1000, None),  # an eighth is not used up yet
        (125, 1000, 1000, 1125),
        (1000, 1, 1000, 1001),
        (1000, 0, 1001, 1000),
        (1000, 0, 1000, None),
        (1000, -5, 1000, None),
        (1000, 500, 2000, 1500),
        (900, 100, 1000, None),
        (990, 100, 1000, 1090),
    ],
)
def test_an_allowance_is_sent_when_it_matters(
    published: int, share: int, sent: int | None, expected: int | None
) -> None:
    assert next_allowance(published, share, sent) == expected


class HeldTarget:
    """Gives one row for a delivery, unless its text is empty; stands still before it decodes what a test says."""

    def __init__(self) -> None:
        self.still_at = ""
        self.stands = threading.Event()
        self.go_on = threading.Event()
        self.durable: list[str] = []
        self.given_up: list[str] = []

    def start(self, intake: Intake[str, str]) -> None:
        pass

    def stop(self) -> None:
        pass

    def decode(self, deliveries: Sequence[str]) -> Block[str]:
        if self.still_at in deliveries:
            self.stands.set()
            self.go_on.wait()
        texts = [text for text in deliveries if text.strip()]
        rows = pa.record_batch({"id": pa.array(texts, pa.string())})
        sizes = np.full(len(texts), 4, np.int64)
        return Block(rows, pa.array(texts, pa.string()), sizes, (1, 1), "".join(deliveries).upper())

    def on_durable(self, token: str) -> None:
        self.durable.append(token)

    def on_given_up(self, held: Sequence[str]) -> None:
        self.given_up += held

    def status(self) -> TargetStatus:
        return TargetStatus(1, 1, None)

    def close(self, deadline: float) -> None:
        pass


class StillFolder(FetcherFolder):
    """A folder in which nothing is published before `go_on`."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.publishing = threading.Event()
        self.go_on = threading.Event()

    def check(self) -> None:
        self.publishing.set()
        self.go_on.wait()
        super().check()


class Observer:
    def __init__(self) -> None:
        self.failures: list[BaseException] = []

    def published(self, segment: SegmentInfo) -> None:
        pass

    def disk_changed(self, error: OSError | None) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)


def held(intake: Intake[str, str]) -> tuple[int, int]:
    health = intake.health(TargetStatus(1, 1, None), None)
    return health.held_bytes, health.held_rows


def never() -> bool:
    return False


def test_what_is_held_is_given_up_in_the_order_of_arrival(spool: Spool) -> None:
    plan = replace(spool.plan(), segment_bytes=100, publish_period=0.001)
    intake: Intake[str, str] = Intake(plan, Observer(), 600)
    folder, target = StillFolder(str(spool.root)), HeldTarget()
    intake.start(folder, target)
    target.still_at = "d"
    intake.put("a", 100, 1)
    assert folder.publishing.wait(5)
    for name in "bcdef":
        intake.put(name, 100, 1)
    assert target.stands.wait(5)
    assert held(intake) == (600, 6)
    intake.abandon()
    assert target.given_up == ["A", "B", "C", "d", "e", "f"]
    assert held(intake) == (0, 0)
    assert intake.wait(0.0, never)
    folder.go_on.set()
    target.go_on.set()


def test_a_delivery_counts_with_its_bytes_until_it_is_decoded_and_then_with_those_of_its_rows(spool: Spool) -> None:
    intake: Intake[str, str] = Intake(replace(spool.plan(), publish_period=0.001), Observer(), 10)
    intake.put("a", 10, 1)
    assert not intake.wait(0.0, never)
    intake.start(FetcherFolder(str(spool.root)), HeldTarget())
    assert intake.wait(5.0, never)
    assert intake.close(time.monotonic() + 5.0)
    intake.put("b", 6, 1)
    assert not intake.wait(0.0, never)
    intake.allow(11)
    assert intake.wait(0.0, never)


def test_a_block_without_rows_is_let_go_of_at_once(spool: Spool) -> None:
    intake: Intake[str, str] = Intake(replace(spool.plan(), publish_period=0.001), Observer())
    target = HeldTarget()
    intake.start(FetcherFolder(str(spool.root)), target)
    intake.put(" ", 10, 1)
    wait_for(lambda: target.durable == [" "])
    assert held(intake) == (0, 0)
    assert spool.segments(spool.fetchers()[0]) == []


# Lines that are no messages, and fetchers of another version of this pack.


class Kept(Reporter):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def send(self, report: Report) -> None:
        self.reports.append(report)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"hello\n", "FETCHER_MESSAGE_MALFORMED"),
        (encode(Allow(1)), "FETCHER_MESSAGE_MALFORMED"),
        (b'{"plan": {}, "index": 0, "parent": 1, "allow": null}\n', "FETCHER_MESSAGE_MALFORMED"),
        (b'{"v": 2, "start": {}}\n', "FETCHER_OTHER_VERSION"),
    ],
)
def test_a_fetcher_that_is_started_with_no_start_of_its_version_says_so_and_ends(line: bytes, code: str) -> None:
    reporter = Kept()
    assert FetchProcess(io.BytesIO(line), reporter).run() == 0
    (fault,) = reporter.reports
    assert isinstance(fault, Fault)
    assert (fault.terminal, fault.error.code) == (True, code)


@pytest.mark.parametrize("line", [b"", b'{"v": 1, "start": {"pl'])
def test_a_parent_that_dies_before_it_has_sent_the_start_is_no_error(line: bytes) -> None:
    reporter = Kept()
    assert FetchProcess(io.BytesIO(line), reporter).run() == 0
    assert reporter.reports == []


@pytest.mark.parametrize("kind", ["no message", "another start", "another version", "refused"])
def test_a_command_that_is_none_ends_a_fetcher_with_a_named_error(spool: Spool, kind: str) -> None:
    start = encode(Start(spool.plan(total=100_000, gap=0.01), 0, os.getpid()))
    line = {
        "no message": b"hello\n",
        "another start": start,
        "another version": b'{"v": 2, "pause": {}}\n',
        "refused": encode(Ordered("refused", 1)),
    }[kind]
    command = [sys.executable, "-m", "connectors.spool.fetching.process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(start)
        process.stdin.flush()
        wait_for(lambda: spool.numbers("ack"))
        process.stdin.write(line)
        process.stdin.flush()
        reports = [decode(line, REPORTS) for line in process.stdout]
    (fault,) = [report for report in reports if isinstance(report, Fault)]
    assert fault.terminal
    assert fault.error.code == ("FETCHER_OTHER_VERSION" if kind == "another version" else "FETCHER_MESSAGE_MALFORMED")
    assert sorted(spool.numbers("ack") + spool.numbers("nack")) == spool.numbers("receive")
    assert spool.numbers("close") == []
    assert any(line["kind"] == "close" for line in spool.log())


def test_a_report_that_comes_in_two_parts_is_one(spool: Spool) -> None:
    child = FetcherChild(spool.plan(), 0)
    line = encode(Note("whole"))
    copy = [sys.executable, "-c", "import os\nwhile part := os.read(0, 100): os.write(1, part)"]
    with subprocess.Popen(copy, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child.process:
        os.set_blocking(child.reports, False)
        reports = list[Report]()
        for part in (line[:3], line[3:]):
            assert child.process.stdin is not None
            child.process.stdin.write(part)
            select.select([child.reports], [], [], 60.0)
            assert reports == []
            reports += child.read()
        child.process.stdin.close()
    assert reports == [Note("whole")]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("hello\n", "FETCHER_MESSAGE_MALFORMED"),
        ('{"published": {"number": 0, "bytes": 1, "total_bytes": 1}}\n', "FETCHER_MESSAGE_MALFORMED"),
        ('{"v": 1, "paused": {}}\n', "FETCHER_MESSAGE_MALFORMED"),
        ('{"v": 2, "health": {}}\n', "FETCHER_OTHER_VERSION"),
        ("x" * 100_000, "FETCHER_MESSAGE_MALFORMED"),
    ],
)
def test_a_report_that_is_none_ends_all_fetchers_with_a_named_error(spool: Spool, line: str, code: str) -> None:
    group = spool.start(spool.plan(total=100_000, gap=0.01, report=line), count=2)
    assert wait_for(group.terminal_error).code == code
    wait_for(lambda: all(status.pid is None for status in group.status()))
    assert sorted(spool.numbers("ack") + spool.numbers("nack")) == sorted(spool.numbers("receive"))


def test_an_order_that_the_pipe_does_not_take_whole_is_refused_and_the_others_arrive(spool: Spool) -> None:
    noted: list[Any] = []
    group = FetcherGroup(on_note=lambda _index, value: noted.append(value))
    group.add(spool.plan(), 1)
    spool.groups.append(group)
    group.order(0, "name", "before")
    group.start()
    wait_for(lambda: ["name", "before"] in noted)
    with pytest.raises(ConnectorError, match="FETCHER_MESSAGE_TOO_LONG"):
        group.order(0, "name", "x" * MAX_COMMAND_BYTES)
    group.order(0, "other", "after")
    wait_for(lambda: ["other", "after"] in noted)
    assert ["name", "before"] in noted
    assert group.terminal_error() is None


UPGRADED = """
import os, signal, sys, time
from pathlib import Path
from connectors.spool.fetching import messages
from connectors.spool.fetching.group import FetcherGroup

settings = {"log": sys.argv[2], "total": 1000, "rows": 10, "bytes": 100, "gap": 0.02}
target = "tests.support.fetch_targets:NumberTarget"
plan = messages.FetchPlan(target, sys.argv[1], "spool", bytes(16), settings=settings)
group = FetcherGroup()
group.add(plan, 1)
group.start()
while not group.healthy:
    time.sleep(0.01)
file = Path(messages.__file__)
file.write_text(file.read_text().replace("VERSION: Final = 1", "VERSION: Final = 2"))
os.kill(group.status()[0].pid, signal.SIGKILL)
while group.terminal_error() is None:
    time.sleep(0.01)
group.stop()
print(group.terminal_error().code, group.status()[0].starts)
"""


def test_a_pack_that_is_upgraded_while_a_query_runs_stops_it_with_a_named_error(spool: Spool, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("connectors", "tests/support"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "npm", "clients"))
    program = [sys.executable, "-c", UPGRADED, str(spool.root), str(spool.log_path)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ended = subprocess.run(program, env=environment, cwd=tree, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["FETCHER_OTHER_VERSION", "2"], ended.stderr


# What a fetcher costs and says.


def test_reports_that_nobody_reads_hold_up_nobody() -> None:
    read_end, write_end = os.pipe()
    reporter = Reporter(write_end)
    for number in range(30_000):
        reporter.send(Published(number, 1, number))
    reporter.close()
    os.close(read_end)


def test_a_fetcher_imports_neither_spark_nor_pydantic_nor_pandas() -> None:
    code = (
        "import sys, connectors.spool.fetching.process, connectors.pubsub.source.fetcher; "
        "print([name for name in ('pyspark', 'pydantic', 'pandas', 'google.pubsub_v1') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_failpoint_of_a_fetcher_is_named_once_and_passed() -> None:
    assert len(set(FAILPOINTS)) == len(FAILPOINTS)
    sources = "".join(path.read_text() for path in (REPOSITORY / "connectors").rglob("*.py"))
    for name in FAILPOINTS:
        assert f'failpoint("{name}")' in sources
