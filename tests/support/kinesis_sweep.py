"""Crashes of a driver at each step of a batch, with splits and merges in between."""

from __future__ import annotations

import pytest

from tests.support.kinesis_rig import PATIENCE, KinesisRig
from tests.support.spark_protocol.driver import DriverCrashedError
from tests.support.spark_protocol.stream import Step


def crash_twice(kinesis: KinesisRig, step: Step, **options: str) -> list[bytes]:
    """Crash a query twice in a row at a step, across a split and a merge, and read on; the data of all records.

    Raises:
        AssertionError: a record was lost or doubled, or the records of a key do not stand in their order.
    """
    stream, server = kinesis.stream, kinesis.server
    values = kinesis.put(30)
    with kinesis.query(maxRecordsPerTrigger="25", **options) as query:
        for reshard in (False, True, True):
            if reshard:
                server.split(stream, server.shards(stream, only_open=True)[0])
                values += kinesis.put(20)
                server.merge(stream, *server.shards(stream, only_open=True)[-2:])
                values += kinesis.put(20)
            for _ in range(2):
                values += kinesis.put(10)
                query.crash_at(step)
                with pytest.raises(DriverCrashedError):
                    query.run_until(lambda _batches: False, PATIENCE)
                query.restart()
        kinesis.drain(query, values)
    return values
