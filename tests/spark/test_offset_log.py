"""The offset log of version 2, which Spark writes for named sources: every source reads on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader

from connectors import register
from tests.contract.harness import SourceHarness
from tests.contract.kafka_harness import KafkaHarness
from tests.contract.kinesis_harness import KinesisEfoHarness, KinesisHarness
from tests.contract.pubsub_harness import PubSubHarness

FORMATS = {"kafka": "kafka_py", "kinesis": "kinesis", "kinesis-efo": "kinesis", "pubsub": "pubsub"}
LIMIT = 3
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
VERSION = "spark.sql.streaming.offsetLog.formatVersion"

pytestmark = pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="Spark before 4.2 has one version")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(params=[KafkaHarness, KinesisHarness, KinesisEfoHarness, PubSubHarness], ids=lambda kind: kind.name)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceHarness]:
    folder = tmp_path / "source"
    folder.mkdir()
    made: SourceHarness = request.param(folder)
    yield made
    made.close()


def run(rows: DataFrame, checkpoint: Path, key: str) -> dict[int, list[Any]]:
    """Run a query for what there is; return the keys of each batch, which is read twice with the same result."""
    found: dict[int, list[Any]] = {}

    def twice(batch: DataFrame, number: int) -> None:
        first, again = (sorted(row[key] for row in batch.select(key).collect()) for _ in range(2))
        assert first == again
        found[number] = first

    writer = rows.writeStream.foreachBatch(twice).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    return found


@pytest.mark.parametrize("name", ["", "orders_1"], ids=["version", "name"])
def test_a_query_with_the_newer_log_keeps_its_limit_repeats_its_batch_and_goes_on(
    spark: SparkSession, harness: SourceHarness, name: str, tmp_path: Path
) -> None:
    spark.conf.set(EVOLUTION if name else VERSION, "true" if name else "2")
    try:
        keys, checkpoint = harness.publish(7), tmp_path / "checkpoint"
        reader = spark.readStream.format(FORMATS[harness.name]).options(**harness.limited_options(LIMIT))
        rows = (reader.name(name) if name else reader).load()
        before = run(rows, checkpoint, harness.key)
        newest = max(before)
        assert (checkpoint / "offsets" / str(newest)).read_text().startswith("v2\n")
        for log in ("", "."):
            (checkpoint / "commits" / f"{log}{newest}{'.crc' if log else ''}").unlink()
        more = harness.publish(4)
        after = run(rows, checkpoint, harness.key)
    finally:
        spark.conf.unset(EVOLUTION if name else VERSION)
    assert after[newest] == before[newest], "the batch without a commit comes again, with the same rows"
    together = before | after
    assert sorted(key for batch in together.values() for key in batch) == sorted([*keys, *more])
    assert max(map(len, together.values())) <= LIMIT
