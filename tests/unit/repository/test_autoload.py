"""The modules in which Spark finds the formats by itself: what its look-up makes of them, also among neighbours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import connectors
from connectors.cli.doctor.machine import check_workers
from connectors.core.formats import install_command

ROOT = Path(__file__).parents[3]
AUTOLOAD = ROOT / "autoload"
FORMATS = {"kafka_py": "kafka", "kinesis": "kinesis", "pubsub": "pubsub"}
SOURCES = {
    "kafka_py": "connectors.kafka.datasource.KafkaDataSource",
    "kinesis": "connectors.kinesis.datasource.KinesisDataSource",
    "pubsub": "connectors.pubsub.datasource.PubSubDataSource",
}

# What Spark runs in a process of its own, with what it answers read as Spark reads it.
LOOK_UP = """
import io, json, pickle, sys
from pyspark.sql.worker import lookup_data_sources

answer = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), answer)
answer.seek(0)
read = lambda: answer.read(int.from_bytes(answer.read(4), "big"))
found = {}
for _ in range(int.from_bytes(answer.read(4), "big")):
    name = read().decode()
    found[name] = getattr(pickle.loads(read()), "connector", "")
print(json.dumps({"found": found, "imported": sorted(name for name in sys.modules if name.startswith("connectors"))}))
"""


def python(program: str, *folders: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a program that sees these folders."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **changes}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False, cwd=folders[0])


def looked_up(*folders: Path) -> dict[str, Mapping[str, str]]:
    done = python(LOOK_UP, *folders)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_spark_finds_each_format_and_imports_nothing_of_the_pack() -> None:
    seen = looked_up(AUTOLOAD)
    assert seen["found"] == FORMATS
    assert seen["imported"] == []


def test_there_is_a_module_for_each_source_of_the_pack_and_no_other() -> None:
    modules = {path.stem.removeprefix("pyspark_") for path in AUTOLOAD.glob("pyspark_*.py")}
    assert modules == set(FORMATS)
    readers = {each.parent.name for each in (ROOT / "connectors").glob("*/datasource.py")}
    assert readers - {"core"} == set(FORMATS.values())


@pytest.mark.parametrize("name", ["pyspark_broken", "pyspark_zz_broken"], ids=["before ours", "after ours"])
def test_a_broken_neighbour_ends_sparks_look_up_and_the_doctor_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('no licence')")
    done = python(LOOK_UP, tmp_path, AUTOLOAD)
    assert (done.returncode, "no licence" in done.stderr) == (1, True)
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": f"{tmp_path}{os.pathsep}{AUTOLOAD}"}
    [bad] = [each for each in check_workers(environ) if each.code == "NEIGHBOUR_BROKEN"]
    assert name in bad.seen
    assert "pyspark_pubsub" not in bad.seen


def test_using_one_makes_the_source_of_the_pack() -> None:
    program = (
        "import importlib, json; made = {name: importlib.import_module('pyspark_' + name).DefaultSource(options={}) "
        f"for name in {list(FORMATS)}}}; "
        "print(json.dumps({name: type(s).__module__ + '.' + type(s).__qualname__ for name, s in made.items()}))"
    )
    done = python(program, AUTOLOAD)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == SOURCES


def test_without_what_a_source_needs_use_says_how_to_install_it() -> None:
    missing = (
        "import importlib.util as util; there = util.find_spec; "
        "util.find_spec = lambda name: None if name == 'confluent_kafka' else there(name); "
    )
    done = python(missing + "import pyspark_kafka_py as m; m.DefaultSource({})", AUTOLOAD)
    assert "[PACKAGES_MISSING] These packages are not installed: confluent_kafka (the format kafka_py)" in done.stderr
    assert install_command("kafka") in done.stderr


def test_without_the_pack_spark_still_finds_them_and_use_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "connectors.py").write_text("")  # hides the pack, as a file of the user's would
    assert looked_up(tmp_path, AUTOLOAD)["found"] == FORMATS
    done = python("import pyspark_pubsub as m; m.DefaultSource({})", tmp_path, AUTOLOAD)
    assert "[AUTOLOAD_SOURCE_UNAVAILABLE] The format pubsub cannot be loaded" in done.stderr
    assert "pyspark-stream-connectors[pubsub]" in done.stderr


def test_it_has_the_version_of_the_pack() -> None:
    text = (AUTOLOAD / "stream_connectors_autoload" / "__init__.py").read_text()
    assert f'__version__ = "{connectors.__version__}"' in text
