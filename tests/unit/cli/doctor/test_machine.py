"""The doctor finds what is broken on a machine: each thing is broken here on purpose."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from connectors.cli.doctor.machine import check_machine, check_workers
from connectors.core.diagnostics import Finding, Outcome


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
