"""What a place for a spool must do: a folder, our own object store, and those of others.

``./dev test`` has Azurite and moto. Go builds the other two first, which takes minutes: they, and the tests marked
long, belong to ``./dev chaos stores``.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from connectors.core.errors import ConnectorError, SpoolDamagedError
from connectors.core.options.kinds import Secret
from connectors.spool.ledger.identity import refuse_foreign_folder
from connectors.spool.ledger.writer_lock import SpoolLease
from connectors.spool.store import open_store
from connectors.spool.store.base import Store, StoreAccess
from connectors.spool.store.object_store import ObjectStore
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from tests.servers.object_stores import STORES, StoreServer
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import TaskWorkers, descendants, is_running
from tests.support.spool_writing import access_of, object_store_options
from tests.support.waiting import wait_for

FOLDER, OWN = "folder", "own"
BUILT = ("fake-gcs", "versitygw")
"""By Go."""

PAGES = {"azurite": 5000}
"""Objects in one answer to a list; 1000 elsewhere."""

CHECKS_CREDENTIALS = ("azurite", "versitygw")
"""The others take any: moto checks no signature, and fake-gcs-server asks for none."""

OF_FIXTURES = {
    "place": (FOLDER, OWN, *STORES),
    "bucket": (OWN, *STORES),
    "theirs": tuple(STORES),
    "guarded": CHECKS_CREDENTIALS,
    "azure": ("azurite",),
}
"""The stores that a test runs on, by the fixture that it has."""


class Place:
    """One store, and as many spools in it as tests want.

    Args:
        options: of a spool in a folder, by the name of the folder.
        server: that runs the store, if it is another's.
    """

    def __init__(self, name: str, location: str, access: StoreAccess, server: StoreServer | None = None) -> None:
        self.name, self.location, self.access, self.server = name, location, access, server

    def fresh(self) -> Place:
        """Another folder of this store."""
        return Place(self.name, f"{self.location}/{uuid4().hex}", self.access, self.server)

    def open(self, owner: str = "ab") -> Store:
        """The store, as a process of this name sees it."""
        return open_store(self.location, owner.encode().hex().zfill(16), self.access)

    def object_store(self, owner: str = "ab") -> ObjectStore:
        """Likewise."""
        opened = self.open(owner)
        assert isinstance(opened, ObjectStore)
        return opened


def _of_options(name: str, options: Mapping[str, str], server: StoreServer | None = None) -> Place:
    return Place(name, options["spoolLocation"], access_of(options), server)


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store, once for all tests of it."""
    name = request.param
    with ExitStack() as stack:
        if name == FOLDER:
            yield Place(name, str(tmp_path_factory.mktemp("stores")), StoreAccess())
        elif name == OWN:
            yield _of_options(name, object_store_options(stack.enter_context(ObjectStoreServer())))
        else:
            if reason := STORES[name].unavailable():
                pytest.skip(reason)
            server = stack.enter_context(STORES[name]())
            yield _of_options(name, server.options("contract"), server)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for each store of its fixture."""
    for fixture, names in OF_FIXTURES.items():
        if fixture in metafunc.fixturenames:
            kinds = [pytest.param(name, marks=[pytest.mark.long] if name in BUILT else []) for name in names]
            metafunc.parametrize("running", kinds, indirect=True, scope="module")


@pytest.fixture
def place(running: Place) -> Place:
    """An empty folder of a store, made ready for a spool."""
    made = running.fresh()
    made.open().make_root()
    return made


bucket = theirs = guarded = azure = place


# Names.


def test_a_place_can_be_used_is_left_empty_and_can_be_used_again(place: Place) -> None:
    place.open().make_root()
    assert [place.open().list(folder) for folder in ("epochs", "ids", "inbox", "ledger", "probe")] == [[]] * 5


@pytest.mark.parametrize("name", ["quarantine/x", "wiping"])
def test_a_place_without_a_spool_that_has_a_foreign_file_under_its_names_is_refused(place: Place, name: str) -> None:
    store = place.open()
    refuse_foreign_folder(store)
    store.create(name, b"mine")
    with pytest.raises(SpoolDamagedError, match=rf"^\[SPOOL_FOREIGN_FILE\].*{name}"):
        refuse_foreign_folder(store)
    assert store.read(name) == b"mine"


def test_a_name_that_is_taken_keeps_its_bytes(place: Place) -> None:
    assert place.open("a").create("ids/a", b"first")
    assert not place.open("b").create("ids/a", b"second")
    assert place.open().read("ids/a") == b"first"


def test_of_many_writers_at_once_one_gets_the_name(place: Place) -> None:
    def write(writer: int) -> list[str]:
        store = place.open(f"writer {writer}")
        return [name for name in names if store.create(name, f"{writer}".encode())]

    names = [f"ledger/1/{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(write, range(8)))
    assert sorted(name for each in taken for name in each) == sorted(names)
    reader = place.open()
    assert {name: reader.read(name) for name in names} == {
        name: f"{writer}".encode() for writer, each in enumerate(taken) for name in each
    }


def test_what_is_absent_is_a_file_not_found(place: Place) -> None:
    store = place.open()
    assert not store.exists("ids/a")
    for read in (store.read, store.map, store.pieces):
        with pytest.raises(FileNotFoundError):
            read("ids/a")
    store.delete("ids/a")
    assert store.list("ids") == []


def test_what_was_deleted_is_absent_and_its_name_is_free(place: Place) -> None:
    store = place.open()
    store.create("ids/a", b"1")
    store.delete("ids/a")
    assert not store.exists("ids/a")
    assert store.list("ids") == []
    assert store.create("ids/a", b"2")
    assert place.open("b").read("ids/a") == b"2"


def test_a_list_has_the_names_of_one_folder(place: Place) -> None:
    store = place.open()
    for name in ("ledger/1/0", "ledger/1/1", "ledger/11/0", "ledger/2/0"):
        store.create(name, b"x")
    assert store.list("ledger/1") == ["0", "1"]
    assert store.list("ledger") == ["1", "11", "2"]
    assert store.list("ids") == []


@pytest.mark.long
def test_a_list_has_all_pages(bucket: Place) -> None:
    expected = sorted(str(number) for number in range(PAGES.get(bucket.name, 1000) + 7))
    store = bucket.open()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.create(f"ids/{name}", b"x"), expected))
    assert store.list("ids") == expected
    assert sorted(store.written("ids")) == expected


def test_two_spools_of_one_store_do_not_see_each_other(place: Place) -> None:
    inner = Place(place.name, f"{place.location}/ids", place.access)
    inner.open().make_root()
    inner.open().create("ids/x", b"1")
    assert place.open().create("ids/y", b"2")
    assert inner.open().list("ids") == ["x"]


def test_a_location_may_have_any_characters_that_a_url_may(bucket: Place) -> None:
    named = Place(bucket.name, f"{bucket.location}/a b/ü+&=%41'(x)", bucket.access)
    store = named.open()
    store.make_root()
    store.create("ids/a", b"1")
    store.create("ids/b", b"2")
    assert store.list("ids") == ["a", "b"]
    assert named.open("other").read("ids/a") == b"1"
    store.delete("ids/a")
    assert store.list("ids") == ["b"]


def test_times_of_files_are_those_of_a_clock(place: Place) -> None:
    store = place.open()
    store.create("ids/a", b"1")
    time.sleep(1.1)  # stores keep whole seconds
    store.create("ids/b", b"2")
    written = store.written("ids")
    assert written["a"] < written["b"]
    assert abs(written["b"] - time.time()) < 3600


# Bytes.


def test_pieces_of_a_file_are_those_of_the_whole(place: Place) -> None:
    data = os.urandom(700_000)
    store = place.open()
    store.make_folder("inbox/f")
    store.create("inbox/f/0.arrow", data)
    pieces = store.pieces("inbox/f/0.arrow")
    assert len(pieces) == len(data)
    for piece in (slice(0, 10), slice(1000, 500_000), slice(699_000, None), slice(450_000, 460_000), slice(5, 5)):
        assert pieces[piece] == data[piece]


def test_a_file_that_is_shorter_than_its_usual_end_is_read_whole(place: Place) -> None:
    store = place.open()
    store.create("ids/a", b"0123456789")
    pieces = store.pieces("ids/a")
    assert (len(pieces), bytes(pieces[2:5])) == (10, b"234")


def test_a_large_file_and_an_empty_one_come_back_as_they_were(place: Place) -> None:
    data = os.urandom(9 << 20)
    store = place.open()
    store.create("ids/large", data)
    store.create("ids/empty", b"")
    assert store.map("ids/large") == data
    assert store.read("ids/empty") == b""


def test_a_file_that_is_replaced_has_its_new_bytes(place: Place) -> None:
    store = place.open()
    store.create("spool.json", b"old")
    store.overwrite("spool.json", b"new")
    assert place.open("b").read("spool.json") == b"new"
    store.overwrite("ids/absent", b"there now")
    assert place.open("b").read("ids/absent") == b"there now"
    assert place.open("b").temporary_files() == []


# Folders of fetchers.


def test_nothing_is_published_after_a_name_was_closed(bucket: Place) -> None:
    store, fetcher = bucket.object_store(), bucket.object_store("f")
    fetcher.make_folder("inbox/f")
    late = fetcher.writer("inbox/f/0.arrow")
    late.write(b"late")
    assert store.close_folder("inbox/f", "inbox/f/0.arrow")
    with pytest.raises(FileNotFoundError):
        late.publish()
    for reader in (store, bucket.object_store("r")):
        assert not reader.exists("inbox/f/0.arrow")
        assert reader.list("inbox/f") == []
        with pytest.raises(FileNotFoundError):
            reader.pieces("inbox/f/0.arrow")


def test_a_folder_with_a_file_at_the_next_name_is_not_closed(bucket: Place) -> None:
    store = bucket.object_store()
    store.make_folder("inbox/f")
    store.create("inbox/f/0.arrow", b"rows")
    assert not store.close_folder("inbox/f", "inbox/f/0.arrow")
    assert store.close_folder("inbox/f", "inbox/f/1.arrow")
    assert store.list("inbox/f") == ["0.arrow"]


def test_a_folder_is_held_until_it_is_released_and_removed_when_it_is_empty(place: Place) -> None:
    store = place.open()
    store.make_folder("inbox/f")
    hold = store.hold_folder("inbox/f")
    assert hold is not None
    assert hold.is_present()
    assert place.open("other").is_locked("inbox/f")
    hold.release()
    assert not place.open("other").is_locked("inbox/f")
    assert store.list("inbox") == ["f"]
    store.remove_unlocked_folder("inbox/f")
    assert store.list("inbox") == []


# Versions and locks.


def test_only_the_newest_version_of_a_file_is_swapped(place: Place) -> None:
    store = place.open()
    assert store.read_version("lease") is None
    assert store.create("lease", b"1")
    first = store.read_version("lease")
    assert first is not None
    assert first[0] == b"1"
    second = place.open("b").swap("lease", b"2", first[1])
    assert second is not None
    assert store.swap("lease", b"3", first[1]) is None
    assert store.read("lease") == b"2"
    assert store.swap("lease", b"3", second) is not None
    assert store.read("lease") == b"3"


def test_a_file_that_was_deleted_is_not_swapped(place: Place) -> None:
    store = place.open()
    store.create("lease", b"1")
    present = store.read_version("lease")
    assert present is not None
    store.delete("lease")
    assert store.swap("lease", b"2", present[1]) is None
    assert not store.exists("lease")


def test_of_many_that_swap_one_version_one_does(place: Place) -> None:
    store = place.open()
    store.create("lease", b"free")
    version = store.read_version("lease")
    assert version is not None

    def swap_it(number: int) -> bool:
        return place.open(f"{number}").swap("lease", f"{number}".encode(), version[1]) is not None

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(swap_it, range(8)))
    assert done.count(True) == 1
    assert store.read("lease") == f"{done.index(True)}".encode()


def test_a_store_has_locks_or_says_that_it_has_none(place: Place) -> None:
    store, other = place.open("a"), place.open("b")
    assert store.has_locks == (place.name == FOLDER)
    if not store.has_locks:
        with pytest.raises(io.UnsupportedOperation):
            store.open_lock("lock", make=True)
        return
    with pytest.raises(FileNotFoundError):
        store.open_lock("lock", make=False)
    one, two = store.open_lock("lock", make=True), other.open_lock("lock", make=True)
    one.write(b"longer than the next")
    one.write(b"holder")
    assert (one.try_lock(), two.try_lock(), two.read(3), two.read(99)) == (True, False, b"hol", b"holder")
    one.close()
    assert two.try_lock()
    two.close()


def test_what_a_store_says_of_its_files_is_so(place: Place) -> None:
    store = place.open()
    store.make_folder("inbox/f")
    store.create("ids/a", b"123")
    store.create("foreign/b", b"1")
    own = {name: size for name, size in store.sizes().items() if not store.is_own_name(name)}
    assert own == {"ids/a": 3, "foreign/b": 1}
    assert store.name_of(f"{place.location}/ids/a") == store.name_of("ids/a") == "ids/a"
    assert store.permissions("ids/a") == (0o600 if place.name == FOLDER else None)
    assert store.folders("inbox") == ["f"]
    space = store.space()
    assert (space is not None) == (place.name == FOLDER)
    assert space is None or 0 <= space.free <= space.size
    store.allocate(f"tmp/{'0' * 16}-reserve", 1 << 12)
    assert bool(store.temporary_files()) == (place.name == FOLDER)


def test_a_lease_is_renewed_and_refused_to_another_query(bucket: Place) -> None:
    lease = SpoolLease(bucket.object_store(), os.getpid(), renew=0.2)
    lease.acquire()
    try:
        store = bucket.object_store("reader")
        first = store.read("lease")
        wait_for(lambda: store.read("lease") != first)
        lease.check()
        with pytest.raises(ConnectorError, match="SPOOL_IN_USE"):
            SpoolLease(bucket.object_store("other"), os.getpid()).acquire()
    finally:
        lease.release()
    after = SpoolLease(bucket.object_store("other"), os.getpid())
    after.acquire()
    after.release()


# Errors, and ways to reach it.


def test_a_bucket_that_is_not_there_is_named(theirs: Place) -> None:
    absent = theirs.location.replace("//spools/", "//absent/")
    with pytest.raises(ConnectorError, match="SPOOL_BUCKET_NOT_FOUND"):
        Place(theirs.name, absent, theirs.access).open().make_root()


def test_a_key_that_is_refused_is_an_error_that_does_not_show_it(guarded: Place) -> None:
    wrong = replace(guarded.access, secret=Secret("d3Jvbmcta2V5LW9mLXRlc3Rz"))
    with pytest.raises(ConnectorError, match=r"SPOOL_(ACCESS_DENIED|CREDENTIALS_REFUSED)") as caught:
        Place(guarded.name, guarded.location, wrong).open().make_root()
    assert "d3Jvbmcta2V5LW9mLXRlc3Rz" not in str(caught.value)


def test_the_environment_is_enough_to_reach_it(theirs: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert theirs.server is not None
    theirs.open().create("ids/a", b"1")
    for variable, value in theirs.server.environment().items():
        monkeypatch.setenv(variable, value)
    assert open_store(theirs.location, "cd").read("ids/a") == b"1"


def test_both_urls_of_an_azure_container_are_one_place(azure: Place) -> None:
    azure.open().create("ids/a", b"1")
    account, folder = azure.access.key_id, azure.location.removeprefix("az://spools/")
    other = f"abfss://spools@{account}.dfs.core.windows.net/{folder}"
    assert open_store(other, "cd", replace(azure.access, key_id=None)).read("ids/a") == b"1"


# The servers, and the tests.


def test_a_server_that_is_killed_leaves_no_process(theirs: Place) -> None:
    with type(theirs.server)() as server:  # type: ignore[misc]
        processes = [server.pid, *descendants(server.pid)]
        os.kill(server.pid, signal.SIGKILL)
        end = time.monotonic() + 30
        while (left := [pid for pid in processes if is_running(pid)]) and time.monotonic() < end:
            time.sleep(0.05)
    assert left == []


def test_the_program_says_what_to_export_and_ends_on_a_signal(theirs: Place) -> None:
    command = [sys.executable, "-m", "tests.servers.object_stores", theirs.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip().removeprefix("listening on ")
        wanted = STORES[theirs.name].access_environment(endpoint)
        lines: list[str] = []
        while sum(line.startswith("export ") for line in lines) < len(wanted):
            lines.append(process.stdout.readline().strip() or pytest.fail(f"it ended after {lines}"))
        process.terminate()
    exported = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    assert exported == wanted
    assert f"# spoolLocation: {STORES[theirs.name].location('FOLDER')}" in lines
    assert process.returncode == 0


@pytest.mark.parametrize(
    "check", [test_of_many_writers_at_once_one_gets_the_name, test_of_many_that_swap_one_version_one_does]
)
def test_a_store_that_ignores_conditions_is_seen(check: Callable[[Place], None]) -> None:
    with ObjectStoreServer() as server:
        server.conditional = False
        with pytest.raises(AssertionError):
            check(_of_options(OWN, object_store_options(server)))


# A query.


@pytest.mark.guarantee
def test_a_query_that_is_killed_goes_on_where_it_was(theirs: Place, tmp_path: Path) -> None:
    assert theirs.server is not None
    workers = TaskWorkers(1)
    options = theirs.server.options(f"queries/{uuid4().hex}")
    try:
        with PubSubServer() as server:
            rig = PubSubRig(server, server.endpoint, tmp_path, workers, options)
            with rig.query({"maxRecordsPerTrigger": "40"}) as query:
                for _ in range(3):
                    rig.publish(100)
                    query.run_until(lambda _: rig.sink.rows() > len(rig.published) - 60, 60)
                    query.restart()
                rig.run_until_all(query)
                query.idle(2)
            rig.assert_each_once()
            assert rig.stats().rows == len(rig.published)
    finally:
        workers.close()
