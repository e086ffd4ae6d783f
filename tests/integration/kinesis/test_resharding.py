"""Splits and merges over several levels, while records come without pause and calls fail now and then.

Numbered as in ``docs/explanation/kinesis.md``; by the protocol driver, on our own server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.testing.kinesis import KinesisServerProcess, start_server_process
from tests.chaos.rigs.kinesis_load import Load, keys_out_of_order
from tests.support.kinesis_rig import PATIENCE, KinesisRig, wait_until

pytestmark = pytest.mark.guarantee

RESHARD_SECONDS = (0.1, 0.3)
PHASE = 4


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServerProcess]:
    made = start_server_process()
    yield made
    made.close()


@pytest.fixture
def kinesis(server: KinesisServerProcess, tmp_path: Path) -> KinesisRig:
    return KinesisRig(server, tmp_path, shards=2)


@pytest.mark.parametrize("start", ["latest", "trim_horizon"])
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_07_08_09_10_12_levels_of_splits_and_merges_under_load(
    kinesis: KinesisRig, start: str, stopped: bool, seed: int
) -> None:
    with kinesis.query(initialPosition=start, maxRecordsPerTrigger="200") as query:
        if start == "latest":
            query.run_batch(PATIENCE)
        with Load(kinesis.server.endpoint, kinesis.stream, seed, reshard_seconds=RESHARD_SECONDS) as load:
            query.run_until(lambda _batches: load.splits + load.merges >= PHASE, PATIENCE)
            if stopped:
                query.stop()
                wait_until(lambda: load.splits + load.merges >= 3 * PHASE)
                query.start()
            query.run_until(lambda _batches: load.splits + load.merges >= 4 * PHASE, PATIENCE)
            published = load.finish()
        query.run_until(lambda _batches: kinesis.sink.rows() >= len(published), PATIENCE)
        query.process_available(PATIENCE)
    rows = kinesis.rows()
    assert sorted(row["data"] for row in rows) == sorted(published)
    assert keys_out_of_order(rows, published) == []
    assert {row["data"]: row["shardId"] for row in rows} == {data: each["shardId"] for data, each in published.items()}
    assert _levels(kinesis) >= 2, "or this test shows nothing"


def _levels(kinesis: KinesisRig) -> int:
    """The longest way from a shard to an ancestor."""
    from connectors.kinesis.client.client import KinesisClient  # noqa: PLC0415 - only here
    from connectors.kinesis.options.source import parse_read_options  # noqa: PLC0415

    shards = KinesisClient(parse_read_options(kinesis.options(), {})).listing(kinesis.stream).shards

    def depth(shard: str) -> int:
        return max((1 + depth(parent) for parent in shards[shard].parents if parent in shards), default=0)

    return max(depth(shard) for shard in shards)
