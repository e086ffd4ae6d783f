"""Where an extra is not installed, whatever needs it says which one, and how to install it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from connectors.core.extras import extra_imports, packages_missing

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
CONNECTORS = {"kafka": "kafka_py", "kinesis": "kinesis", "pubsub": "pubsub"}
WITHOUT = """
import importlib, sys
from importlib.abc import MetaPathFinder

class Nothing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
"""
"""The modules that the first argument names are not installed."""
SOURCES = """
from connectors.formats import data_sources
for source in data_sources():
    try:
        source({})
        print(source.name(), "is there")
    except Exception as error:
        print(source.name(), error)
"""
IMPORT = """
try:
    importlib.import_module(sys.argv[2])
except ModuleNotFoundError as error:
    print(error)
"""


def run(code: str, missing: str, *more: str) -> list[str]:
    command = [sys.executable, "-c", WITHOUT + code, missing, *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.splitlines()


def said(missing: str, where: str, extra: str) -> str:
    return (
        f"[PACKAGES_MISSING] not installed: {missing} ({where}). "
        f"pip install 'pyspark-stream-connectors[{extra}]', here and on every executor."
    )


def test_a_format_without_its_extra_says_so_and_the_others_work() -> None:
    """As after an install of the extra kafka alone; such a format was an error of `register`."""
    assert run(SOURCES, "grpc,grpc_status,google.auth,google.protobuf,xxhash,boto3,botocore,h2,msgspec") == [
        "kafka_py is there",
        "kinesis " + said("boto3, botocore, h2, msgspec, xxhash", "the format kinesis", "kinesis"),
        "pubsub " + said("grpc, grpc_status, google.auth, google.protobuf, xxhash", "the format pubsub", "pubsub"),
    ]
    assert run(SOURCES, "confluent_kafka")[0] == "kafka_py " + said("confluent_kafka", "the format kafka_py", "kafka")


@pytest.mark.parametrize(
    ("missing", "module", "where", "extra"),
    [
        ("numpy", "connectors.kafka.reader", "the format kafka_py", "kafka"),
        ("numpy", "connectors.kafka.writer", "the format kafka_py", "kafka"),
        ("msgspec", "connectors.kinesis.writer", "the format kinesis", "kinesis"),
        ("xxhash", "connectors.pubsub.reader", "the format pubsub", "pubsub"),
        ("numpy", "connectors.pubsub.writer", "the format pubsub", "pubsub"),
        ("xxhash", "connectors.spool", "a spool", "pubsub"),
        ("xxhash", "connectors.executors", "a spool", "pubsub"),
        ("google.protobuf", "connectors.protobuf", "connectors.protobuf", "protobuf"),
    ],
)
def test_an_import_that_needs_an_extra_says_which(missing: str, module: str, where: str, extra: str) -> None:
    """So does a worker on another machine that has not all that the driver has."""
    assert run(IMPORT, missing, module) == [said(missing, where, extra)]


def test_a_module_of_the_pack_itself_is_no_matter_of_an_extra() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match=r"^No module named 'connectors\.nothing'$"),
        extra_imports("kafka", "x"),
    ):
        importlib.import_module("connectors.nothing")


@pytest.mark.parametrize("connector", CONNECTORS)
def test_what_a_format_needs_is_what_its_extra_brings(connector: str) -> None:
    checks = importlib.import_module(f"connectors.{connector}.checks")
    assert CONNECTORS[connector] == checks.FORMAT
    brought = {re.split(r"[<>=]", line)[0] for line in EXTRAS[connector]}
    homes = packages_distributions()
    homes |= {"google.auth": ["google-auth"], "google.protobuf": ["protobuf"]}
    needed = {homes[module][0] for module in checks.PACKAGES}
    with_others = {"google-cloud-pubsub", "google-api-core"}  # which bring grpcio-status
    optional = {"ptars", "h11"}  # there is a slower way; only the server for tests needs it
    assert needed - {"botocore", "grpcio-status"} == brought - with_others - optional


def test_every_extra_that_an_error_names_exists() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "connectors").rglob("*.py"))
    named = set(re.findall(r"pyspark-stream-connectors\[(\w+)\]", text)) | set(
        re.findall(r'(?:extra_imports\(|packages\(steps, |extra=)"(\w+)"', text)
    )
    assert named | {"all"} == EXTRAS.keys()
    assert str(packages_missing(["x"], "y", "kafka")) == said("x", "y", "kafka")
