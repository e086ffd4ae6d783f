"""A store on an object store keeps the rules of the local one, also when answers are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from connectors.spool.store import open_store
from connectors.spool.store.base import Holder
from connectors.spool.store.object_store import ObjectStore
from connectors.testing.object_store import ObjectStoreServer
from tests.support.object_stores import ROOT, refused, store_of
from tests.support.spool_writing import access_to

ONCE = {"max_retries": 0}


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@pytest.fixture
def store(server: ObjectStoreServer) -> ObjectStore:
    return store_of(server)


# Names.


def test_a_name_that_is_taken_keeps_its_object(store: ObjectStore) -> None:
    assert store.create("ids/a", b"first")
    assert not store.create("ids/a", b"second")
    assert store.read("ids/a") == b"first"


def test_what_is_absent_is_a_file_not_found(store: ObjectStore) -> None:
    assert not store.exists("ids/a")
    for read in (store.read, store.map, store.pieces):
        with pytest.raises(FileNotFoundError):
            read("ids/a")
    store.delete("ids/a")


def test_a_list_has_all_pages_and_nothing_of_other_folders(server: ObjectStoreServer, store: ObjectStore) -> None:
    server.page = 7
    for number in range(30):
        store.create(f"ledger/1/{number}", b"x")
    store.create("ledger/11/0", b"x")
    store_of(server).create("ledger/1/deeper/name", b"x")
    assert store.list("ledger/1") == sorted([*(str(number) for number in range(30)), "deeper"])
    assert store.list("ledger/2") == []
    assert server.counts["LIST"] == 6


def test_two_spools_in_one_bucket_do_not_see_each_other(server: ObjectStoreServer, store: ObjectStore) -> None:
    other = open_store("s3a://spools/a/", "ab", access_to(server))
    store.create("ids/x", b"1")
    assert other.list("ids") == []
    assert other.create("ids/x", b"2")
    assert store.read("ids/x") == b"1"


# Answers that are lost, and stores that are busy.


def test_a_put_whose_answer_was_lost_is_recognised_as_ones_own(server: ObjectStoreServer, store: ObjectStore) -> None:
    server.lose_answers("PUT")
    assert store.create("ledger/1/0", b"mine")
    assert store.read("ledger/1/0") == b"mine"
    assert not store.create("ledger/1/0", b"another's")


def test_a_lost_answer_to_a_put_that_was_too_late_is_not_taken_for_ones_own(
    server: ObjectStoreServer, store: ObjectStore
) -> None:
    store.create("ledger/1/0", b"another's")
    server.lose_answers("PUT")
    assert not store.create("ledger/1/0", b"mine")


def test_a_conflict_of_two_puts_is_tried_again(server: ObjectStoreServer, store: ObjectStore) -> None:
    server.refuse("PUT", 409, "ConditionalRequestConflict", count=3)
    assert store.create("ledger/1/0", b"mine")


def test_a_store_that_is_busy_is_asked_again(server: ObjectStoreServer, store: ObjectStore) -> None:
    for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE"):
        server.refuse(kind, 503, "SlowDown", count=2)
    assert store.create("ids/a", b"1")
    assert store.exists("ids/a")
    assert store.list("ids") == ["a"]
    assert store.read("ids/a") == b"1"
    store.delete("ids/a")
    assert not store.exists("ids/a")


def test_a_put_that_is_never_answered_is_an_error_and_is_recognised_later(
    server: ObjectStoreServer,
) -> None:
    store = ObjectStore(ROOT, "ab", access_to(server), {"max_retries": 1})
    server.lose_answers("PUT", count=50)
    with pytest.raises(TimeoutError):
        store.create("ledger/1/0", b"mine")
    server.heal()
    assert store.create("ledger/1/0", b"mine")


# Pieces.


def test_pieces_of_an_object_are_those_of_the_whole(store: ObjectStore) -> None:
    data = os.urandom(700_000)
    store.create("inbox/f/0.arrow", data)
    pieces = store.pieces("inbox/f/0.arrow")
    assert len(pieces) == len(data)
    for piece in (slice(0, 10), slice(1000, 500_000), slice(699_000, None), slice(450_000, 460_000), slice(5, 5)):
        assert pieces[piece] == data[piece]


def test_the_end_of_an_object_comes_with_one_request(server: ObjectStoreServer, store: ObjectStore) -> None:
    store.create("inbox/f/0.arrow", b"x" * 1000)
    before = server.counts.copy()
    pieces = store.pieces("inbox/f/0.arrow")
    assert (pieces[:10], pieces[990:]) == (b"x" * 10, b"x" * 10)
    assert server.counts - before == {"GET": 1}


def test_a_large_object_is_mapped_from_a_file(store: ObjectStore) -> None:
    data = os.urandom(9 << 20)
    store.create("ids/1-0", data)
    assert store.map("ids/1-0") == data


def test_an_empty_object_is_empty(store: ObjectStore) -> None:
    store.create("ids/a", b"")
    assert store.read("ids/a") == b""


# Folders of fetchers.


def test_nothing_is_published_after_a_name_was_closed(server: ObjectStoreServer, store: ObjectStore) -> None:
    fetcher = store_of(server, "f")
    fetcher.make_folder("inbox/f")
    late = fetcher.writer("inbox/f/0.arrow")
    late.write(b"late")
    assert store.close_folder("inbox/f", "inbox/f/0.arrow")
    with pytest.raises(FileNotFoundError):
        late.publish()
    for reader in (store, store_of(server)):
        assert not reader.exists("inbox/f/0.arrow")
        assert reader.list("inbox/f") == []
        with pytest.raises(FileNotFoundError):
            reader.pieces("inbox/f/0.arrow")


def test_a_folder_with_a_file_at_the_next_name_is_not_closed(store: ObjectStore) -> None:
    store.make_folder("inbox/f")
    store.create("inbox/f/0.arrow", b"rows")
    assert not store.close_folder("inbox/f", "inbox/f/0.arrow")
    assert store.close_folder("inbox/f", "inbox/f/1.arrow")
    assert store.list("inbox/f") == ["0.arrow"]


def test_closing_survives_a_lost_answer_and_a_second_call(server: ObjectStoreServer, store: ObjectStore) -> None:
    store.make_folder("inbox/f")
    server.lose_answers("PUT")
    assert store.close_folder("inbox/f", "inbox/f/0.arrow")
    assert store_of(server).close_folder("inbox/f", "inbox/f/0.arrow")


def test_a_folder_is_in_the_inbox_until_it_is_removed_and_only_an_empty_one_is(
    server: ObjectStoreServer, store: ObjectStore
) -> None:
    store.make_folder("inbox/f")
    store.create("inbox/f/0.arrow", b"rows")
    assert store.list("inbox") == ["f"]
    store.remove_unlocked_folder("inbox/f")
    assert store.list("inbox") == ["f"]
    store.delete("inbox/f/0.arrow")
    store.close_folder("inbox/f", "inbox/f/1.arrow")
    store.remove_unlocked_folder("inbox/f")
    assert store.list("inbox") == []
    assert not store_of(server).exists("inbox/f/1.arrow")


def test_a_folder_is_held_as_long_as_its_process_lives(server: ObjectStoreServer, store: ObjectStore) -> None:
    code = (
        "import sys, json\nfrom dataclasses import asdict\nfrom connectors.spool.store.base import Holder\n"
        "print(json.dumps(asdict(Holder.this_process())), flush=True)\nsys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    server.objects["spools/a/b/folders/inbox/f"] = child.stdout.readline().strip()
    assert store.is_locked("inbox/f")
    assert not store.close_folder("inbox/f", "inbox/f/0.arrow")
    store.remove_unlocked_folder("inbox/f")
    assert store.list("inbox") == ["f"]
    child.stdin.close()
    child.wait()
    child.stdout.close()
    assert not store.is_locked("inbox/f")
    assert store.close_folder("inbox/f", "inbox/f/0.arrow")


def test_a_holder_of_another_machine_is_not_taken_for_a_process_of_this_one() -> None:
    here = Holder.this_process(os.getppid())
    assert here.lives
    assert here.jvm_lives
    elsewhere = replace(here, machine="another boot")
    assert not elsewhere.lives
    assert not elsewhere.jvm_lives


# What a store must be.


def test_a_store_that_can_be_used_is_left_as_it_was(server: ObjectStoreServer, store: ObjectStore) -> None:
    store.make_root()
    assert server.objects == {}


def test_a_store_that_ignores_the_condition_of_a_put_is_refused(server: ObjectStoreServer, store: ObjectStore) -> None:
    server.conditional = False
    assert refused(store).code == "SPOOL_STORE_NOT_CONDITIONAL"


def test_a_bucket_that_is_not_there_is_named() -> None:
    with ObjectStoreServer(buckets=["others"]) as server:
        error = refused(store_of(server))
    assert error.code == "SPOOL_BUCKET_NOT_FOUND"
    assert "spools" in str(error)


def test_a_key_that_is_refused_says_so_and_is_not_shown() -> None:
    with ObjectStoreServer(access_key="another") as server:
        assert refused(store_of(server)).code == "SPOOL_ACCESS_DENIED"


def test_a_store_that_does_not_answer_is_named() -> None:
    with ObjectStoreServer() as server:
        access = access_to(server)
    error = refused(ObjectStore(ROOT, "ab", access, ONCE))
    assert error.code == "SPOOL_STORE_NO_ANSWER"
    assert error.transient
