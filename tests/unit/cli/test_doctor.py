"""The doctor finds what is broken on a machine: each thing is broken here on purpose."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import connectors
from connectors.cli.doctor.machine import check_machine, check_workers
from connectors.cli.main import app
from connectors.core.diagnostics import Finding, Outcome

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def in_a_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def environment(**changes: str) -> dict[str, str]:
    """The environment of a driver without faults, with changes; an empty value takes a variable away."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))}
    changed = {**own, "PYSPARK_PYTHON": sys.executable, **changes}
    return {name: value for name, value in changed.items() if value}


def only_bad(environ: Mapping[str, str], area: str = "python") -> Finding:
    """The one finding of an area that is neither ok nor skipped; it is a failure and has a fix."""
    findings = [finding for finding in check_machine(environ) if finding.area == area]
    [bad] = [finding for finding in findings if finding.outcome not in {Outcome.OK, Outcome.SKIPPED}]
    assert (bad.outcome, bool(bad.fix)) == (Outcome.FAILURE, True)
    return bad


def program(path: Path, text: str) -> Path:
    """An executable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def module(folder: Path, name: str, text: str) -> dict[str, str]:
    """A module that the workers see through PYTHONPATH."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return environment(PYTHONPATH=str(folder))


def test_a_machine_without_faults_has_no_complaint() -> None:
    findings = [finding for finding in check_machine(environment()) if finding.area != "java"]
    assert {finding.outcome for finding in findings} == {Outcome.OK}
    assert {finding.check for finding in findings} == {"driver", "worker", "pyarrow", "pack", "neighbours", "version"}


def test_workers_whose_python_is_absent_are_reported(tmp_path: Path) -> None:
    bad = only_bad(environment(PYSPARK_PYTHON=str(tmp_path / "python9")))
    assert bad.code == "PYTHON_WORKER_MISSING"
    assert sys.executable in bad.fix


def test_without_pyspark_python_the_first_python3_of_the_path_is_checked(tmp_path: Path) -> None:
    program(tmp_path / "python3", f'exec {sys.executable} -S "$@"\n')
    assert only_bad(environment(PYSPARK_PYTHON="", PATH=f"{tmp_path}:/usr/bin:/bin")).code == "ARROW_MISSING"


def test_workers_whose_python_does_not_run_are_reported_with_its_last_words(tmp_path: Path) -> None:
    python = program(tmp_path / "python", "echo 'No module named encodings' >&2; exit 1\n")
    bad = only_bad(environment(PYSPARK_PYTHON=str(python)))
    assert bad.code == "PYTHON_WORKER_BROKEN"
    assert "encodings" in bad.seen


def test_workers_of_another_python_version_are_reported(tmp_path: Path) -> None:
    python = program(tmp_path / "python", f"echo '{json.dumps({'version': [3, 9, 1]})}'\n")
    bad = only_bad(environment(PYSPARK_PYTHON=str(python)))
    assert bad.code == "PYTHON_VERSIONS_DIFFER"
    assert "3.9.1" in bad.seen


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("pyarrow.py", "__version__ = '17.0.0'", "ARROW_TOO_OLD"),
        ("pyarrow.py", "raise ImportError('libarrow.so: no such file')", "ARROW_MISSING"),
        ("connectors/__init__.py", "", "PACK_SHADOWED"),
        ("connectors.py", "__version__ = '9'", "PACK_SHADOWED"),
        ("connectors.py", "raise ImportError", "PACK_MISSING"),
        ("pyspark_bad.py", "raise RuntimeError('no licence')", "NEIGHBOUR_BROKEN"),
        ("pyspark_bad.py", "raise SystemExit(3)", "NEIGHBOUR_BROKEN"),
    ],
)
def test_a_package_that_is_wrong_for_the_workers_is_reported(tmp_path: Path, name: str, text: str, code: str) -> None:
    assert only_bad(module(tmp_path / "theirs", name, text)).code == code


def test_a_pack_of_another_version_is_reported(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "connectors" / "core" / "errors").mkdir(parents=True)
    bad = only_bad(module(tmp_path / "theirs", "connectors/__init__.py", "__version__ = '0.0.1'"))
    assert (bad.code, "0.0.1" in bad.seen) == ("PACK_VERSIONS_DIFFER", True)


def test_a_folder_named_connectors_where_the_user_starts_shadows_the_pack(tmp_path: Path) -> None:
    (tmp_path / "connectors").mkdir()
    assert {each.outcome for each in check_workers(environment())} == {Outcome.OK}, "without __init__.py it does not"
    (tmp_path / "connectors" / "__init__.py").touch()
    assert only_bad(environment()).code == "PACK_SHADOWED"


def test_two_neighbours_with_one_format_are_reported(tmp_path: Path) -> None:
    text = "class DefaultSource:\n    name = staticmethod(lambda: 'shop')\n"
    module(tmp_path / "theirs", "pyspark_first.py", text)
    assert only_bad(module(tmp_path / "theirs", "pyspark_second.py", text)).code == "NEIGHBOUR_CLASH"


def test_a_spark_home_of_another_spark_is_reported(tmp_path: Path) -> None:
    (tmp_path / "RELEASE").write_text("Spark 3.5.1 (git revision fd86f85e181) built for Hadoop 3.3.4\n")
    bad = only_bad(environment(SPARK_HOME=str(tmp_path)), "spark")
    assert (bad.code, "3.5.1" in bad.seen) == ("SPARK_HOME_DIFFERS", True)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "JAVA_MISSING"),
        ("echo '    java.specification.version = 1.8' >&2\n", "JAVA_TOO_OLD"),
        ("echo 'cannot execute binary file'; exit 126\n", "JAVA_BROKEN"),
    ],
)
def test_a_java_that_spark_cannot_use_is_reported(tmp_path: Path, text: str, code: str) -> None:
    if text:
        program(tmp_path / "bin" / "java", text)
    bad = only_bad(environment(JAVA_HOME=str(tmp_path)), "java")
    assert (bad.code, str(tmp_path) in bad.seen) == (code, True)


def test_a_java_that_is_new_enough_is_ok(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "java", "echo '    java.specification.version = 17' >&2\n")
    [java] = [finding for finding in check_machine(environment(JAVA_HOME=str(tmp_path))) if finding.area == "java"]
    assert (java.outcome, "Java 17" in java.seen) == (Outcome.OK, True)


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


def test_what_is_about_a_source_needs_its_format() -> None:
    done = doctor("-o", "subscribe=orders")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "[OPTION_MISSING] --options and --option are about a source, and none is named (--format). "
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
    if "--json" in command:
        assert json.loads(done.stdout)["error"]["code"] == "PACKAGES_MISSING"


def test_the_version_is_shown() -> None:
    done = without_packages("--version")
    assert (done.returncode, done.stdout) == (0, f"pyspark-stream-connectors {connectors.__version__}\n")
