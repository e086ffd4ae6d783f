"""The Pub/Sub source with its spool on an object store: one writer, a store that misbehaves, and no secret anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import ReaderFailedError, TaskWorkers
from tests.support.spool_writing import SECRET, object_store_options


@pytest.fixture
def objects() -> Iterator[ObjectStoreServer]:
    with ObjectStoreServer() as running:
        yield running


@pytest.fixture
def rig(tmp_path: Path, workers: TaskWorkers, server: PubSubServer, objects: ObjectStoreServer) -> PubSubRig:
    return PubSubRig(server, server.endpoint, tmp_path, workers, object_store_options(objects))


def claims(objects: ObjectStoreServer) -> list[str]:
    return sorted(name for name in objects.objects if "/epochs/" in name)


def test_a_second_query_is_refused_until_it_takes_over_and_then_the_first_one_stops(
    rig: PubSubRig, objects: ObjectStoreServer
) -> None:
    rig.publish(50)
    with rig.query() as query:
        rig.run_until_all(query)
        before = claims(objects)
        with (
            rig.query(checkpoint=rig.folder / "other", sink=None) as second,
            pytest.raises(ReaderFailedError, match=r"SPOOL_IN_USE.*takeOver"),
        ):
            second.run_batch()
        assert claims(objects) == before
        with rig.query({"takeOver": "true"}) as third:
            rig.publish(50)
            rig.run_until_all(third)
            with pytest.raises(ReaderFailedError, match="SPOOL_FENCED"):
                query.run_until(lambda _: False, 30)
            rig.publish(50)
            rig.run_until_all(third)
    rig.assert_each_once()


@pytest.mark.guarantee
def test_a_store_that_loses_answers_and_throttles_loses_and_doubles_nothing(
    rig: PubSubRig, objects: ObjectStoreServer
) -> None:
    seed = random.randrange(1 << 30)
    chooser = random.Random(seed)
    with rig.query({"maxOutstandingBytes": "500", "maxRecordsPerTrigger": "16"}) as query:
        for turn in range(12):
            rig.publish(25)
            objects.heal()
            for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE"):
                objects.lose_answers(kind, after=chooser.randrange(8))
                objects.refuse(kind, 503, "SlowDown", count=chooser.randrange(4))
            if turn == 6:
                query.restart()
            rig.run_until_all(query, 60)
        objects.heal()
        query.idle(3)
    rig.assert_each_once()
    assert rig.stats().rows == len(rig.published), f"seed {seed}"


def test_nothing_that_is_kept_has_the_secret(rig: PubSubRig, objects: ObjectStoreServer) -> None:
    rig.publish(30)
    with rig.query() as query:
        rig.run_until_all(query)
    kept = {str(path): path.read_bytes() for path in rig.folder.rglob("*") if path.is_file()}
    assert any("offsets" in name for name in kept)
    for name, data in {**kept, **objects.objects}.items():
        assert SECRET.encode() not in data, name
