"""The pages on moving say what the code does with the options and settings of the other connectors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connectors.core.errors import OptionError
from connectors.core.options.declaration import declared_options
from connectors.kafka.options.client import ClientSettings, warn_once
from connectors.kafka.options.sink import KafkaWriteOptions, parse_write_options
from connectors.kafka.options.source import KafkaReadOptions, parse_read_options
from connectors.kinesis.options.sink import KinesisWriteOptions
from connectors.kinesis.options.source import KinesisReadOptions
from tests.support.kafka_jvm_settings import CONSUMER, PRODUCER

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
MOVE, KAFKA = (
    (HOW_TO / name).read_text(encoding="utf-8") for name in ("move-from-spark-kafka.md", "spark-kafka-settings.md")
)
KINESIS = (HOW_TO / "move-kinesis.md").read_text(encoding="utf-8")

# Of Spark's page on its Kafka integration; `kafka.group.id` is a setting of the client, on both sides.
SPARK_SOURCE = {
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "includeHeaders",
}
SPARK_SINK = {"kafka.bootstrap.servers", "topic", "includeHeaders"}


def table(page: str, heading: str) -> dict[str, str]:
    """The rows of the first table below a heading: the name on the left to the text on the right."""
    section = page[page.index(f"## {heading}\n") :].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return {name.strip("`"): text for name, text in rows if name.startswith("`")}


@pytest.mark.parametrize(
    ("heading", "theirs", "ours"),
    [
        ("Options of the source", SPARK_SOURCE, KafkaReadOptions),
        ("Options of the sink", SPARK_SINK, KafkaWriteOptions),
    ],
)
def test_the_table_has_every_option_of_sparks_own(heading: str, theirs: set[str], ours: type) -> None:
    rows = table(KAFKA, heading)
    assert set(rows) == theirs
    names = {one.name for one in declared_options(ours).values()}
    assert {name for name, text in rows.items() if text.startswith("the same")} <= names
    assert all(text.startswith("the same") for text in rows.values())


def settings(kind: str = "source", /, **given: str) -> ClientSettings:
    raw = {"kafka.bootstrap.servers": "broker:9092", **given}
    if kind == "sink":
        return parse_write_options(raw, {}, streaming=True).client
    return parse_read_options({"subscribe": "orders", **raw}, {}, streaming=True).client


SETTINGS = table(KAFKA, "Settings that begin with kafka")


@pytest.mark.parametrize("name", [name for name, text in SETTINGS.items() if text.startswith("refused")])
def test_a_setting_that_the_page_calls_refused_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(OptionError, match=re.escape(name.removeprefix("kafka."))):
        settings(**{name: "100"})


@pytest.mark.parametrize("name", [name for name, text in SETTINGS.items() if text.startswith("ignored")])
@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_setting_that_the_page_calls_ignored_is_with_a_warning(
    name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    assert settings(kind, **{name: "100"}) == settings(kind)
    (line,) = caplog.messages
    assert line.startswith("[KAFKA_SETTING_IGNORED]")
    assert name in line


@pytest.mark.parametrize("name", [name for name, text in SETTINGS.items() if text.startswith("taken as")])
def test_a_setting_that_the_page_calls_renamed_is(name: str) -> None:
    target = SETTINGS[name].removeprefix("taken as `kafka.").rstrip("`")
    assert settings(**{name: "100"}).revealed()[target] == "100"


@pytest.mark.parametrize(("kind", "theirs"), [("source", CONSUMER), ("sink", PRODUCER)])
def test_every_setting_of_the_jvm_client_that_is_not_the_same_here_is_on_the_page(
    kind: str, theirs: dict[str, str]
) -> None:
    missing = []
    for name, value in theirs.items():
        try:
            taken = settings(kind, **{f"kafka.{name}": value}).revealed()
        except OptionError:
            taken = {}
        if taken.get(name) != value and f"`kafka.{name}`" not in KAFKA:
            missing.append(name)
    assert missing == []


def test_the_settings_with_rules_of_their_own_follow_them() -> None:
    assert settings(**{"kafka.ssl.truststore.location": "/ca.pem", "kafka.ssl.truststore.type": "PEM"}).get(
        "ssl.ca.location"
    )
    for store in ("key", "trust"):
        with pytest.raises(OptionError, match="keytool"):
            settings(**{f"kafka.ssl.{store}store.location": "/store.jks"})
    with pytest.raises(OptionError, match="is not supported"):
        settings(**{"kafka.sasl.jaas.config": "com.example.OtherModule required;"})
    for name in re.findall(
        r"`(kafka\.[\w.]+)`", KAFKA[KAFKA.index("Refused as by Spark") :].partition(". Settings of the session")[0]
    ):
        with pytest.raises(OptionError, match=re.escape(name.removeprefix("kafka."))):
            settings(**{name: "x"})


def test_every_other_name_of_a_kinesis_option_is_in_the_table() -> None:
    rows = re.findall(r"^\| (`.+`) \| `(\w+)` \|$", KINESIS, re.MULTILINE)
    shown = {name: tuple(re.findall(r"`([^`]+)`", others)) for others, name in rows}
    options = [*declared_options(KinesisWriteOptions).values(), *declared_options(KinesisReadOptions).values()]
    assert shown == {one.name: one.aliases for one in options if one.aliases}


def test_the_option_that_exactly_once_needs_at_the_first_start_is_a_step_of_the_move() -> None:
    steps = re.findall(r"^\d\. (.*\n(?: {3}.*\n)*)", MOVE.partition("\n## ")[0], re.MULTILINE)
    [step] = [text for text in steps if "onMissingMarker=write" in text]
    assert "deliveryGuarantee=exactly_once" in step
