"""``fetch=external``: the reader only admits, and ``connectors fetch`` fetches; by the protocol driver, our server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connectors.core.errors import SourceGoneError
from connectors.pubsub.datasource import PubSubConnector
from connectors.spool.fetching.external import run_fetchers
from connectors.spool.ledger.recovery import read_state
from connectors.spool.source.start import external_plans
from connectors.spool.store import open_store
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from tests.support.fetch_program import FetchProgram
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.spark_protocol.driver import TaskWorkers
from tests.support.spool_writing import SECRET, object_store_options

EXTERNAL = {"fetch": "external", "startTimeout": "1s"}


def fetching(rig: PubSubRig, *arguments: str, **changes: str) -> FetchProgram:
    return FetchProgram(rig.folder, rig.options(**EXTERNAL, **changes), *arguments)


def test_the_reader_admits_what_a_program_outside_fetches_and_starts_no_fetcher(rig: PubSubRig) -> None:
    rig.publish(300)
    with rig.query(EXTERNAL) as query, fetching(rig, fetchers="2") as program:
        rig.run_until_all(query)
        assert rig.fetchers(query) == []
        program.wait_for("all fetchers are at work")
        assert len(program.children()) == 2
        rig.publish(100)
        rig.run_until_all(query)
        assert program.end() == 0
    rig.assert_each_once()
    assert rig.acked() == set(rig.published)


def test_a_program_that_gets_a_signal_to_end_hands_back_what_it_holds(rig: PubSubRig) -> None:
    with rig.query(EXTERNAL) as query, fetching(rig, maxFetchPeriod="10m") as program:
        query.run_trigger()
        program.wait_for("all fetchers are at work")
        rig.publish(50)
        rig.wait_for(lambda: rig.server.outstanding(SUBSCRIPTION) + len(rig.acked()) == 50)
        assert program.end() == 0
        rig.wait_for(lambda: rig.server.outstanding(SUBSCRIPTION) == 0)
        # What it could not make durable in its last moments is given back: all of it, where it was stopped for long.
        if rig.sink.rows() < len(rig.acked()):
            query.run_until(lambda _: rig.sink.rows() >= len(rig.acked()), 60)
        program.options["maxFetchPeriod"] = "20ms"
        program.start()
        rig.run_until_all(query)
        program.end()
    rig.assert_each_once()


def test_a_killed_program_takes_its_fetchers_along_and_another_one_goes_on(rig: PubSubRig) -> None:
    with rig.query(EXTERNAL) as query, fetching(rig) as program:
        for _ in range(2):
            rig.publish(100)
            rig.run_until_all(query)
            fetchers = program.children()
            program.kill()
            rig.publish(50)
            rig.wait_for(lambda gone=fetchers: not any(Path(f"/proc/{pid}").exists() for pid in gone))
            rig.server.jump(15)
            program.start()
        rig.run_until_all(query)
        # The fetchers of the killed program may have fetched all of it while they died.
        rig.wait_for(lambda: bool(program.children()))
        os.kill(program.children()[0], signal.SIGKILL)
        rig.publish(50)
        rig.server.jump(15)
        rig.run_until_all(query)
    rig.assert_each_once()


def test_fetchers_pause_while_there_is_no_query_and_go_on_with_the_next(rig: PubSubRig) -> None:
    age = {"maxReaderAge": "5s"}  # four signs of life: a reader may stand still for two seconds
    with contextlib.ExitStack() as stack:
        with rig.query(EXTERNAL | age) as query:
            # There is a spool now: a program waits no longer than that for one.
            query.run_trigger()
            program = stack.enter_context(fetching(rig, **age))
            rig.publish(50)
            rig.run_until_all(query)
            # A reader with nothing to do gives signs of life.
            before = _records(rig)
            rig.wait_for(lambda: _records(rig) > before + 4)
            assert "SPOOL_NO_READER" not in program.log
        program.wait_for("SPOOL_NO_READER")
        rig.server.wait_for_streams(0, SUBSCRIPTION)
        rig.publish(50)
        with rig.query(EXTERNAL | age) as query:
            rig.run_until_all(query)
        assert "the reader is back" in program.log
    rig.assert_each_once()


def _records(rig: PubSubRig) -> int:
    return sum(1 for _ in (rig.spool / "ledger").rglob("*"))


def test_fetchers_of_a_task_wait_for_a_query_that_is_being_started_and_end_when_none_comes(
    rig: PubSubRig, capfd: pytest.CaptureFixture[str]
) -> None:
    with rig.query(EXTERNAL) as query:
        query.run_trigger()
    rig.publish(20)
    said, stopped = "", threading.Event()
    with ThreadPoolExecutor() as pool:
        for age in ("10m", "1s"):
            for record in (rig.spool / "ledger").rglob("*"):
                os.utime(record, (0, 0))
            plans = external_plans(PubSubConnector(), rig.options(**EXTERNAL, maxReaderAge=age), None)
            fetchers = pool.submit(run_fetchers, plans, 1, stopped, outlive_reader=False)
            while "SPOOL_NO_READER" not in said:
                ended = fetchers.done()
                said += capfd.readouterr().err
                assert not ended or "SPOOL_NO_READER" in said, said
                time.sleep(0.01)
            said = ""
            if age == "10m":
                with rig.query(EXTERNAL | {"maxReaderAge": age}) as query:
                    rig.run_until_all(query)
                stopped.set()
            fetchers.result(30)
            stopped.clear()
    rig.assert_each_once()


def test_fetchers_wait_for_a_subscription_that_the_query_makes(rig: PubSubRig) -> None:
    with rig.query(EXTERNAL) as query:
        query.run_trigger()
    rig.server.fail("GetSubscription", "NOT_FOUND", times=2)
    [plan] = external_plans(PubSubConnector(), rig.options(**EXTERNAL, topicId=TOPIC), None)
    assert plan.settings["subscription"] == SUBSCRIPTION
    # Nobody makes it then.
    for changes in ({}, {"topicId": TOPIC, "maxReaderAge": "1s"}):
        rig.server.fail("GetSubscription", "NOT_FOUND", times=None)
        with pytest.raises(SourceGoneError, match="PUBSUB_SUBSCRIPTION_NOT_FOUND"):
            external_plans(PubSubConnector(), rig.options(**EXTERNAL, **changes), None)
        rig.server.clear_faults()


def test_the_age_of_the_ledger_is_reported_by_the_times_of_the_file_system(rig: PubSubRig) -> None:
    with rig.query(EXTERNAL) as query:
        query.run_trigger()
    for record in (rig.spool / "ledger").rglob("*"):
        os.utime(record, (0, 0))
    rig.publish(10)
    with fetching(rig) as program:
        program.wait_for("SPOOL_NO_READER")
        assert rig.server.outstanding(SUBSCRIPTION) == 0
        with rig.query(EXTERNAL) as query:
            rig.run_until_all(query)
    rig.assert_each_once()


def test_fetchers_pause_at_their_share_of_the_spool_and_go_on_when_it_was_read(rig: PubSubRig) -> None:
    limits = {"maxSpoolBytes": "20000", "maxOutstandingBytes": "2800", "fetchers": "2", "maxReaderAge": "4s"}
    with rig.query(EXTERNAL | limits | {"maxRecordsPerTrigger": "100"}) as query, fetching(rig, **limits):
        query.run_trigger()
        rig.publish(1500, size=100)
        # No batch is built, so nothing is read: each fetcher stops at its half, give or take what it holds.
        rig.wait_for(lambda: rig.stats().ready_bytes >= 20_000)
        rig.server.wait_for_streams(0, SUBSCRIPTION)
        assert rig.stats().ready_bytes + rig.stats().waiting_bytes < 20_000 + 2 * 3 * 20 * 140
        rig.run_until_all(query, 60)
    rig.assert_each_once()


def test_a_spool_whose_rows_are_all_read_but_not_freed_does_not_stop_fetching(rig: PubSubRig) -> None:
    limits = {"maxSpoolBytes": "3000", "spoolRetention": "1h", "maxReaderAge": "4s"}
    with rig.query(EXTERNAL | limits) as query, fetching(rig, **limits):
        for _ in range(4):
            rig.publish(60, size=100)
            rig.run_until_all(query)
    rig.assert_each_once()


def test_an_ordered_subscription_is_fetched_by_one_at_a_time_and_keeps_its_order(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers
) -> None:
    rig = PubSubRig(server, server.endpoint, tmp_path, workers, ordering=True)
    with contextlib.ExitStack() as stack:
        query = stack.enter_context(rig.query(EXTERNAL))
        first = stack.enter_context(fetching(rig))
        query.run_trigger()
        first.wait_for("all fetchers are at work")
        stack.enter_context(FetchProgram(_folder(tmp_path), first.options))
        for turn in range(4):
            for number in range(20):
                rig.published += server.publish(
                    "projects/shop/topics/orders", [f"{turn:02}{number:02}".encode()], ordering_key="k"
                )
            rig.run_until_all(query)
            if turn == 1:
                first.kill()
                server.jump(15)
        assert rig.sink.values("payload") == sorted(rig.sink.values("payload"))
    rig.assert_each_once()


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "second"
    folder.mkdir()
    return folder


def test_a_seek_waits_until_the_fetchers_outside_have_ended(rig: PubSubRig) -> None:
    rig.publish(20)
    with rig.query(EXTERNAL) as query, fetching(rig) as program:
        rig.run_until_all(query)
        program.end()
    with rig.query(EXTERNAL | {"dedupEpoch": "1"}) as query, fetching(rig, dedupEpoch="1"):
        rig.publish(20)
        rig.run_until_all(query)
        store = open_store(str(rig.spool), "test")
        assert read_state(store, rig.stats().spool).dedup_epoch == 1
    rig.assert_each_once()


def test_fetchers_outside_wait_for_a_seek_that_the_query_has_not_begun(rig: PubSubRig) -> None:
    rig.publish(20)
    with rig.query(EXTERNAL) as query, fetching(rig) as program:
        rig.run_until_all(query)
        program.end()
    rig.publish(20)
    with fetching(rig, dedupEpoch="1") as program:
        program.wait_for("to carry out the seek of its options")
        assert len(rig.acked()) == 20
        with rig.query(EXTERNAL | {"dedupEpoch": "1"}) as query:
            rig.run_until_all(query)
            assert read_state(open_store(str(rig.spool), "test"), rig.stats().spool).dedup_epoch == 1
    rig.assert_each_once()


def test_a_bounded_run_without_a_fetcher_says_so_and_does_not_end_as_if_all_had_come(rig: PubSubRig) -> None:
    quick = {"availableNowQuiet": "8s"}
    rig.publish(30)
    with rig.query(EXTERNAL | quick, trigger="available_now") as query, fetching(rig) as program:
        program.wait_for("all fetchers are at work")
        query.process_available()
    rig.assert_each_once()


def test_secrets_are_in_no_argument_and_refused_there(rig: PubSubRig) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "connectors.cli", "fetch", "pubsub", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "-----" not in done.stderr
        return done.stderr

    said = run("-o", "privateKey=-----BEGIN PRIVATE KEY-----")
    assert "OPTION_SECRET_IN_ARGUMENT" in said
    assert "privateKey" in said
    assert "OPTION_ILLEGAL" in run("-o", "-----BEGIN")
    plain = [f"-o{name}={value}" for name, value in rig.options().items()]
    assert "fetch is driver" in run(*plain)
    rig.spool.mkdir()
    assert "SPOOL_NOT_FOUND" in run(*plain, "-ofetch=external", "-omaxReaderAge=1s")
    assert (
        "FORMAT_UNKNOWN"
        in subprocess.run(
            [sys.executable, "-m", "connectors.cli", "fetch", "kafka_py"],
            capture_output=True,
            text=True,
            check=False,
        ).stderr
    )


def test_fetchers_of_another_spool_or_other_subscriptions_do_not_start(rig: PubSubRig) -> None:
    with rig.query(EXTERNAL) as query:
        query.run_trigger()
    options = rig.options(**EXTERNAL, subscriptionId="projects/shop/subscriptions/other")
    with FetchProgram(rig.folder, options) as program:
        assert program.process.wait(30) == 2
        assert "SPOOL_OTHER_SOURCE" in program.log


def test_a_spool_that_is_wiped_under_its_fetchers_ends_them_with_a_reason(rig: PubSubRig) -> None:
    with rig.query(EXTERNAL) as query, fetching(rig) as program:
        query.run_trigger()
        program.wait_for("all fetchers are at work")
        query.kill()
        shutil.rmtree(rig.spool)
        rig.publish(10)
        program.wait_for("SPOOL_")


def test_a_spool_on_an_object_store_is_filled_from_outside_and_no_secret_is_seen(
    server: PubSubServer, tmp_path: Path, workers: TaskWorkers
) -> None:
    with ObjectStoreServer() as objects:
        rig = PubSubRig(server, server.endpoint, tmp_path, workers, object_store_options(objects))
        rig.publish(100)
        with rig.query(EXTERNAL) as query, fetching(rig) as program:
            rig.run_until_all(query)
            pids = [program.process.pid, *program.children()]
            for shown in ("cmdline", "environ"):
                assert not any(SECRET.encode() in Path(f"/proc/{pid}/{shown}").read_bytes() for pid in pids)
            assert SECRET not in program.log
        rig.assert_each_once()
