"""Every server for tests is started in one form, and says where it listens and what to export."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers.java import free_port
from tests.support.protobuf_rig import compiled

IN_MEMORY = {
    "pubsub": ("endpoint", "PUBSUB_EMULATOR_HOST"),
    "kinesis": ("endpointUrl", "AWS_ENDPOINT_URL_KINESIS"),
    "registry": ("address", "SCHEMA_REGISTRY_URL"),
    "object-store": ("spoolEndpoint", "AWS_ENDPOINT_URL"),
    "moto": ("spoolEndpoint", "AWS_ENDPOINT_URL"),
}


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


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("pubsub", "google.pubsub_v1", "testing"),
        ("kafka-mock", "numpy", "kafka"),
    ],
)
def test_without_its_extra_a_server_says_which_one_it_needs(name: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\n"
    code += "from connectors.testing.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"[PACKAGES_MISSING] These packages are not installed: {missing} (the server {name}). "
    )
    assert f"Install the extra {extra}: pip install" in done.stderr


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
