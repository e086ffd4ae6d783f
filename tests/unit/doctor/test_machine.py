"""The doctor finds what is wrong with the machine below Spark, and with a client of Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from connectors.core.diagnostics import Finding, Outcome
from connectors.doctor.environment import check_environment, check_machine, check_spark, spark_settings
from connectors.doctor.spark_workers import check_workers

ROOT = Path(__file__).parents[3]


def bad_of(environ: Mapping[str, str], host: str = "localhost", **settings: str) -> list[str]:
    """The codes of what is not ok; each has a fix."""
    found = list(
        check_machine(environ, {f"spark.local.{name}": value for name, value in settings.items()}, host=lambda: host)
    )
    assert all(each.fix for each in found if each.outcome is not Outcome.OK)
    return [each.code for each in found if each.code]


def test_a_machine_that_is_well_has_no_complaint(tmp_path: Path) -> None:
    assert bad_of({}, dir=str(tmp_path)) == []
    assert bad_of({"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(tmp_path / "not" / "yet")}) == []


def test_a_name_that_cannot_be_looked_up_is_reported_unless_spark_is_given_an_address() -> None:
    assert bad_of({}, host="no-such-machine.invalid") == ["HOST_NAME_UNKNOWN"]
    assert bad_of({"SPARK_LOCAL_IP": "127.0.0.1"}, host="no-such-machine.invalid") == []


@pytest.mark.parametrize("address", ["203.0.113.7", "no-such-machine.invalid"])
def test_an_address_that_is_another_machines_is_reported(address: str) -> None:
    assert bad_of({"SPARK_LOCAL_IP": address}) == ["LOCAL_ADDRESS_NOT_OURS"]


def test_a_folder_for_shuffles_that_cannot_be_written_to_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert bad_of({"SPARK_LOCAL_DIRS": f"{tmp_path},{file}"}) == ["LOCAL_DIR_NOT_WRITABLE"]
    assert bad_of({}, dir=str(file)) == ["LOCAL_DIR_NOT_WRITABLE"]
    assert bad_of({"SPARK_LOCAL_DIRS": str(tmp_path)}, dir=str(file)) == [], "the variable wins"


def test_a_folder_for_shuffles_without_room_is_reported(tmp_path: Path) -> None:
    environ = {"SPARK_LOCAL_DIRS": str(tmp_path)}
    [bad] = [each for each in check_machine(environ, {}, room=1 << 60) if each.code]
    assert (bad.code, bad.outcome) == ("LOCAL_DIR_FULL", Outcome.WARNING)


def test_a_proxy_that_takes_what_is_on_this_machine_is_reported(tmp_path: Path) -> None:
    here = {"SPARK_LOCAL_DIRS": str(tmp_path), "http_proxy": "http://proxy:3128"}
    assert bad_of(here) == ["PROXY_FOR_LOCAL"]
    assert bad_of({**here, "no_proxy": "example.com, localhost"}) == ["PROXY_FOR_LOCAL"]
    assert bad_of({**here, "no_proxy": "localhost,127.0.0.1"}) == []
    [fix] = [each.fix for each in check_machine({**here, "no_proxy": "example.com"}, {}) if each.code]
    assert fix == "export no_proxy=example.com,127.0.0.1,localhost"


CONNECT = """
from connectors.doctor.environment import check_connect
assert list(check_connect({})) == []
for each in check_connect({"SPARK_REMOTE": "sc://spark:15002/;token=hunter2"}):
    print(each.outcome, each.code, each.found)
"""


def test_a_client_of_connect_without_its_packages_is_reported_and_no_token_is_shown(tmp_path: Path) -> None:
    def said() -> str:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
        return subprocess.run(
            [sys.executable, "-c", CONNECT], capture_output=True, text=True, check=True, env=environ
        ).stdout

    (tmp_path / "pandas.py").touch()
    assert said().startswith("failed CONNECT_PACKAGES_MISSING")
    (tmp_path / "zstandard.py").touch()
    assert said().startswith("ok ")
    assert "spark:15002" in said()
    assert "hunter2" not in said()


def test_the_whole_examination_has_the_machine_in_it(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"spark.local.dir {tmp_path}/none/\n")
    environ = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": str(tmp_path / "absent")}
    environ.pop("SPARK_LOCAL_DIRS", None)
    assert spark_settings(environ)["spark.local.dir"] == f"{tmp_path}/none/"
    found = {each.check: each for each in check_environment(environ)}
    assert str(tmp_path) in found["local folder"].found
    assert "host name" in found


def shadowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    monkeypatch.chdir(folder)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return [
        each for each in check_workers({**kept, "PYSPARK_PYTHON": sys.executable}) if each.code == "PACKAGE_SHADOWED"
    ]


def test_a_program_of_the_users_with_the_name_of_a_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "google").mkdir()  # a folder without __init__.py hides nothing
    assert shadowed(tmp_path, monkeypatch) == []
    (tmp_path / "pyspark.py").write_text("print('my first stream')\n")
    [found] = shadowed(tmp_path, monkeypatch)
    assert found.outcome is Outcome.FAILURE
    assert str(tmp_path / "pyspark.py") in found.found


def test_a_setting_that_gives_the_workers_another_python_is_reported(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.pyspark.python /opt/python3.9\n")
    environ = {"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    assert [each.code for each in check_spark(environ) if each.code] == ["SPARK_PYTHON_SETTING"]
    assert [each.code for each in check_spark({**environ, "PYSPARK_PYTHON": "/opt/python3.9"}) if each.code] == []
