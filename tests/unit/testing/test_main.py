"""Every server for tests is started in one form, and says where it listens and what to export."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import connectors
from connectors.testing.__main__ import _SERVERS, main
from connectors.testing.servers.java import free_port
from tests.support.protobuf_rig import compiled

TESTING = Path(connectors.__file__).parent / "testing"
IN_MEMORY = {
    "pubsub": ("endpoint", "PUBSUB_EMULATOR_HOST"),
    "kinesis": ("endpointUrl", "AWS_ENDPOINT_URL_KINESIS"),
    "registry": ("address", "SCHEMA_REGISTRY_URL"),
    "object-store": ("spoolEndpoint", "AWS_ENDPOINT_URL"),
    "moto": ("spoolEndpoint", "AWS_ENDPOINT_URL"),
}
MODULES = [
    "pubsub",
    "kinesis",
    "object_store",
    "schema_registry",
    "kafka.broker",
    "kafka.mock",
    "servers.object_stores",
]
MODULES += ["servers.pubsub_emulator", "servers.kinesis_local", "servers.toxiproxy"]


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[list[str]]:
    """What a server prints when it listens, line by line; it ends with the block."""
    command = [sys.executable, "-m", "connectors.testing", *arguments, "--exit-with-parent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            lines = [program.stdout.readline()]
            while lines[-1] and not lines[-1].startswith("export "):
                lines.append(program.stdout.readline())
            yield [line.rstrip("\n") for line in lines]
        finally:
            program.stdin.close()
            program.stdout.read()
    assert program.returncode == 0


@pytest.mark.parametrize("name", IN_MEMORY)
def test_a_server_listens_on_the_port_and_labels_its_addresses(name: str) -> None:
    label, variable = IN_MEMORY[name]
    port = free_port()
    with started(name, "--port", str(port)) as lines:
        assert lines[0] == f"listening on 127.0.0.1:{port}"
        shown = [line for line in lines if line.startswith(f"# {label}: ")]
        assert [line.rpartition("127.0.0.1:")[2] for line in shown] == [str(port)]
        done = subprocess.run(
            ["sh", "-c", "\n".join(lines[1:]) + f"\necho ${variable}"], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip().endswith(f"127.0.0.1:{port}")
        assert all(line.startswith(("# ", "export ")) for line in lines[1:])


@pytest.mark.parametrize("name", _SERVERS)
def test_the_help_of_each_server_names_its_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(f"usage: python -m connectors.testing {name} ")
    assert "--port" in out
    assert "--exit-with-parent" in out


def test_the_help_lists_every_program_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(r"^ {2}([\w-]+) ", capsys.readouterr().out, re.MULTILINE)
    assert listed == [*_SERVERS]
    programs = {
        path.relative_to(TESTING).with_suffix("").as_posix().replace("/", ".")
        for path in TESTING.rglob("*.py")
        if "def main(arguments: " in path.read_text(encoding="utf-8")
    }
    assert programs - {"__main__"} == {module for module, _ in _SERVERS.values()}


@pytest.mark.parametrize("arguments", [[], ["kafkas"]])
def test_a_name_that_is_none_lists_those_that_are(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "object-store" in capsys.readouterr().err


@pytest.mark.parametrize("module", MODULES)
def test_the_form_by_the_name_of_a_module_works_too(module: str) -> None:
    command = [sys.executable, "-m", f"connectors.testing.{module}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "usage: python -m connectors.testing" in done.stdout


def test_a_port_that_is_taken_is_named() -> None:
    with started("registry") as lines:
        address = lines[0].removeprefix("listening on ")
        for name in ("registry", "kinesis", "pubsub", "object-store"):
            command = [sys.executable, "-m", "connectors.testing", name, "--port", address.rpartition(":")[2]]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 1
            assert "Traceback" not in done.stderr
            assert done.stderr


def test_the_mock_cluster_says_why_it_takes_no_port(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["kafka-mock", "--port", "9092"])
    assert end.value.code == 2
    assert "librdkafka chooses" in capsys.readouterr().err


def ask(address: str, path: str) -> dict[str, object]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer: dict[str, object] = json.loads(connection.getresponse().read())
        return answer


def test_the_registry_serves_the_schemas_of_its_command_line(tmp_path: Path) -> None:
    text = 'syntax = "proto3"; message Order { string id = 1; }'
    (tmp_path / "order.proto").write_text(text)
    both = {"money": 'syntax = "proto3"; message Money { int64 cents = 1; }'}
    main_file = 'syntax = "proto3"; import "money.proto"; message Sale { Money price = 1; }'
    (tmp_path / "sale.desc").write_bytes(compiled(main_file, **both))
    schemas = ["--schema", f"orders-value={tmp_path}/order.proto", "--schema", f"sales-value={tmp_path}/sale.desc"]
    with started("registry", *schemas) as lines:
        labels = dict(line.removeprefix("# ").split(": ") for line in lines if line.startswith("# "))
        assert ask(labels["address"], "/subjects/orders-value/versions/latest")["schema"] == text
        sale = ask(labels["address"], f"/schemas/ids/{labels['schema id of sales-value']}?format=serialized")
        assert sale["references"] == [{"name": "money.proto", "subject": "money.proto", "version": 1}]
        assert sale["schema"]
        assert ask(labels["address"], "/subjects/money.proto/versions/1")["schemaType"] == "PROTOBUF"


@pytest.mark.parametrize("content", [None, b"\xff", b""])
def test_the_registry_names_a_schema_that_it_cannot_read(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "x.desc").write_bytes(content)
    command = [sys.executable, "-m", "connectors.testing", "registry", "--schema", f"s={tmp_path}/x.desc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert str(tmp_path / "x.desc") in done.stderr
    assert "Traceback" not in done.stderr


def test_the_emulator_is_run_by_what_comes_with_python() -> None:
    """`./dev servers` makes no environment for it."""
    code = "import connectors.testing.__main__, connectors.testing.servers.pubsub_emulator"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=TESTING.parents[1], check=True)
