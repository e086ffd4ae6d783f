"""The Pub/Sub source with its spool on an object store: one writer, a store that misbehaves, and no secret anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from connectors.testing.spark_protocol.driver import ReaderFailedError, TaskWorkers
from tests.support.pubsub_rig import PubSubRig
from tests.support.spool_writing import SECRET


@pytest.fixture
def rig(tmp_path: Path, workers: TaskWorkers) -> Iterator[PubSubRig]:
    with PubSubServer() as server, ObjectStoreServer() as objects:
        yield PubSubRig(server, server.endpoint, tmp_path, workers, objects)


def claims(rig: PubSubRig) -> list[str]:
    assert rig.objects is not None
    return sorted(name for name in rig.objects.objects if "/epochs/" in name)


def test_a_second_query_is_refused_until_it_takes_over_and_then_the_first_one_stops(rig: PubSubRig) -> None:
    rig.publish(50)
    with rig.query() as query:
        rig.run_until_all(query)
        before = claims(rig)
        with (
            rig.query(checkpoint=rig.folder / "other", sink=None) as second,
            pytest.raises(ReaderFailedError, match=r"SPOOL_IN_USE.*takeOver"),
        ):
            second.run_batch()
        assert claims(rig) == before
        with rig.query({"takeOver": "true"}) as third:
            rig.publish(50)
            rig.run_until_all(third)
            with pytest.raises(ReaderFailedError, match="SPOOL_FENCED"):
                query.run_until(lambda _: False, 30)
            rig.publish(50)
            rig.run_until_all(third)
    rig.assert_each_once()


def test_a_store_that_loses_answers_and_throttles_loses_and_doubles_nothing(rig: PubSubRig) -> None:
    assert rig.objects is not None
    seed = random.randrange(1 << 30)
    chooser = random.Random(seed)
    with rig.query({"maxOutstandingMessages": "20", "maxRecordsPerTrigger": "16"}) as query:
        for turn in range(12):
            rig.publish(25)
            rig.objects.heal()
            for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE"):
                rig.objects.lose_answers(kind, after=chooser.randrange(8))
                rig.objects.refuse(kind, 503, "SlowDown", count=chooser.randrange(4))
            if turn == 6:
                query.restart()
            rig.run_until_all(query, 60)
        rig.objects.heal()
        query.idle(3)
    rig.assert_each_once()
    assert rig.stats().rows == len(rig.published), f"seed {seed}"


def test_nothing_that_is_kept_has_the_secret(rig: PubSubRig) -> None:
    rig.publish(30)
    with rig.query() as query:
        rig.run_until_all(query)
    assert rig.objects is not None
    kept = {str(path): path.read_bytes() for path in rig.folder.rglob("*") if path.is_file()}
    assert any("offsets" in name for name in kept)
    for name, data in {**kept, **rig.objects.objects}.items():
        assert SECRET.encode() not in data, name
