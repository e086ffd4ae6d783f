"""The doctor finds what is broken on a machine: each thing is broken here on purpose."""

from __future__ import annotations

import json
import sys
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


def test_the_command_ends_with_1_and_prints_each_fix_without_colours_into_a_pipe(tmp_path: Path) -> None:
    done = doctor(PYSPARK_PYTHON=str(tmp_path / "python9"), JAVA_HOME=str(tmp_path))
    assert done.exit_code == 1
    assert "PYTHON_WORKER_MISSING" in done.stdout
    assert f"fix: export PYSPARK_PYTHON={sys.executable}" in done.stdout
    assert "2 failed" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_command_prints_json(tmp_path: Path) -> None:
    done = doctor("--json", PYSPARK_PYTHON=str(tmp_path / "python9"), JAVA_HOME=str(tmp_path))
    result = json.loads(done.stdout)
    assert (done.exit_code, result["failures"], result["warnings"]) == (1, 2, 0)
    codes = {each["code"] for each in result["findings"] if each["outcome"] == "failed"}
    assert codes == {"PYTHON_WORKER_MISSING", "JAVA_MISSING"}


def test_what_is_about_a_source_needs_its_format() -> None:
    done = doctor("-o", "subscribe=orders")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "[OPTION_MISSING] --options and --option need --format, which names their source (--format). "
        "Give one of kafka_py, kinesis, pubsub.\n"
    )


def test_a_wrong_call_is_an_object_on_standard_output_with_json() -> None:
    for arguments, code in (
        (["--format", "pubsub2"], "FORMAT_UNKNOWN"),
        (["--format", "pubsub", "-o", "x"], "OPTION_ILLEGAL"),
        (["-o", "subscribe=orders"], "OPTION_MISSING"),
    ):
        done = doctor("--json", *arguments)
        error = json.loads(done.stdout)["error"]
        assert (done.exit_code, error["code"]) == (2, code)
        assert done.stderr.startswith(f"[{code}] {error['what']}")


def test_an_error_is_not_broken_at_the_edge_of_the_terminal() -> None:
    done = doctor("--format", "x" * 300)
    assert f"'{'x' * 300}'" in done.stderr
