"""The fast path is taken where a check in another process has passed, with the library that the client has mapped."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.kafka.client.fast_path import native_reason, run_check, verdict_file
from connectors.kafka.client.librdkafka import client_extension, library

needs_native = pytest.mark.skipif(bool(native_reason()), reason=native_reason() or "none")

MAPPED = """
import confluent_kafka.cimpl
from connectors.kafka.client.librdkafka import library
library()
print(len({line.split()[-1] for line in open("/proc/self/maps") if "librdkafka" in line}))
"""
WRITE_AND_READ = """
import pyarrow as pa
from connectors.kafka.client.fast_path import native_reason
from connectors.kafka.sink.writer import close_sinks, produce_batches
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import ReadSettings, read_range
from connectors.kafka.sink.rows import Columns
from connectors.kafka.options.client import ClientSettings
from connectors.testing.kafka.mock import MockKafka
with MockKafka() as mock:
    settings = ClientSettings((("bootstrap.servers", mock.endpoint),))
    batch = pa.RecordBatch.from_pydict({"value": [b"v" * 100], "partition": pa.array([0], pa.int32())})
    produce_batches([batch], Columns("t", False, True, False, False), settings)
    close_sinks()
    how = ReadSettings(settings, "g", False, True, 10.0)
    rows = sum(batch.num_rows for batch in read_range(OffsetRange("t", 0, 0, 1), how))
print(rows, native_reason())
"""


def copied_client(folder: Path) -> Path:
    """Copy confluent-kafka with its libraries; returns the copy of librdkafka."""
    package = client_extension().parent
    for each in (package, package.parent / "confluent_kafka.libs"):
        shutil.copytree(each, folder / each.name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy,) = (folder / "confluent_kafka.libs").glob("librdkafka-*.so*")
    return copy


def run(program: str, folder: Path, **environment: str) -> str:
    """What a program prints that has a folder before all others to import from, and another for temporary files."""
    (folder / "tmp").mkdir(exist_ok=True)
    own = {"PYTHONPATH": str(folder), "TMPDIR": str(folder / "tmp"), "CONNECTORS_NO_FAST_PATH": "", **environment}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | own, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@needs_native
def test_the_library_that_the_client_has_mapped_is_called_and_no_other_that_is_named_alike(tmp_path: Path) -> None:
    copy = copied_client(tmp_path)
    shutil.copy(copy, copy.with_name("librdkafka-00000000.so.1"))
    assert run(MAPPED, tmp_path) == "1"


@needs_native
def test_a_client_that_crashes_on_the_fast_path_leaves_the_worker_alive_on_the_plain_one(tmp_path: Path) -> None:
    copy = copied_client(tmp_path)
    address = ctypes.cast(library().rd_kafka_produce_batch, ctypes.c_void_p).value or 0
    code, whole = ctypes.string_at(address, 64), copy.read_bytes()
    assert whole.count(code) == 1
    copy.chmod(0o755)
    copy.write_bytes(whole.replace(code, b"\x0f\x0b" + code[2:]))  # ud2: the function ends its process by SIGILL
    assert run(WRITE_AND_READ, tmp_path) == "1 the check ended with -4"
    # Nothing of it is noted, and a note in a folder that others can write to counts for nothing.
    (folder,) = (tmp_path / "tmp").glob("pyspark-stream-connectors-*")
    assert list(folder.iterdir()) == []


@needs_native
def test_a_passed_check_is_noted_for_the_processes_of_this_user(tmp_path: Path) -> None:
    assert run(WRITE_AND_READ, tmp_path) == "1"
    (note,) = (tmp_path / "tmp").glob("pyspark-stream-connectors-*/*")
    noted = note.stat()
    assert run(WRITE_AND_READ, tmp_path) == "1"
    assert note.stat().st_mtime_ns == noted.st_mtime_ns, "the second process has not checked"
    assert note.parent.stat().st_mode & 0o777 == 0o700


def test_a_note_is_trusted_only_in_a_folder_that_no_other_user_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    note = verdict_file("versions")
    assert note is not None
    assert verdict_file("other versions") != note
    note.parent.chmod(0o777)
    assert verdict_file("versions") is None
    note.parent.rmdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    note.parent.symlink_to(tmp_path / "elsewhere")
    assert verdict_file("versions") is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("pass", ""),
        ("raise ValueError('other records came back')", "the check ended with 1: ValueError: other records came back"),
        ("import os; os.abort()", "the check ended with -6"),
        ("import time; time.sleep(60)", "TimeoutExpired: the check did not end in time, or could not be started"),
    ],
)
def test_a_check_that_fails_crashes_or_hangs_is_a_reason_against_the_fast_path(program: str, reason: str) -> None:
    assert run_check([sys.executable, "-c", program], seconds=5) == reason


@pytest.mark.parametrize("text", ["1", "true"])
def test_one_environment_variable_switches_the_fast_path_off(tmp_path: Path, text: str) -> None:
    assert run(WRITE_AND_READ, tmp_path, CONNECTORS_NO_FAST_PATH=text) == "1 CONNECTORS_NO_FAST_PATH is set"
