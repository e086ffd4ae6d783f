"""``connectors demo`` where it cannot be carried out: a named error and code 2, and nothing is left behind.

Code 1 says that rows were lost.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.pubsub_v1.types import pubsub as types
from typer.testing import CliRunner, Result

from connectors.cli.main import app
from connectors.core.formats import install_advice
from connectors.testing.kinesis import KinesisServer
from connectors.testing.pubsub import PubSubServer
from connectors.testing.pubsub.client import PubSubTestClient
from tests.servers.java import free_port

KEYS = ("-o", "awsAccessKey=env:DEMO_KEY", "-o", "awsSecretKey=env:DEMO_KEY")
WITHOUT = "import sys; sys.modules['{}'] = None; from connectors.cli.main import main; main()"


def topics_of(server: PubSubServer) -> list[str]:
    with PubSubTestClient(server.endpoint, "demo") as client:
        request = types.ListTopicsRequest(project="projects/demo")
        response = client.call("Publisher/ListTopics", request, types.ListTopicsResponse)
    return [topic.name for topic in response.topics]


def demo(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["demo", *arguments])


@pytest.mark.parametrize(
    ("endpoint", "code"),
    [
        ("nohost.invalid:1", "NAME_UNKNOWN"),
        ("localhost", "DEMO_ENDPOINT"),
        ("localhost:http", "DEMO_ENDPOINT"),
        ("localhost:70000", "DEMO_ENDPOINT"),
        ("127.0.0.1:{free}", "TCP_NO_CONNECTION"),
    ],
)
def test_an_emulator_that_is_not_there_is_a_named_error_and_no_loss(endpoint: str, code: str) -> None:
    done = demo("--json", "--endpoint", endpoint.format(free=free_port()))
    assert done.exit_code == 2, done.output
    assert f"[{code}]" in done.stderr
    assert json.loads(done.stdout)["error"]["code"] == code


def test_a_server_that_is_no_pubsub_is_a_named_error() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = demo("--endpoint", f"127.0.0.1:{port}")
    finally:
        server.stop(None).wait()
    assert done.exit_code == 2, done.output
    assert "[PUBSUB_CALL_FAILED] CreateTopic failed with UNIMPLEMENTED" in done.stderr


def test_a_folder_that_cannot_be_made_is_a_named_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    done = demo("--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["code"] == "DEMO_FOLDER"
    assert str(tmp_path / "gone") in done.stderr


@pytest.mark.parametrize(("service", "module"), [("pubsub", "grpc"), ("kinesis", "h2"), ("kafka", "confluent_kafka")])
def test_a_missing_extra_is_a_named_error(service: str, module: str) -> None:
    command = [sys.executable, "-c", WITHOUT.format(module), "demo", service, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        f"[PACKAGES_MISSING] These packages are not installed: {module} (this command). "
        f"{install_advice(f'{service},testing')}\n"
    )
    assert json.loads(done.stdout)["error"]["code"] == "PACKAGES_MISSING"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ("kafka --endpoint 127.0.0.1:1", "kinesis or pubsub"),
        ("kinesis --bootstrap 127.0.0.1:1", "kafka"),
        ("pubsub --region eu-west-1", "kinesis"),
        ("kafka --project shop", "pubsub"),
        ("pubsub --topic orders", "kafka"),
        ("kafka --stream orders", "kinesis"),
        ("kafka --bootstrap 127.0.0.1:1 --subscription orders", "--subscription"),
        ("kinesis --endpoint http://127.0.0.1:1 --spool /tmp/spool", "--spool"),
        ("kinesis --stream orders", "for an existing service"),
        ("kafka --bootstrap 127.0.0.1:1 --topic a --topic b --topic c", "two topics"),
    ],
)
def test_an_option_of_another_service_is_refused(arguments: str, what: str) -> None:
    done = demo(*arguments.split(), "--dry-run")
    assert done.exit_code == 2, done.output
    assert "[DEMO_OPTION]" in done.stderr
    assert what in done.stderr


def test_a_secret_in_an_argument_is_refused_and_not_shown() -> None:
    done = demo("kafka", "--bootstrap", "127.0.0.1:1", "-o", "kafka.sasl.password=hidden-thing", "--dry-run")
    assert (done.exit_code, "[OPTION_SECRET_IN_ARGUMENT]" in done.stderr) == (2, True), done.output
    assert "hidden-thing" not in done.output


DRY = {
    "kafka": ("--bootstrap 127.0.0.1:1", ["Create, Delete on topic", "transactional ids", "groups"]),
    "kinesis": ("--region eu-west-1", ["kinesis:CreateStream", "kinesis:SubscribeToShard", "kinesis:MergeShards"]),
    "pubsub": ("--project shop", ["pubsub.topics.create", "pubsub.subscriptions.consume", "roles/pubsub.editor"]),
}


@pytest.mark.parametrize("service", sorted(DRY))
def test_a_dry_run_says_what_it_creates_costs_and_needs_and_calls_nothing(service: str) -> None:
    address, rights = DRY[service]
    done = demo(service, *address.split(), "--dry-run", "--json", "--seed", "7", "--kills", "3")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert all(any(right in named for named in result["rights"]) for right in rights), result["rights"]
    assert all("connectors-demo-" in name for name in result["creates"])
    assert len(result["creates"]) >= 2
    assert result["kills"][0]["victim"] == "driver"
    assert (result["cost"]["dollars"] > 0) == (service != "kafka")
    again = json.loads(demo(service, *address.split(), "--dry-run", "--json", "--seed", "7", "--kills", "3").stdout)
    assert again["kills"] == result["kills"]


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        ("kafka --bootstrap 127.0.0.1:1 --topic in --topic copy", "topic"),
        ("kinesis --region eu-west-1 --stream orders", "stream orders with"),
        ("pubsub --project shop --subscription orders", "subscription"),
    ],
)
def test_what_is_given_is_neither_created_nor_removed(arguments: str, absent: str) -> None:
    done = demo(*arguments.split(), "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert not [name for name in result["creates"] if name.startswith(absent)]
    assert not [right for right in result["rights"] if "reate" in right]


@pytest.mark.parametrize("arguments", ["kinesis --region eu-west-1", "pubsub --project shop --messages 100000000"])
def test_a_run_that_may_cost_too_much_is_refused(arguments: str) -> None:
    done = demo(*arguments.split(), "--dry-run", "--max-cost", "0.01")
    assert (done.exit_code, "[DEMO_COST]" in done.stderr) == (2, True), done.output
    assert demo(*arguments.split(), "--dry-run", "--max-cost", "100").exit_code == 0


def test_a_missing_right_to_create_a_stream_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_KEY", "any")
    with KinesisServer() as server:
        server.fail("CreateStream", "AccessDeniedException", None)
        done = demo("kinesis", "--endpoint", server.url, "--json", *KEYS)
    assert (done.exit_code, json.loads(done.stdout)["error"]["code"]) == (2, "KINESIS_ACCESS_DENIED"), done.output
    assert "Allow kinesis:CreateStream" in done.stderr
    assert "Left behind" not in done.stderr


def test_a_missing_right_in_the_middle_is_named_and_nothing_is_left_behind() -> None:
    with PubSubServer() as server:
        server.fail("CreateSubscription", "PERMISSION_DENIED", None)
        done = demo("--endpoint", server.endpoint, "--json")
        topics = topics_of(server)
    assert (done.exit_code, json.loads(done.stdout)["error"]["code"]) == (2, "PUBSUB_PERMISSION_DENIED"), done.output
    assert "roles/pubsub.editor" in done.stderr
    assert (topics, "Left behind" in done.stderr) == ([], False)


def test_no_handler_of_the_log_is_left_behind() -> None:
    before = list(logging.getLogger("connectors").handlers)
    demo("--endpoint", f"127.0.0.1:{free_port()}")
    demo("kafka", "--dry-run")
    assert logging.getLogger("connectors").handlers == before


def test_what_cannot_be_removed_is_named() -> None:
    with PubSubServer() as server:
        server.fail("CreateSubscription", "PERMISSION_DENIED", None)
        server.fail("DeleteTopic", "PERMISSION_DENIED", None)
        done = demo("--endpoint", server.endpoint)
        [topic] = topics_of(server)
    assert done.exit_code == 2
    assert f"Left behind, please remove it: topic {topic}: DeleteTopic is denied" in done.output
