"""Leases of a spool on an object store: who has it, who may take it, and when it is lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.core.errors import SpoolFencedError, SpoolInUseError
from connectors.core.processes.failpoints import set_failpoints
from connectors.spool.ledger.records import decode, encode
from connectors.spool.ledger.writer_lock import LEASE_NAME, spool_holder
from connectors.spool.segments.segment import checksum
from connectors.spool.store.base import Holder
from connectors.testing.object_store import ObjectStoreServer
from tests.support.alterations import alterations, json_text
from tests.support.spool_writing import HandSpool, ObjectSpool
from tests.support.waiting import wait_for

LEASE = "spools/of/tests/lease"


@pytest.fixture
def server() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@pytest.fixture
def spool(server: ObjectStoreServer) -> ObjectSpool:
    return ObjectSpool(server=server)


# The lease.


def test_a_second_query_is_refused_while_the_first_one_lives(spool: ObjectSpool) -> None:
    first = spool.lease()
    first.acquire()
    before = spool.files()
    with pytest.raises(Exception, match=r"SPOOL_IN_USE.*reader process \d+.*takeOver"):
        spool.lease().acquire()
    assert spool.files() == before
    first.check()
    first.release()


def test_a_lease_that_was_given_back_is_taken_at_once(spool: ObjectSpool) -> None:
    for _ in range(3):
        lease = spool.lease()
        lease.acquire()
        lease.release()


def elsewhere(server: ObjectStoreServer) -> None:
    """Make the lease look like that of another machine."""
    path = "spools/of/tests/lease"
    value = decode(server.objects[path], path)
    value["holder"]["machine"] = "another boot"
    server.objects[path] = encode(value)


def test_the_lease_of_a_machine_that_is_gone_is_taken_when_it_expires(
    spool: ObjectSpool, server: ObjectStoreServer
) -> None:
    spool.lease(renew=3600).acquire()
    elsewhere(server)
    lease = spool.lease(expire=0.3, poll=0.02)
    lease.acquire()
    lease.release()


def altered_leases(lease: bytes) -> Iterator[bytes]:
    """The lease with each value altered under a right checksum, and bytes that are none."""
    for _, value in alterations(decode(lease, "lease")):
        text = json_text(value).encode()
        yield text + b"\n" + checksum(text).encode() + b"\n"
    yield from (b"", b"\xff", b"[" * 4000, b"null\n")


def test_a_lease_that_was_altered_is_taken_when_it_expires(spool: ObjectSpool, server: ObjectStoreServer) -> None:
    spool.lease(renew=3600).acquire()
    key = "spools/of/tests/lease"
    for data in random.sample([*altered_leases(server.objects[key])], 40):
        server.objects[key] = data
        assert isinstance(spool_holder(spool.store), Holder | None)
        lease = spool.lease(renew=3600, expire=0.1, poll=0.02)
        with contextlib.suppress(SpoolInUseError):  # it still names this process, which lives
            lease.acquire()
            lease.check()
            lease.release()


def test_a_lock_file_that_was_altered_keeps_nobody_away(tmp_path: Path) -> None:
    spool = HandSpool(tmp_path / "spool")
    lock = spool.lock(os.getpid())
    lock.acquire()
    lock.release()
    path = tmp_path / "spool" / "lock"
    values = [json_text(value).encode() for _, value in alterations(json.loads(path.read_bytes()))]
    for data in (*values, b"", b"\xff", b"[" * 4000, b"null", b"\0" * 5000):
        path.write_bytes(data)
        assert isinstance(spool_holder(spool.store), Holder | None)
        again = spool.lock(os.getpid())
        again.acquire()
        again.release()


def test_the_lease_of_a_machine_that_renews_it_is_refused(spool: ObjectSpool, server: ObjectStoreServer) -> None:
    spool.lease(renew=3600).acquire()
    lease = decode(server.objects[LEASE], LEASE)
    ended = threading.Event()

    def renew() -> None:
        for count in itertools.count():
            holder = lease["holder"] | {"machine": "another boot"}
            server.objects[LEASE] = encode(lease | {"holder": holder, "count": count})
            if ended.wait(0.1):
                return

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(Exception, match="SPOOL_IN_USE"):
            spool.lease(expire=60, poll=0.02).acquire()
    finally:
        ended.set()
        renewing.join()


def test_taking_over_stops_the_query_that_had_the_spool(spool: ObjectSpool) -> None:
    first = spool.lease(renew=0.02)
    first.acquire()
    second = spool.lease(take_over=True)
    second.acquire()
    with pytest.raises(SpoolFencedError, match="SPOOL_FENCED"):
        wait_for(first.check)
    first.release()
    second.check()
    with pytest.raises(Exception, match="SPOOL_IN_USE"):
        spool.lease().acquire()
    second.release()


def test_taking_over_is_not_stopped_by_a_renewal_meanwhile(spool: ObjectSpool, server: ObjectStoreServer) -> None:
    first = spool.lease()
    first.acquire()
    lease = decode(server.objects[LEASE], LEASE)

    def renew() -> None:
        for count in range(50):
            data, version = spool.store.read_version(LEASE_NAME) or (b"", None)
            if version is not None and decode(data, LEASE)["nonce"] == lease["nonce"]:
                spool.store.swap(LEASE_NAME, encode(lease | {"count": count}), version)
            time.sleep(0.002)

    renewing = threading.Thread(target=renew)
    renewing.start()
    while renewing.is_alive():
        server.objects[LEASE] = encode(lease)  # the first has it again
        second = spool.lease(take_over=True)
        second.acquire()
        second.release()
    renewing.join()
    first.release()


def test_a_lease_outlives_lost_answers_and_its_own_deletion(spool: ObjectSpool, server: ObjectStoreServer) -> None:
    lease = spool.lease(renew=0.02)
    server.lose_answers("PUT", after=2)
    lease.acquire()

    def count() -> int:
        lease.check()
        return int(decode(server.objects[LEASE], LEASE)["count"])

    def wait_for_renewals() -> None:
        reached = count() + 2
        wait_for(lambda: count() >= reached)

    for _ in range(3):
        server.lose_answers("PUT")
        wait_for_renewals()
    del server.objects[LEASE]
    wait_for(lambda: LEASE in server.objects)
    wait_for_renewals()
    lease.release()


@pytest.mark.parametrize("known", [True, False], ids=["version", "no version"])
def test_a_lease_that_was_deleted_and_put_by_another_query_first_is_lost(
    spool: ObjectSpool, server: ObjectStoreServer, tmp_path: Path, known: bool
) -> None:
    lease, before_put, after_put = spool.lease(renew=0.02, poll=0.01), tmp_path / "before", tmp_path / "after"
    lease.acquire()
    other = encode(decode(server.objects[LEASE], LEASE) | {"nonce": "another"})

    def overtake() -> None:
        """Delete the lease, and put the other one just before this query puts its own again."""
        del server.objects[LEASE]
        after_put.unlink(missing_ok=True)
        wait_for(before_put.exists)
        server.objects[LEASE] = other
        before_put.unlink()
        wait_for(after_put.exists)

    set_failpoints(f"lease.before_put=pause:{before_put},lease.after_put=pause:{after_put}")
    try:
        for _ in range(1 if known else 2):
            overtake()
    finally:
        set_failpoints("")
        before_put.unlink(missing_ok=True)
        after_put.unlink(missing_ok=True)
    with pytest.raises(SpoolFencedError, match="SPOOL_FENCED"):
        wait_for(lease.check)
    lease.release()
    assert server.objects[LEASE] == other


def test_a_lease_is_renewed_again_when_the_store_has_refused_that_for_a_moment(
    spool: ObjectSpool, server: ObjectStoreServer
) -> None:
    lease = spool.lease(renew=0.05)
    lease.acquire()
    server.refuse("PUT", 403, "AccessDenied", count=2)
    for _ in range(5):
        before = server.objects["spools/of/tests/lease"]
        wait_for(lambda before=before: server.objects["spools/of/tests/lease"] != before)
    lease.check()
    server.refuse("PUT", 403, "AccessDenied", count=100)
    lease.release()
