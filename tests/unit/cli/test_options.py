"""Options on the command line: a secret is no argument, and no value is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from connectors.cli.main import app


@pytest.fixture(autouse=True)
def in_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- the command ---------------------------------------------------------------------------------------------------


def doctor(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], env={**environ, "PYTHONPATH": None, "SPARK_HOME": None})


def test_a_wrong_call_ends_with_2_and_shows_no_value() -> None:
    unknown = doctor("--format", "pubsub2")
    assert (unknown.exit_code, "FORMAT_UNKNOWN" in unknown.output) == (2, True)
    done = doctor("-o", "hunter2")
    assert (done.exit_code, "hunter2" in done.output) == (2, False)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("kinesis", "awsSecretKey"),
        ("kinesis", "awsSecretAccessKey"),
        ("kafka_py", "kafka.sasl.password"),
        ("pubsub", "privateKey"),
        ("pubsub", "credentialsFile"),
    ],
)
def test_a_secret_is_refused_in_an_argument_and_taken_from_a_file(source: str, name: str, tmp_path: Path) -> None:
    done = doctor("--format", source, "-o", f"{name}=hunter2")
    assert (done.exit_code, done.stdout, "hunter2" in done.stderr) == (2, "", False)
    assert done.stderr.startswith(f"[OPTION_SECRET_IN_ARGUMENT] The option {name} is secret")
    file = tmp_path / "options.json"
    file.write_text(json.dumps({name: "hunter2", "nothing": 1}))
    java = {"JAVA_HOME": str(tmp_path), "PYSPARK_PYTHON": str(tmp_path / "python9")}
    done = doctor("--format", source, "--options", str(file), **java)
    assert (done.exit_code, "hunter2" in done.output) == (1, False)
    assert "The option nothing is unknown" in done.stdout
