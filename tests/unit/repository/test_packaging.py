"""The lock files follow pyproject.toml, and the wheel holds the package and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import connectors
from connectors.core.formats import PANDAS
from tools.audit import brought, goes_with_apache, license_of
from tools.lock import locked_extras

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
NEEDED = [
    *PYPROJECT["project"]["dependencies"],
    *dict.fromkeys(line for extra, lines in locked_extras().items() if extra != "all" for line in lines),
]
LOCKS = ["requirements.lock", "requirements-lowest.lock"]
SIDE_GROUPS = ["connect", "packaging", "site"]


def pins(lock: str) -> dict[str, str]:
    """The version of each package in a lock file; a file that pins one twice is refused."""
    found = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE)
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_has_every_requirement_at_a_version_that_fits(lock: str) -> None:
    locked = pins(lock)
    for line in (*NEEDED, *PYPROJECT["dependency-groups"]["dev"]):
        requirement = Requirement(line)
        assert requirement.specifier.contains(locked[requirement.name]), line


@pytest.mark.parametrize("group", SIDE_GROUPS)
def test_side_lock_has_its_group_and_nothing_that_is_beside_it(group: str) -> None:
    locked = pins(f"requirements-{group}.lock")
    for line in PYPROJECT["dependency-groups"][group]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(locked[requirement.name]), line
    assert not set(locked) & set(pins("requirements.lock"))


@pytest.mark.parametrize("lock", [*LOCKS, *(f"requirements-{group}.lock" for group in SIDE_GROUPS)])
def test_lock_has_a_hash_for_every_package_and_names_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text()
    for entry in re.split(r"\n(?=\S)", text):
        assert entry.startswith("#") or "--hash=sha256:" in entry
    assert not re.search(r"^\s*(-i|-f|--(?!hash))", text, re.MULTILINE)
    assert "://" not in text


def test_lowest_lock_has_the_lower_bounds() -> None:
    locked = pins("requirements-lowest.lock")
    for line in NEEDED:
        requirement = Requirement(line)
        bound = next(each for each in requirement.specifier if each.operator in {">=", "=="})
        exact = Requirement(f"{requirement.name}=={bound.version}")
        assert exact.specifier.contains(locked[requirement.name]), line


def test_all_is_the_sum_of_the_extras() -> None:
    named = Requirement(EXTRAS["all"][0])
    assert named.name == PYPROJECT["project"]["name"]
    assert named.extras == set(EXTRAS) - {"all", "pandas", "spark", "testing"}


def test_the_extra_pandas_brings_what_errors_name_and_the_tests_run_with() -> None:
    assert EXTRAS["pandas"] == [PANDAS]
    assert f'"{PANDAS}"' in (ROOT / "dev").read_text()
    assert PANDAS in PYPROJECT["dependency-groups"]["connect"]
    assert "pandas" not in {name for lock in LOCKS for name in pins(lock)}


def test_no_user_gets_the_sdk_of_pubsub_or_the_command_line_unasked() -> None:
    def names(*extras: str) -> set[str]:
        return set(brought("pyspark-stream-connectors", frozenset(extras)))

    assert "google-cloud-pubsub" not in names("all")
    assert "google-cloud-pubsub" in names("testing")
    assert not {"typer", "rich", "pydantic"} & names("pubsub", "kinesis", "kafka", "spool")
    assert {"typer", "rich", "pydantic"} <= names("all")


def test_spark_comes_only_to_who_asks_for_it() -> None:
    """Else pip would replace a platform's Spark, or put a second one beside it."""
    assert "pyspark" not in brought("pyspark-stream-connectors", frozenset({"all"}))
    assert "pyspark" in brought("pyspark-stream-connectors", frozenset({"spark"}))


def test_wheel_holds_the_package_its_types_mark_and_its_license_only(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path))
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == f"pyspark_stream_connectors-{connectors.__version__}-py3-none-any.whl"
    names = ZipFile(wheel).namelist()
    metadata = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"connectors", metadata}
    assert "connectors/py.typed" in names
    assert [name for name in names if name.endswith("/licenses/LICENSE")]
    data = {name for name in names if name.startswith("connectors/") and not name.endswith(".py")}
    descriptors, types = "connectors/protobuf/confluent/built_in.desc", "connectors/core/options/builders.pyi"
    assert data == {"connectors/py.typed", "connectors/core/errors/codes.toml", descriptors, types}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "connectors").rglob("*.py")}
    assert sources <= set(names)


def test_what_the_wheel_brings_fits_together_and_has_licenses_that_go_with_ours() -> None:
    found = brought("pyspark-stream-connectors", frozenset({"all", "spark", "testing"}))
    assert {"pyspark", "grpcio", "confluent-kafka", "botocore", "obstore", "prometheus-client"} <= set(found)
    assert "pytest" not in found
    assert [name for name, each in found.items() if not goes_with_apache(license_of(each))] == []
    check = [sys.executable, "-m", "uv", "pip", "check", "--python", sys.executable]
    done = subprocess.run(check, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("Apache-2.0 OR BSD-3-Clause", True),
        ("", False),
        ("MIT | License :: OSI Approved :: GNU General Public License v3 (GPLv3)", False),
        ("Custom", False),
    ],
)
def test_a_license_that_nobody_has_looked_at_is_found(text: str, good: bool) -> None:
    assert goes_with_apache(text) is good
