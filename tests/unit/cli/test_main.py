"""The command line as a whole: its help, its version, and what it says without its packages."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import connectors
from connectors.cli.main import app
from connectors.core.formats import install_advice, install_command


@pytest.fixture(autouse=True)
def in_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


ROOT = Path(__file__).parents[3]


def test_every_command_prints_through_the_one_console() -> None:
    """A console of its own, or a print, would let control characters through."""
    found = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "connectors").glob("*cli.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"Console", "print", "typer.echo"}
    ]
    assert found == []


@pytest.mark.parametrize("program", ["connectors", "-m connectors", "-m connectors.cli"])
@pytest.mark.parametrize("missing", ["typer", "rich", "pydantic"])
def test_without_its_extra_the_command_line_says_which_one_it_needs(program: str, missing: str) -> None:
    code = f"import runpy, sys; sys.modules[{missing!r}] = None; "
    if program == "connectors":  # as the script of an install starts it
        [script] = entry_points(group="console_scripts", name="connectors")
        code += f"from {script.module} import {script.attr}; {script.attr}()"
    else:
        code += f"runpy.run_module({program.split()[1]!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, check=False)
    advice = install_advice("cli")
    assert (
        done.stderr == f"[PACKAGES_MISSING] These packages are not installed: {missing} (the command line). {advice}\n"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert advice == f"Install the extra cli: {install_command('cli')}."


@pytest.mark.parametrize("module", ["connectors", "connectors.cli"])
def test_the_package_is_a_command_too(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"pyspark-stream-connectors {connectors.__version__}\n"), done.stderr


def environment(**changes: str) -> dict[str, str]:
    """The environment of a driver without faults, with changes; an empty value takes a variable away."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}
    changed = {**own, "PYSPARK_PYTHON": sys.executable, **changes}
    return {name: value for name, value in changed.items() if value}


# --- the command ---------------------------------------------------------------------------------------------------


def doctor(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], env={**environ, "PYTHONPATH": None, "SPARK_HOME": None})


BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        absent = {"numpy", "grpc", "google", "ptars", "xxhash", "confluent_kafka", "pyspark", "botocore", "msgspec"}
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Absent())
from connectors.cli.main import main
main()
"""


@pytest.mark.parametrize("source", ["pubsub", "kinesis", "kafka_py"])
def test_the_doctor_needs_no_extra_and_no_spark_to_say_that_they_are_absent(tmp_path: Path, source: str) -> None:
    environ = environment(PYSPARK_PYTHON=str(tmp_path / "python9"), JAVA_HOME=str(tmp_path), PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", BLOCKED, "doctor", "--format", source]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "PACKAGES_MISSING" in done.stdout


def without_packages(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *arguments]
    environ = environment(PYTHONPATH=str(ROOT), COLUMNS="200")
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("group", [[], ["spool"]])
def test_the_help_is_the_same_whatever_packages_are_absent(group: list[str]) -> None:
    whole = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "200"})
    shown = without_packages(*group, "--help")
    assert shown.returncode == 0, shown.stderr
    names = re.findall(r"^│ (\w+) ", shown.stdout, re.MULTILINE)
    assert names == re.findall(r"^│ (\w+) ", whole.output, re.MULTILINE)
    assert names
    for name in names:
        assert without_packages(*group, name, "--help").returncode == 0, name


@pytest.mark.parametrize(
    "command",
    [
        ["spool", "inspect", "/x", "--json"],
        ["spool", "verify", "/x", "--json"],
        ["spool", "quarantine", "/x", "inbox/f0/0.arrow", "--json"],
        ["spool", "repair", "/x", "--json"],
        ["spool", "adopt", "/x", "--json"],
        ["spool", "wipe", "/x", "--json"],
        ["demo", "--json"],
        ["fetch", "pubsub"],
    ],
    ids=" ".join,
)
def test_a_command_says_which_package_is_absent(command: list[str]) -> None:
    done = without_packages(*command)
    assert (done.returncode, "[PACKAGES_MISSING]" in done.stderr) == (2, True), done.stderr
    assert "executor" not in done.stderr or command[0] == "fetch"  # a fetcher needs the format's own packages
    if "--json" in command:
        assert json.loads(done.stdout)["error"]["code"] == "PACKAGES_MISSING"


def test_the_version_is_shown() -> None:
    done = without_packages("--version")
    assert (done.returncode, done.stdout) == (0, f"pyspark-stream-connectors {connectors.__version__}\n")


@pytest.mark.parametrize(
    ("program", "unbuffered"),
    [
        ("-m connectors.cli --help", ""),
        ("-m connectors.cli doctor", "1"),
        ("-m connectors.cli spool inspect {folder} --json", "1"),
        ("-m connectors.cli demo --endpoint localhost --json", ""),
    ],
)
def test_a_program_whose_output_is_read_no_more_ends_without_a_trace(
    program: str, unbuffered: str, tmp_path: Path
) -> None:
    """As before ``| head``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, *program.format(folder=tmp_path).split()]
    pipes = {"stdout": writing, "stderr": subprocess.PIPE, "text": True}
    environ = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, cwd=ROOT, env=environ, check=False, **pipes)
    os.close(writing)
    assert "BrokenPipe" not in done.stderr
    assert "Traceback" not in done.stderr
