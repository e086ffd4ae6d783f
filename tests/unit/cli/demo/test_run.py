"""``connectors demo`` where it cannot be carried out: a named error and code 2, for 1 says that rows were lost."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner, Result

from connectors.cli.main import app
from connectors.core.formats import install_advice
from tests.servers.java import free_port

WITHOUT = "import sys; sys.modules['{}'] = None; from connectors.cli.main import main; main()"


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
    assert "[PUBSUB_EMULATOR_SILENT] It does not answer as Pub/Sub does: UNIMPLEMENTED" in done.stderr


def test_a_folder_that_cannot_be_made_is_a_named_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    done = demo("--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["code"] == "DEMO_FOLDER"
    assert str(tmp_path / "gone") in done.stderr


@pytest.mark.parametrize("module", ["grpc", "google.pubsub_v1"])
def test_a_missing_extra_is_a_named_error(module: str) -> None:
    command = [sys.executable, "-c", WITHOUT.format(module), "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        f"[PACKAGES_MISSING] not installed: {module} (this command). {install_advice('pubsub,testing')}\n"
    )
    assert json.loads(done.stdout)["error"]["code"] == "PACKAGES_MISSING"
