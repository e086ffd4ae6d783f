"""What a source of one's own on the spool gets: options, readers that travel, fetchers by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType

from connectors.core.errors import OptionError
from connectors.core.formats import spool_connector
from connectors.pubsub.datasource import PubSubStreamReader
from connectors.spool import SpoolBatchReader, SpoolStreamReader, stats
from tests.support.spark_protocol.driver import FolderSink, StreamingQuery
from tests.support.sqs_rig import EXAMPLES

GIVEN = {"queueUrl": "http://127.0.0.1:1/q", "spoolLocation": "/data/spool"}


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def refused(code: str, changes: dict[str, str], *, streaming: bool = True) -> str:
    with pytest.raises(OptionError) as raised:
        spool_connector("sqs_source:SqsConnector").read_options(GIVEN | changes, streaming=streaming)
    assert raised.value.code == code
    return str(raised.value)


def test_its_options_are_checked_as_those_of_every_source() -> None:
    assert "Did you mean queueUrl?" in refused("OPTION_UNKNOWN", {"queueUlr": "x"})
    assert "endingPosition is for batch reads" in refused("OPTION_ILLEGAL", {"endingPosition": "latest"})
    assert "a stream begins at a word" in refused("OPTION_ILLEGAL", {"startingPosition": "7"})
    assert "spoolEndpoint" in refused("OPTION_CONFLICT", {"spoolEndpoint": "https://host"})
    found = spool_connector("sqs_source:SqsConnector").read_options(GIVEN, streaming=False)
    assert (found.starting_position, str(found.spool_folder)) == ("earliest", "/data/spool")


def test_its_columns_are_those_of_its_rows_and_the_position() -> None:
    connector = spool_connector("sqs_source:SqsConnector")
    schema = connector.schema(connector.read_options(GIVEN, streaming=None))
    assert [(each.name, type(each.dataType)) for each in schema][:1] == [("messageId", StringType)]
    assert (schema[-1].name, type(schema[-1].dataType)) == ("offset", LongType)


@pytest.mark.parametrize("kind", [SpoolStreamReader, SpoolBatchReader])
def test_a_reader_goes_to_tasks_with_its_connector(kind: type[SpoolStreamReader | SpoolBatchReader]) -> None:
    reader = pickle.loads(pickle.dumps(kind(GIVEN, spool_connector("sqs_source:SqsConnector"))))
    assert reader.connector.format == "sqs"
    assert pickle.loads(pickle.dumps(PubSubStreamReader({}))).connector.format == "pubsub"


def test_a_connector_that_is_not_there_is_named() -> None:
    for name in ("no_such_module:Source", "sqs_source:NoSuchSource"):
        with pytest.raises(OptionError, match=rf"FORMAT_UNKNOWN.*{name}"):
            spool_connector(name)
    with pytest.raises(OptionError, match="or MODULE:CLASS"):
        spool_connector("kinesis")


def test_the_public_names_load_no_spark_before_a_reader_is_asked_for() -> None:
    code = (
        "import sys; from connectors.spool import Block, Feed, FetchTarget, RowSchema, SpoolConnector, SpoolOptions\n"
        "assert not {'pyspark', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_the_examples_are_as_short_as_the_page_says() -> None:
    lines = {
        name: (EXAMPLES / f"{name}_source.py").read_text(encoding="utf-8").splitlines() for name in ("queue", "sqs")
    }
    assert len([line for line in lines["queue"] if line.strip()]) <= 40
    assert len(lines["sqs"]) <= 150


def test_the_page_shows_the_smallest_source_as_it_is() -> None:
    page = (EXAMPLES.parent / "docs/how-to/write-a-source.md").read_text(encoding="utf-8")
    assert (EXAMPLES / "queue_source.py").read_text(encoding="utf-8") in page


def test_the_smallest_source_gives_each_message_once_though_each_process_delivers_all_again(tmp_path: Path) -> None:
    options = {"spoolLocation": str(tmp_path / "spool"), "maxRecordsPerTrigger": "300"}
    sink = FolderSink(tmp_path / "sink")
    with StreamingQuery(
        "queue_source:QueueDataSource", options, checkpoint=tmp_path / "checkpoint", sink=sink
    ) as query:
        query.run_until(lambda _: sink.rows() >= 300, 60.0)
        query.kill()
        query.restart()
        query.run_until(lambda _: sink.rows() >= 1000, 60.0)
        query.process_available()
    found = sink.lost_and_doubled([f"id-{number}" for number in range(1000)], "id")
    assert (found.lost, found.doubled) == ([], [])
    assert stats(options["spoolLocation"]).duplicates > 0
