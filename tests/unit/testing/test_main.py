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
from connectors.testing import __main__ as shipped
from tests.servers.__main__ import SERVERS, main
from tests.servers.java import free_port
from tests.support.protobuf_rig import compiled

ROOT = Path(connectors.__file__).parents[1]
FOLDERS = {"connectors.testing": shipped.SERVERS, "tests.servers": SERVERS}
IN_MEMORY = {
    "pubsub": ("endpoint", "PUBSUB_EMULATOR_HOST"),
    "kinesis": ("endpointUrl", "AWS_ENDPOINT_URL_KINESIS"),
    "registry": ("address", "SCHEMA_REGISTRY_URL"),
    "object-store": ("spoolEndpoint", "AWS_ENDPOINT_URL"),
    "moto": ("spoolEndpoint", "AWS_ENDPOINT_URL"),
}
MODULES = [
    f"connectors.testing.{name}" for name in ("pubsub", "kinesis", "object_store", "schema_registry", "kafka.mock")
]
MODULES += [f"tests.servers.{name}" for name in ("object_stores", "kafka_broker", "pubsub_emulator", "kinesis_local")]
MODULES += ["tests.servers.toxiproxy"]


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[list[str]]:
    """What a server prints when it listens, line by line; it ends with the block."""
    command = [sys.executable, "-m", "tests.servers", *arguments, "--exit-with-parent"]
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


@pytest.mark.parametrize("name", SERVERS)
def test_the_help_of_each_server_names_its_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    package = "connectors.testing" if name in shipped.SERVERS else "tests.servers"
    assert out.startswith(f"usage: python -m {package} {name} ")
    assert "--port" in out
    assert "--exit-with-parent" in out


@pytest.mark.parametrize("package", FOLDERS)
def test_the_help_lists_every_program_of_the_package(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    servers = FOLDERS[package]
    command = shipped.main if package == "connectors.testing" else main
    assert command(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: python -m {package} NAME ")
    assert re.findall(r"^ {2}([\w-]+) ", out, re.MULTILINE) == [*servers]
    programs = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / package.replace(".", "/")).rglob("*.py")
        if "def main(arguments: " in path.read_text(encoding="utf-8")
    }
    assert programs - {f"{package}.__main__"} == {
        module for module, _ in servers.values() if module.startswith(f"{package}.")
    }


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("pubsub", "google.pubsub_v1", "testing"),
        ("kinesis", "h11", "testing"),
        ("registry", "google.protobuf.descriptor_pb2", "testing"),
        ("kafka-mock", "numpy", "kafka"),
    ],
)
@pytest.mark.parametrize("package", FOLDERS)
def test_without_its_extra_a_server_says_which_one_it_needs(package: str, name: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\n"
    code += f"from {package}.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"[PACKAGES_MISSING] not installed: {missing} (the server {name}). ")
    assert f"Install the extra {extra}: pip install" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["kafkas"]])
def test_a_name_that_is_none_lists_those_that_are(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "object-store" in capsys.readouterr().err


@pytest.mark.parametrize("module", MODULES)
def test_the_form_by_the_name_of_a_module_works_too(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (
        f"usage: python -m {module.rpartition('.')[0] if module.startswith('tests') else 'connectors.testing'} "
        in done.stdout
    )


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
    code = "import tests.servers.__main__, tests.servers.pubsub_emulator"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True)
