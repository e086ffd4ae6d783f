"""More than one machine, each a process here: clocks that differ by minutes, and a fetcher cut off from the store.

The spool is on an object store, fetchers run beside executors, and driver, executors and store have clocks of their
own. Nothing is lost or doubled, nothing is freed early, and nobody who lives is taken for dead.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from connectors.core.processes.table import start_time
from connectors.pubsub.datasource import PubSubConnector
from connectors.spool.fetching.messages import FetchPlan
from connectors.spool.fetching.placement import lost_seconds
from connectors.spool.source.start import external_plans
from connectors.spool.store import open_store
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from tests.servers.toxiproxy import Proxy, Toxic, Toxiproxy, find_toxiproxy
from tests.support.machines import FetcherDriver, PubSubElsewhere, executor_on, machine
from tests.support.pubsub_rig import SUBSCRIPTION, TOPIC, PubSubRig
from tests.support.spark_protocol.driver import ReaderFailedError, StreamingQuery, TaskWorkers
from tests.support.spool_writing import access_of, object_store_options
from tests.support.waiting import POLL_SECONDS

pytestmark = pytest.mark.guarantee

SKEW = 600.0
"""More than any time here: a lease ends after 35 s, a place after 30 s, a reader after 60 s, retention after 300 s."""
KEYS = 3
EXTERNAL = {"fetch": "external", "startTimeout": "1s", "maxReaderAge": "60s", "spoolRetention": "300s"}
SILENT = (Toxic("timeout", {"timeout": 0}), Toxic("timeout", {"timeout": 0}, stream="upstream"))
LATE = (Toxic("latency", {"latency": 45_000}, stream="upstream"),)
"""Requests arrive, but after the place is lost, and before their client gives up after a minute."""


@pytest.fixture
def objects() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@pytest.fixture
def proxy(objects: ObjectStoreServer) -> Iterator[Proxy]:
    """A way to the store."""
    if reason := find_toxiproxy().reason:
        pytest.skip(reason)
    with Toxiproxy(seed=1) as toxiproxy:
        yield toxiproxy.proxy("store", objects.endpoint.removeprefix("http://"))


@pytest.fixture
def ordered() -> bool:
    return False


@pytest.fixture
def rig(
    tmp_path: Path, workers: TaskWorkers, server: PubSubServer, objects: ObjectStoreServer, ordered: bool
) -> PubSubRig:
    return PubSubRig(server, server.endpoint, tmp_path, workers, object_store_options(objects), ordering=ordered)


def _publish(rig: PubSubRig, count: int) -> None:
    """Publish messages of a few keys, which matter to an ordered subscription only."""
    for key in range(KEYS):
        first = len(rig.published)
        payloads = [b"%08d" % number for number in range(first, first + count)]
        rig.published += rig.server.publish(TOPIC, payloads, ordering_key=f"key-{key}")


def query_on(rig: PubSubRig, driver: dict[str, str], trigger: str = "default", **options: str) -> StreamingQuery:
    """A query whose driver runs on another machine."""
    return StreamingQuery(
        PubSubElsewhere,
        rig.options(**EXTERNAL, **options),
        checkpoint=rig.checkpoint,
        sink=rig.sink,
        workers=rig.workers,
        reader_environment=driver,
        poll_interval=POLL_SECONDS,
        trigger=trigger,  # type: ignore[arg-type]
    )


def plan_of(rig: PubSubRig, fetchers: int, **options: str) -> FetchPlan:
    (plan,) = external_plans(PubSubConnector(), rig.options(**EXTERNAL, **options), fetchers)
    return plan


def driver_of(rig: PubSubRig, fetchers: int) -> FetcherDriver:
    location = rig.spool_options["spoolLocation"]
    return FetcherDriver(open_store(location, "", access_of(rig.spool_options)), fetchers)


@pytest.mark.parametrize(
    "ahead",
    [pytest.param(-SKEW, id="driver behind"), pytest.param(SKEW, id="driver ahead", marks=pytest.mark.long)],
)
def test_clocks_that_differ_by_minutes_end_free_and_lose_nothing(
    rig: PubSubRig, objects: ObjectStoreServer, ahead: float, capfd: pytest.CaptureFixture[str]
) -> None:
    objects.ahead = 2 * ahead  # so the store is behind all others, or ahead of them
    driver, challenger = machine("driver", ahead), machine("challenger", -ahead)
    with ExitStack() as stack:
        with query_on(rig, driver) as query:
            query.run_trigger()
            fetching = stack.enter_context(driver_of(rig, 2))
            plan = plan_of(rig, 2)
            for number, skew in enumerate((-ahead, ahead)):
                executor = stack.enter_context(executor_on(machine(f"executor-{number}", skew), plan))
                assert executor.run(fetching.placement.job, number)["outcome"] == "started"
            first = {(place.number, place.holder.pid) for place in fetching.wait_for_places(2)}
            rig.publish(100)
            rig.run_until_all(query)
            # The lease is renewed every ten seconds, and a place as often.
            with pytest.raises(ReaderFailedError, match="SPOOL_IN_USE"), query_on(rig, challenger) as second:
                second.run_trigger()
            rig.publish(100)
            rig.run_until_all(query)
            assert fetching.missing_within(2.0) == []
            assert {(place.number, place.holder.pid) for place in fetching.wait_for_places(2)} == first
        rig.publish(100)
        with query_on(rig, driver, trigger="available_now") as query:  # its end is by publish times
            query.process_available()
            assert rig.sink.rows() == len(rig.published)
        # A restart looks at the times of files.
        assert rig.stats().committed >= 200
        assert rig.stats().oldest == 0, "rows were freed within their retention"
    rig.assert_each_once()
    log = capfd.readouterr().err
    assert "SPOOL_NO_READER" not in log
    assert _clocks(log) == {1, -1}, "or this test shows nothing"


def _clocks(log: str) -> set[int]:
    """By how many times `SKEW` the clocks of fetchers were off that have logged something."""
    times = re.findall(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ WARNING fetcher", log, re.MULTILINE)
    return {round((datetime.fromisoformat(at).timestamp() - time.time()) / SKEW) for at in times}


@pytest.mark.parametrize(
    ("toxics", "ordered"),
    [
        pytest.param(LATE, True, id="late ordered"),
        pytest.param(LATE, False, id="late", marks=pytest.mark.long),
        pytest.param(SILENT, True, id="silent ordered", marks=pytest.mark.long),
        pytest.param(SILENT, False, id="silent", marks=pytest.mark.long),
    ],
)
def test_a_fetcher_cut_off_from_the_store_is_replaced_and_its_late_puts_double_nothing(
    rig: PubSubRig, proxy: Proxy, toxics: tuple[Toxic, ...], ordered: bool, objects: ObjectStoreServer
) -> None:
    server = rig.server
    with ExitStack() as stack:
        query = stack.enter_context(query_on(rig, machine("driver")))
        query.run_trigger()
        fetching = stack.enter_context(driver_of(rig, 1))
        far = plan_of(rig, 1, spoolEndpoint=f"http://{proxy.endpoint}")
        cut_off = stack.enter_context(executor_on(machine("cut-off"), far))
        assert cut_off.run(fetching.placement.job, 0)["outcome"] == "started"
        (place,) = fetching.wait_for_places(1)
        _publish(rig, 50)
        rig.run_until_all(query)

        for toxic in toxics:
            proxy.add(toxic)
        _publish(rig, 50)
        rig.wait_for(lambda: server.outstanding(SUBSCRIPTION) > 0)
        missing = fetching.missing_within(2 * lost_seconds(fetching.placement.store))
        assert missing == [(0, 1)]
        fetching.placement.announce()
        other = stack.enter_context(executor_on(machine("other"), plan_of(rig, 1)))
        assert other.run(fetching.placement.job, 0, 1)["outcome"] == "started"
        (second,) = fetching.wait_for_places(1)
        assert start_time(place.holder.pid), "or this test shows nothing"
        _publish(rig, 50)
        server.jump(15)
        proxy.heal()
        rig.wait_for(lambda: not start_time(place.holder.pid))
        server.jump(15)
        rig.run_until_all(query)
        query.idle(1)
        assert fetching.wait_for_places(1)[0].holder.pid == second.holder.pid
    # A fetcher of an ordered subscription closes the folders of those before it. No late put takes a closed name.
    (folder,) = place.folders
    closed = [name for name, data in objects.objects.items() if folder in name and data.startswith(b"closed: ")]
    assert len(closed) == ordered
    rig.assert_each_once()
    rows = zip(rig.sink.values("orderingKey"), rig.sink.values("payload"), strict=True)
    by_key: dict[str, list[bytes]] = {}
    for key, payload in rows:
        by_key.setdefault(key, []).append(payload)
    assert len(by_key) == KEYS
    assert not ordered or all(payloads == sorted(payloads) for payloads in by_key.values())
