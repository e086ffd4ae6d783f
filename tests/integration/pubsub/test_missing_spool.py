"""The disk of a spool goes away under a running query and leaves an empty mount point: nothing is acked into that."""

from __future__ import annotations

import pytest

from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import ReaderFailedError


def test_a_query_whose_disk_goes_away_stops_and_goes_on_when_it_is_back(rig: PubSubRig) -> None:
    first = rig.publish(10)
    with rig.query() as query:
        rig.run_until_all(query)
        rig.wait_for(lambda: rig.acked() == set(first))
        rig.spool.rename(rig.folder / "disk")
        rig.spool.mkdir()
        rig.publish(10)
        with pytest.raises(ReaderFailedError, match=r"\[SPOOL_MISSING\]"):
            rig.run_until_all(query)
    assert list(rig.spool.iterdir()) == []
    assert rig.acked() == set(first)
    rig.spool.rmdir()
    (rig.folder / "disk").rename(rig.spool)
    rig.server.jump(60)
    with rig.query() as query:
        rig.run_until_all(query)
    rig.assert_each_once()
