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

from connectors.core import formats
from connectors.core.formats import TESTED_PTARS, extra_imports, install_advice, install_command, packages_missing

ROOT = Path(__file__).parents[3]
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
from connectors.core.formats import CONNECTORS, data_source
for source in (data_source(each.package) for each in CONNECTORS):
    try:
        source({})
        print(source.name(), "is there")
    except Exception as error:
        print(source.name(), error)
"""
IMPORT = """
try:
    module, _, name = sys.argv[2].partition(":")
    getattr(importlib.import_module(module), name or "__name__")
except ModuleNotFoundError as error:
    print(error)
"""
WRITE = """
from connectors.kinesis.datasource import KinesisBatchWriter
try:
    KinesisBatchWriter(None, None).write(iter(()))
except ModuleNotFoundError as error:
    print(error)
"""
READERS = """
import connectors.kafka.datasource, connectors.kinesis.datasource, connectors.pubsub.datasource
heavy = {"compute", "ledger", "sink"}
print(*[name for name in sys.modules if name.startswith(("connectors.", "pyarrow.")) and heavy & set(name.split("."))])
"""
OPEN = """
from connectors.spool.ledger.segment_log import Manifest, SegmentEntry
from connectors.spool.store.local import LocalStore
store = LocalStore(sys.argv[2], "0" * 16)
manifest = Manifest.of([SegmentEntry("f", 0, 0, 3, "digest", times, 3, 30) for times in (None, (1, 2))])
manifest.write(store, "s", "1-0")
Manifest.read(store, "s", "1-0", manifest.digest)
print("pyarrow.compute" in sys.modules)
"""


def run(code: str, missing: str, *more: str) -> list[str]:
    command = [sys.executable, "-c", WITHOUT + code, missing, *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.splitlines()


def said(missing: str, where: str, extra: str) -> str:
    advice = f"Install the extra {extra}: {install_command(extra)}, here and on every executor."
    return f"[PACKAGES_MISSING] These packages are not installed: {missing} ({where}). {advice}"


def test_a_format_without_its_extra_says_so_and_the_others_work() -> None:
    """As after an install of the extra kafka alone; such a format was an error of `register`."""
    assert run(SOURCES, "grpc,grpc_status,google.auth,google.protobuf,xxhash,botocore,h2,msgspec") == [
        "kafka_py is there",
        "kinesis " + said("botocore, h2, msgspec, xxhash", "the format kinesis", "kinesis"),
        "pubsub "
        + said("grpc, grpc_status, google.auth, google.protobuf, msgspec, xxhash", "the format pubsub", "pubsub"),
    ]
    assert run(SOURCES, "confluent_kafka")[0] == "kafka_py " + said("confluent_kafka", "the format kafka_py", "kafka")


@pytest.mark.parametrize(
    ("missing", "module", "where", "extra"),
    [
        ("numpy", "connectors.kafka.datasource", "the format kafka_py", "kafka"),
        ("numpy", "connectors.kinesis.datasource", "the format kinesis", "kinesis"),
        ("xxhash", "connectors.pubsub.datasource", "the format pubsub", "pubsub"),
        ("numpy", "connectors.pubsub.datasource", "the format pubsub", "pubsub"),
        ("xxhash", "connectors.spool:stats", "a spool", "spool"),
        ("numpy", "connectors.spool:SpoolStreamReader", "a spool", "spool"),
        ("xxhash", "connectors.executors", "a spool", "spool"),
        ("google.protobuf", "connectors.protobuf", "connectors.protobuf", "protobuf"),
    ],
)
def test_an_import_that_needs_an_extra_says_which(missing: str, module: str, where: str, extra: str) -> None:
    """So does a worker on another machine that has not all that the driver has."""
    assert run(IMPORT, missing, module) == [said(missing, where, extra)]


def test_a_task_of_a_sink_says_which_extra_it_needs() -> None:
    """Readers do without the packages that only the sink uses, so they are missed where rows are written."""
    assert run(WRITE, "msgspec") == [said("msgspec", "the format kinesis", "kinesis")]


def test_planners_and_tasks_of_readers_import_no_sink_no_ledger_and_no_functions_of_arrow() -> None:
    """A stream has four such processes before its first row, and what they import is most of their start."""
    assert run(READERS, "nothing") == [""]


def test_a_spool_is_opened_without_functions_of_arrow(tmp_path: Path) -> None:
    """Their import takes as long as reading the manifests of a hundred thousand segments."""
    assert run(OPEN, "nothing", str(tmp_path)) == ["False"]


def test_a_module_of_the_pack_itself_is_no_matter_of_an_extra() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match=r"^No module named 'connectors\.nothing'$"),
        extra_imports("kafka", "x"),
    ):
        importlib.import_module("connectors.nothing")


NO_SPARK = """
import connectors
def no_spark():
    connectors.register(None)
for action in (no_spark, lambda: importlib.import_module("connectors.protobuf")):
    try:
        action()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_without_spark_the_error_says_both_ways_to_have_one() -> None:
    for line, where in zip(run(NO_SPARK, "pyspark"), ("register", "connectors.protobuf"), strict=True):
        assert line.startswith(
            f"ConnectorError [SPARK_MISSING] This Python cannot import Spark: {sys.executable} has no module"
        )
        assert f"({where})" in line
        assert "put Spark's folder on PYTHONPATH" in line
        assert line.endswith(install_advice("spark"))


READ = """
import logging
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
sys.path[:0] = sys.argv[2:]

import pyarrow as pa
from google.protobuf import timestamp_pb2
from connectors.protobuf.schema.descriptors import class_descriptor_set
from connectors.protobuf.options import ProtobufOptions
from connectors.protobuf.worker import DecodeCall, EncodeCall, Engine
from connectors.pubsub.source.records import make_decoder
from connectors.pubsub.client.client import wire_message

response = wire_message("StreamingPullResponse")()
response.received_messages.add(ack_id="a").message.message_id = "7"
for _ in range(2):
    decoder = make_decoder()
    print(decoder.is_fast, decoder.decode([response.SerializeToString()]).rows.column("messageId").to_pylist())
kind = timestamp_pb2.Timestamp
column = pa.array([kind(seconds=5).SerializeToString()] * 1000, pa.binary())
for engine in (Engine.AUTO, Engine.AUTO, Engine.PYTHON, Engine.FAST):
    common = class_descriptor_set(kind.DESCRIPTOR), kind.DESCRIPTOR.full_name, ProtobufOptions()
    try:
        structs = DecodeCall(*common, None, engine)(column)
        print(engine, structs[999].as_py(), EncodeCall(*common, engine)(structs).equals(column))
    except Exception as error:
        print(error)
print("ptars" in sys.modules)
"""


@pytest.mark.parametrize("missing", ["ptars", ""], ids=["absent", "another version"])
def test_without_a_tested_ptars_protobuf_reads_and_one_line_says_so(missing: str, tmp_path: Path) -> None:
    metadata = tmp_path / "ptars-0.0.26.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: ptars\nVersion: 0.0.26\n")
    why = "ptars is not installed" if missing else "ptars 0.0.26 is installed, not the tested 0.0.25"
    slower = f"by protobuf, which is several times slower, with the same result: {why}. {install_advice('fast')}"
    other = f"{install_advice('fast')} Or let engine be auto or python."
    values = "{'seconds': 5, 'nanos': None} True"
    assert run(READ, missing, str(tmp_path)) == [
        f"[FAST_DECODER_NOT_USED] Messages of Pub/Sub are read {slower}",
        *["False ['7']"] * 2,
        f"[FAST_DECODER_NOT_USED] Large batches of from_protobuf and to_protobuf are decoded and encoded {slower}",
        f"auto {values}",
        f"auto {values}",
        f"python {values}",
        f"[PROTOBUF_ENGINE] ptars cannot be used: {why} (engine=fast). {other}",
        "False",
    ]


def test_without_ptars_the_protobuf_functions_behave_as_with_it() -> None:
    behaviours = [str(path) for path in sorted((ROOT / "tests/unit/protobuf").glob("test_behaviours_*.py"))]
    code = "import pytest; sys.exit(pytest.main([*sys.argv[2:], '-q', '-p', 'no:cacheprovider', '-k', 'upb or auto']))"
    last = run(code, "ptars", *behaviours, str(ROOT / "tests/unit/protobuf/test_golden.py"))[-1]
    assert re.match(r"\d{3,} passed, \d+ deselected", last), last


def test_the_doctor_warns_that_fetchers_are_slower_without_ptars() -> None:
    code = """
from itertools import islice
from connectors.core.formats import connector_of
from connectors.cli.doctor import check_source
for found in islice(check_source(connector_of("pubsub"), {}, {}), 2):
    print(found.check, found.outcome, found.code, found.fix)
"""
    assert run(code, "ptars") == [
        "packages ok  ",
        f"fast decoder warning FAST_DECODER_NOT_USED {install_advice('fast')}",
    ]


def test_the_extra_fast_brings_a_tested_ptars() -> None:
    assert EXTRAS["fast"] in [[f"ptars=={version}"] for version in TESTED_PTARS]
    assert not [line for name, lines in EXTRAS.items() if name != "fast" for line in lines if "ptars" in line]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_what_a_format_needs_is_what_its_extra_brings(connector: str) -> None:
    [known] = [each for each in formats.CONNECTORS if each.package == connector]
    assert CONNECTORS[connector] == known.format
    brought = {re.split(r"[\[<>=]", line)[0] for line in EXTRAS[connector]}
    homes = packages_distributions()
    homes |= {
        "google.auth": ["google-auth"],
        "google.protobuf": ["protobuf"],
        "google.rpc": ["googleapis-common-protos"],
    }
    assert {homes[module][0] for module in known.needs} == brought


def test_every_extra_that_an_error_names_exists() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "connectors").rglob("*.py"))
    named = set(re.findall(r"install_(?:command|advice)\(['\"](\w+)['\"]\)", text)) | set(
        re.findall(
            r"(?:extra_imports\(|connector_named\(|packages_missing\(\[PANDAS\], where, |extra="
            r"|['\"](?:this|the) command[ a-z]*['\"], )"
            r"['\"]([\w,]+)['\"]",
            text,
        )
    )
    named = {each for names in named for each in names.split(",")}
    assert named | {"all"} == EXTRAS.keys()
    assert str(packages_missing(["x"], "y", "kafka")) == said("x", "y", "kafka")
