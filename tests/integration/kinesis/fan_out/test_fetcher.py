"""Fetchers of enhanced fan-out that die or hang: nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from connectors.kinesis.fan_out.cached_ranges import SpoolIndex
from connectors.spool.fetching.room import FetcherFolder
from connectors.spool.store import open_store
from tests.support.kinesis_efo import Efo
from tests.support.kinesis_rig import HASTY_SOURCE, wait_until
from tests.support.spark_protocol.driver import (
    descendants,
    is_running,
)

"""One for a stream: to make a client takes longer than to plan a batch."""


@pytest.mark.guarantee
def test_what_a_killed_fetcher_has_half_written_is_removed_at_the_next_start(tmp_path: Path) -> None:
    """A container that is killed takes the source process with it, so nobody else is there to do it."""
    root = str(tmp_path / "spool")
    open_store(root, "test").make_root()
    killed, lives = FetcherFolder(root), FetcherFolder(root)
    for each in (killed, lives):
        each.store.writer(f"{each.name}/0.arrow").write(b"half")
    killed.release()
    SpoolIndex(root, "spool", deaggregate=True).open()
    assert [path.name.partition("-")[0] for path in (tmp_path / "spool" / "tmp").iterdir()] == [lives.fetcher]
    assert SpoolIndex(root, "spool", deaggregate=True).fetchers() == [lives.fetcher]
    lives.release()


# Processes


@pytest.mark.guarantee
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("fetch.after_folder", marks=pytest.mark.long),
        pytest.param("fetch.before_decode", marks=pytest.mark.long),
        pytest.param("segment.before_append", marks=pytest.mark.long),
        "fetch.before_publish",
        pytest.param("store.before_link", marks=pytest.mark.long),
        pytest.param("store.before_folder_sync", marks=pytest.mark.long),
        "fetch.after_publish_before_ack",
        pytest.param("fetch.after_ack", marks=pytest.mark.long),
    ],
)
def test_03_a_fetcher_that_dies_anywhere_loses_and_doubles_nothing(two: Efo, tmp_path: Path, point: str) -> None:
    query = two.query()
    query.reader_environment = {"CONNECTORS_FAILPOINTS": f"fetcher/{point}=kill_once:{tmp_path / 'died'}"}
    with query:
        values = two.rig.put(20)
        two.rig.drain(query, values)
        while not (tmp_path / "died").exists():
            values += two.rig.put(5)
            two.rig.drain(query, values)
        two.until_live(query, 2)
        values += two.rig.put(20)
        assert two.polls(lambda: two.rig.drain(query, values)) == 0


@pytest.mark.guarantee
@pytest.mark.parametrize("point", ["kinesis.before_free", "kinesis.after_free"])
def test_03_a_source_that_dies_while_it_frees_loses_and_doubles_nothing(two: Efo, tmp_path: Path, point: str) -> None:
    from tests.support.spark_protocol.driver import ReaderDiedError  # noqa: PLC0415 - only here

    query = two.query()
    query.reader_environment = {"CONNECTORS_FAILPOINTS": f"reader/{point}=kill_once:{tmp_path / 'died'}"}
    values: list[bytes] = []
    with query:

        def until_it_dies() -> None:
            while True:
                values.extend(two.rig.put(10))
                two.rig.drain(query, values)

        with pytest.raises(ReaderDiedError):
            until_it_dies()
        query.restart()
        two.rig.drain(query, values)


@pytest.mark.guarantee
def test_03_a_source_that_is_killed_leaves_no_fetcher_and_a_new_one_goes_on(two: Efo) -> None:
    values: list[bytes] = []
    with two.query() as query:
        for _ in range(2):
            two.until_live(query, 2)
            values += two.rig.put(20)
            two.rig.drain(query, values)
            children = descendants(query.reader.pid)
            assert children
            query.kill()
            begin = time.monotonic()
            wait_until(lambda children=children: not any(is_running(each) for each in children))
            assert time.monotonic() - begin < 5.5
            values += two.rig.put(20)
            query.start()
            two.rig.drain(query, values)


def test_26_the_shards_of_a_fetcher_that_hangs_are_polled_until_it_goes_on(efo: Efo) -> None:
    with efo.query(source=HASTY_SOURCE) as query:
        efo.until_live(query)
        values = efo.rig.put(5)
        efo.rig.drain(query, values)
        (fetcher,) = (
            each
            for each in descendants(query.reader.pid)
            if b"fetching.process" in Path(f"/proc/{each}/cmdline").read_bytes()
        )
        os.kill(fetcher, signal.SIGSTOP)
        try:
            values += efo.rig.put(5)
            efo.rig.drain(query, values)
        finally:
            os.kill(fetcher, signal.SIGCONT)
        efo.until_live(query)


@pytest.mark.guarantee
def test_26_a_fetcher_that_hangs_is_killed_with_its_source(efo: Efo) -> None:
    with efo.query() as query:
        efo.until_live(query)
        with efo.rig.server.process.stalled():
            children = descendants(query.reader.pid)
            query.stop()
            wait_until(lambda: not any(is_running(each) for each in children))
