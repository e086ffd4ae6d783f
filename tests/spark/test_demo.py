"""The demonstration, as a user runs it: killed on the way and counted; the count sees a planted loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.cli.demo.plan import DemoPlan, ServiceName, Target
from connectors.cli.demo.run import run_demo, service_of
from connectors.testing.kinesis import KinesisServer
from connectors.testing.object_store import ObjectStoreServer
from connectors.testing.pubsub import PubSubServer
from tests.servers.kafka_broker import KafkaBroker, find_broker
from tests.servers.kinesis_local import KinesisLocal, find_kinesis_local
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.guarantee, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
MESSAGES = 2_000
SECONDS = 500  # most of it are starts of Spark


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "connectors.cli", "demo", *arguments]


def counts(result: dict[str, Any]) -> list[tuple[str, int, int, int, int, int, int]]:
    names = ("query", "delivered", "lost", "doubled", "disordered", "foreign", "replays_differing")
    return [tuple(one[name] for name in names) for one in result["queries"]]


def right(*queries: str, messages: int = MESSAGES) -> list[tuple[str, int, int, int, int, int, int]]:
    return [(query, messages, 0, 0, 0, 0, 0) for query in queries]


def run(folder: Path, service: ServiceName, target: Target | None = None, **more: Any) -> dict[str, Any]:
    plan = DemoPlan(folder, service, target or Target(), **{"messages": MESSAGES, "kills": 1, "minutes": 10, **more})
    return run_demo(service_of(plan), lambda _: None)


def test_pubsub_drops_duplicates_and_the_count_sees_a_planted_loss(tmp_path: Path, seed: int) -> None:
    record = tmp_path / "record.json"
    more = ["--messages", str(MESSAGES), "--kills", "2", "--seed", str(seed), "--record", str(record)]
    done = subprocess.run(
        program("--json", "--plant-loss", *more), capture_output=True, text=True, check=False, cwd=ROOT, timeout=SECONDS
    )
    assert done.stdout, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1, done.stderr
    assert (result["published"], result["lost"], result["doubled"], result["disordered"]) == (MESSAGES, 1, 0, 0), result
    assert result["delivered_again"] > 0
    assert (result["seed"], result["kills"][0]["victim"]) == (seed, "driver")
    assert (result["replays"] > 0, result["replays_differing"]) == (True, 0), result
    assert json.loads(record.read_text()) == result
    assert "duplicates dropped" in " ".join(done.stderr.split())


def test_kafka_on_the_mock_cluster_says_what_it_leaves_out(tmp_path: Path, seed: int) -> None:
    result = run(tmp_path, ServiceName.KAFKA, seed=seed)
    assert counts(result) == right("files")
    assert result["replays"] > 0
    assert any("no transactions" in note and "./dev broker" in note for note in result["notes"])


def test_kinesis_polls_and_fans_out_while_shards_are_split_and_merged(tmp_path: Path, seed: int) -> None:
    result = run(tmp_path, ServiceName.KINESIS, seed=seed, kills=2)
    assert counts(result) == right("polling", "fan-out")
    assert [note.partition(" ")[0] for note in result["notes"]] == ["Split", "Merge"]
    assert len(result["kills"]) == 2


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with KinesisServer() as server:
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "TMPDIR": str(tmp_path),
        }
        process = subprocess.Popen(
            program("kinesis", "--endpoint", server.url), stderr=subprocess.PIPE, env=environment, cwd=ROOT
        )
        give_up_at = time.monotonic() + SECONDS
        while not list(tmp_path.glob("connectors-demo-*/polling/checkpoint/offsets/0")):
            assert process.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 130
        assert server.call_counts()["DeleteStream"] == 1
        assert list(tmp_path.glob("connectors-demo-*")) == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]


def test_an_interrupted_demo_waits_for_fetchers_that_still_write_into_its_folder(tmp_path: Path) -> None:
    with PubSubServer() as server:
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            program("pubsub", "--endpoint", server.endpoint), stderr=subprocess.PIPE, env=environment, cwd=ROOT
        )
        wait_for(lambda: list(tmp_path.glob("connectors-demo-*/spool/inbox/*/*.arrow")), SECONDS)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert list(tmp_path.glob("connectors-demo-*")) == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]


def test_a_right_that_only_the_query_lacks_is_named_and_the_stream_is_removed() -> None:
    with KinesisServer() as server:
        server.fail("GetRecords", "AccessDeniedException", None)
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        command = program("kinesis", "--endpoint", server.url, "--messages", str(MESSAGES))
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT, timeout=SECONDS
        )
        assert server.call_counts()["DeleteStream"] == 1
    assert done.returncode == 2, done.stderr
    assert "[DEMO_QUERY_ENDED] The query ended: [KINESIS_ACCESS_DENIED]" in done.stderr
    assert "Allow kinesis:GetRecords" in done.stderr


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.long
def test_kafka_on_a_real_broker_writes_exactly_once_and_removes_its_topics(tmp_path: Path, seed: int) -> None:
    if reason := find_broker().reason:
        pytest.skip(reason)
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only this test needs it

    with KafkaBroker() as broker:
        result = run(tmp_path, ServiceName.KAFKA, Target(endpoint=broker.endpoint), seed=seed, kills=3)
        admin = AdminClient({"bootstrap.servers": broker.endpoint})
        topics = [name for name in admin.list_topics(timeout=10).topics if name.startswith("connectors-demo")]
        groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    assert counts(result) == right("files", "exactly-once")
    assert (result["left_behind"], topics, groups) == ([], [], [])


def test_the_broker_to_try_things_on_creates_a_topic_that_is_written_to() -> None:
    if reason := find_broker().reason:
        pytest.skip(reason)
    from confluent_kafka import Producer  # noqa: PLC0415 - as above

    with subprocess.Popen([str(ROOT / "dev"), "broker"], stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            address = next(line for line in broker.stdout if line.startswith("listening on ")).split()[-1]
            delivered: list[object] = []
            producer = Producer({"bootstrap.servers": address, "topic.metadata.propagation.max.ms": 5000})
            producer.produce("orders", b"order 1", on_delivery=lambda error, _: delivered.append(error))
            producer.flush(30)
        finally:
            broker.terminate()
    assert delivered == [None]


@pytest.mark.long
def test_kafka_in_topics_that_were_there_counts_its_own_records_and_removes_none(tmp_path: Path, seed: int) -> None:
    if reason := find_broker().reason:
        pytest.skip(reason)
    from confluent_kafka import Producer  # noqa: PLC0415 - as above
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    with KafkaBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.endpoint})
        for future in admin.create_topics([NewTopic("orders", 3, 1), NewTopic("copies", 2, 1)]).values():
            future.result()
        producer = Producer({"bootstrap.servers": broker.endpoint})
        for number in range(100):
            producer.produce("orders" if number % 2 else "copies", b"of somebody else")
        producer.flush()
        target = Target(endpoint=broker.endpoint, existing=("orders", "copies"))
        result = run(tmp_path, ServiceName.KAFKA, target, seed=seed)
        topics = {name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")}
    assert counts(result) == right("files", "exactly-once")
    assert (result["left_behind"], topics) == ([], {"orders", "copies"})


@pytest.mark.long
def test_pubsub_with_its_spool_in_an_object_store_leaves_no_object_behind(tmp_path: Path, seed: int) -> None:
    with ObjectStoreServer() as store:
        options = {"spoolEndpoint": store.endpoint, "spoolRegion": "us-east-1"}
        options |= {"spoolKeyId": "any", "spoolSecret": "any"}
        result = run(tmp_path, ServiceName.PUBSUB, Target(spool="s3://spools/demo", options=options), seed=seed)
        assert store.counts["PUT"] > 0
        assert store.objects == {}
    assert counts(result) == right("spool")
    assert ((result["delivered_again"] or 0) > 0, result["left_behind"]) == (True, [])


@pytest.mark.long
def test_kinesis_on_kinesis_local_reads_each_record_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := find_kinesis_local().reason:
        pytest.skip(reason)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with KinesisLocal() as server:
        target = Target(endpoint=f"http://{server.endpoint}")
        result = run(tmp_path, ServiceName.KINESIS, target, seed=seed)
    assert counts(result) == right("polling", "fan-out")
    assert result["left_behind"] == []


# ./dev test has both parts: the demonstration above, and the emulator in tests/integration/pubsub/test_emulator.py.
@pytest.mark.long
def test_pubsub_on_the_official_emulator_loses_and_doubles_nothing(pubsub_emulator: str, tmp_path: Path) -> None:
    """Its fetcher dies between durable and ack; the kill of the query is the other test's."""
    result = run(tmp_path, ServiceName.PUBSUB, Target(endpoint=pubsub_emulator), kills=0)
    assert counts(result) == right("spool")
    assert (result["delivered_again"] or 0) > 0
