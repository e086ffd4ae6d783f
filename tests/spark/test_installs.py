"""An install of the pack leaves the Spark that is there as it is, whether pip knows of that Spark or not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("purelib"))
SPARKS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
OF_SPARK = ("pyspark", "py4j")
OWN = "pyspark-stream-connectors"
ONE_ROW = """
from pathlib import Path
import pyspark
from pyspark.sql import SparkSession
from connectors import register
from connectors.testing.kinesis import KinesisServer

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
with KinesisServer() as server:
    server.create_stream("orders")
    server.put("orders", [("key", b"the row")])
    options = {"streamName": "orders", "region": "us-east-1", "endpointUrl": server.url}
    options |= {"awsAccessKey": "test", "awsSecretKey": "test"}
    rows = spark.read.format("kinesis").options(**options).load().collect()
spark.stop()
print(Path(pyspark.__file__).parent.parent, *[bytes(row.data).decode() for row in rows], sep="|")
"""


def uv(*arguments: str | Path) -> str:
    """Run uv without a registry; return what it prints."""
    command = [sys.executable, "-m", "uv", "--offline", "--no-config", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wheel_of_spark(folder: Path, version: str) -> Path:
    """Write a wheel that has the name and the version of pyspark, and nothing else."""
    path = folder / f"pyspark-{version}-py3-none-any.whl"
    inside = f"pyspark-{version}.dist-info"
    with ZipFile(path, "w") as archive:
        archive.writestr(f"{inside}/METADATA", f"Metadata-Version: 2.1\nName: pyspark\nVersion: {version}\n")
        archive.writestr(
            f"{inside}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{inside}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the pack, beside each Spark that pip could bring."""
    folder = tmp_path_factory.mktemp("wheels")
    build = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    for version in SPARKS:
        wheel_of_spark(folder, version)
    return folder


class Environment:
    """An environment in which pip sees all that the pack needs, but for Spark.

    Args:
        folder: where it is made.
        wheels: what can be installed into it.
    """

    def __init__(self, folder: Path, wheels: Path) -> None:
        self.folder, self.wheels = folder, wheels
        self.python = folder / "bin" / "python"
        uv("venv", "--quiet", "--python", sys.executable, folder)
        site = folder / self.python.relative_to(folder).parents[1] / SITE.relative_to(sys.prefix)
        for path in SITE.glob("*.dist-info"):
            if not path.name.startswith((*OF_SPARK, "pyspark_stream_connectors")):
                shutil.copytree(path, site / path.name)

    def install(self, requirement: str) -> None:
        """Install a requirement from the wheels."""
        where = ("--no-index", "--find-links", self.wheels, "--python", self.python)
        uv("pip", "install", "--quiet", *where, requirement)

    def packages(self) -> dict[str, str]:
        """Return the versions of all packages by their names."""
        listed = json.loads(uv("pip", "list", "--format", "json", "--python", self.python))
        return {each["name"]: each["version"] for each in listed}


@pytest.fixture
def environment(tmp_path: Path, wheels: Path) -> Environment:
    return Environment(tmp_path / "environment", wheels)


@pytest.fixture
def pack(wheels: Path) -> Callable[[str], str]:
    """Return the requirement of the pack with an extra."""
    [wheel] = wheels.glob("pyspark_stream_connectors-*.whl")
    return lambda extra: f"{OWN}[{extra}] @ {wheel.as_uri()}"


@pytest.mark.parametrize("version", SPARKS)
def test_a_spark_of_pip_stays_as_it_is(environment: Environment, pack: Callable[[str], str], version: str) -> None:
    environment.install(f"pyspark=={version}")
    before = environment.packages()
    environment.install(pack("all"))
    after = environment.packages()
    pyspark = " -> ".join(each["pyspark"] for each in (before, after))
    sys.stdout.write(f"pyspark {pyspark}, {OWN} {before.get(OWN)} -> {after[OWN]}\n")
    assert before["pyspark"] == version
    assert {name: found for name, found in after.items() if name != OWN} == before


def test_a_spark_that_the_extra_brings_is_the_newest_where_there_is_none(
    environment: Environment, pack: Callable[[str], str]
) -> None:
    environment.install(pack("all,spark"))
    assert environment.packages()["pyspark"] == SPARKS[-1]


@pytest.mark.versions
@pytest.mark.guarantee
def test_a_spark_in_a_folder_stays_alone_and_is_read_with(
    environment: Environment, pack: Callable[[str], str], tmp_path: Path
) -> None:
    """As EMR and Databricks have it: on PYTHONPATH, and unknown to pip."""
    before = environment.packages()
    environment.install(pack("all"))
    assert environment.packages().keys() - before.keys() == {OWN}
    spark, others = tmp_path / "spark", tmp_path / "others"
    for folder in (spark, others):
        folder.mkdir()
    for path in SITE.iterdir():
        if path.name in OF_SPARK:
            (spark / path.name).symlink_to(path)
        elif path.suffix not in {".dist-info", ".pth"}:
            (others / path.name).symlink_to(path)
    done = subprocess.run(
        [environment.python, "-c", ONE_ROW],
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name in {"PATH", "JAVA_HOME", "LANG"}},
            "PYTHONPATH": f"{spark}:{others}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(environment.python),
            "PYSPARK_DRIVER_PYTHON": str(environment.python),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    where, *rows = done.stdout.strip().splitlines()[-1].split("|")
    assert (Path(where), rows) == (spark, ["the row"])
    assert environment.packages().keys() - before.keys() == {OWN}
