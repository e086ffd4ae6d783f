"""The fast path is taken where a check in another process has passed, with the library that the client has mapped."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import connectors
from connectors.kafka.native import client_extension, native_reason
from connectors.kafka.native.check import run_check, verdict_file
from connectors.kafka.native.library import library

needs_native = pytest.mark.skipif(bool(native_reason()), reason=native_reason() or "none")

MAPPED = """
import confluent_kafka.cimpl
from connectors.kafka.native.library import library
library()
print(len({line.split()[-1] for line in open("/proc/self/maps") if "librdkafka" in line}))
"""
WRITE_AND_READ = """
import pyarrow as pa
from connectors.kafka.native import native_reason
from connectors.kafka.sink.writer import close_sinks, produce_batches
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range
from connectors.kafka.schema import Columns
from connectors.kafka.options.client import ClientSettings
from connectors.testing.kafka.mock import MockKafka
with MockKafka() as mock:
    settings = ClientSettings((("bootstrap.servers", mock.endpoint),))
    batch = pa.RecordBatch.from_pydict({"value": [b"v" * 100], "partition": pa.array([0], pa.int32())})
    produce_batches([batch], Columns("t", False, True, False, False), settings)
    close_sinks()
    how = KafkaReadOptions(client=settings, group="g", poll_timeout_ms=10_000)
    rows = sum(batch.num_rows for batch in read_range(OffsetRange("t", 0, 0, 1), how))
print(rows, native_reason())
"""

READ_TIMES = """
from confluent_kafka import Producer
from connectors.kafka.options.source import KafkaReadOptions
from connectors.kafka.source.planning import OffsetRange
from connectors.kafka.source.reader import read_range
from connectors.kafka.options.client import ClientSettings
from connectors.testing.kafka.mock import MockKafka
with MockKafka() as mock:
    producer = Producer({"bootstrap.servers": mock.endpoint, "linger.ms": 500})
    for time in (1, 1002, 1003, 4):
        producer.produce("t", b"v", partition=0, timestamp=time)
    producer.flush(10)
    client = ClientSettings((("bootstrap.servers", mock.endpoint),))
    how = KafkaReadOptions(client=client, group="g", poll_timeout_ms=10_000)
    rows = [row for batch in read_range(OffsetRange("t", 0, 0, 4), how) for row in batch.to_pylist()]
times, types = [row["timestamp"].timestamp() * 1000 for row in rows], {row["timestampType"] for row in rows}
print([round(time) for time in times], types)
"""
CHECK_AGAIN = """
from connectors.kafka.native import native_reason
print(native_reason() or "taken")
"""
# Returns the offset of a record plus one as its time, of the type 1: mov rax, [rdi+56]; inc rax; mov [rsi], 1; ret.
OFFSET_AS_TIME = bytes.fromhex("488b4738 48ffc0 c70601000000 c3")


def copied_client(folder: Path) -> Path:
    """Copy confluent-kafka with its libraries; returns the copy of librdkafka."""
    package = client_extension().parent
    for each in (package, package.parent / "confluent_kafka.libs"):
        shutil.copytree(each, folder / each.name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy,) = (folder / "confluent_kafka.libs").glob("librdkafka-*.so*")
    return copy


def replace_code(copy: Path, function: str, code: bytes) -> None:
    """Replace the first bytes of a function in a copy of librdkafka."""
    address = ctypes.cast(getattr(library(), function), ctypes.c_void_p).value or 0
    old, whole = ctypes.string_at(address, 64), copy.read_bytes()
    assert whole.count(old) == 1
    copy.chmod(0o755)
    copy.write_bytes(whole.replace(old, code + old[len(code) :]))


def run(program: str, folder: Path, **environment: str) -> str:
    """Return what a program prints.

    It has a folder before all others to import from, and another for temporary files.
    """
    return run_both(program, folder, **environment)[0]


def run_both(program: str, folder: Path, **environment: str) -> tuple[str, str]:
    """Return what such a program prints, and what it logs."""
    (folder / "tmp").mkdir(exist_ok=True)
    own = {"PYTHONPATH": str(folder), "TMPDIR": str(folder / "tmp"), "CONNECTORS_NO_FAST_PATH": "", **environment}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | own, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip(), ran.stderr


@needs_native
def test_the_library_that_the_client_has_mapped_is_called_and_no_other_that_is_named_alike(tmp_path: Path) -> None:
    copy = copied_client(tmp_path)
    shutil.copy(copy, copy.with_name("librdkafka-00000000.so.1"))
    assert run(MAPPED, tmp_path) == "1"


@needs_native
def test_a_client_that_crashes_on_the_fast_path_leaves_the_worker_alive_on_the_plain_one(tmp_path: Path) -> None:
    copy = copied_client(tmp_path)
    replace_code(copy, "rd_kafka_produce_batch", b"\x0f\x0b")  # ud2: the function ends its process by SIGILL
    assert run(WRITE_AND_READ, tmp_path) == "1 the check ended with -4"
    # Nothing of it is noted, and a note in a folder that others can write to counts for nothing.
    (folder,) = (tmp_path / "tmp").glob("pyspark-stream-connectors-*")
    assert list(folder.iterdir()) == []


@needs_native
def test_the_place_of_the_time_is_read_only_with_versions_that_were_checked(tmp_path: Path) -> None:
    # The function says the same as the place for the first and the last record, and something else between them.
    copy = copied_client(tmp_path)
    replace_code(copy, "rd_kafka_message_timestamp", OFFSET_AS_TIME)
    times, logged = run_both(READ_TIMES, tmp_path)
    assert times == "[1, 1002, 1003, 4] {0}"
    assert "KAFKA_CLIENT_NOT_CHECKED" not in logged
    replace_code(copy, "rd_kafka_version", b"\xb8\xff\x00\x63\x02\xc3")  # mov eax, 0x026300ff; ret
    times, logged = run_both(READ_TIMES, tmp_path)
    assert times == "[1, 2, 3, 4] {0}"
    assert logged.count("[KAFKA_CLIENT_NOT_CHECKED]") == 1
    assert "librdkafka 2.99.0" in logged


@needs_native
def test_a_change_of_a_module_that_passes_addresses_is_checked_again(tmp_path: Path) -> None:
    ours, copy = Path(connectors.__file__).parent, tmp_path / "connectors"
    shutil.copytree(ours, copy, ignore=shutil.ignore_patterns("__pycache__"))
    modules = [path for path in (copy / "kafka").rglob("*.py") if "\nimport ctypes\n" in path.read_text()]
    assert copy / "kafka/native/library.py" in modules
    checked: set[Path] = set()
    for module in [None, *modules]:
        if module is not None:
            with module.open("a") as source:
                source.write("# changed\n")
        assert run(CHECK_AGAIN, tmp_path, PYTHONSAFEPATH="1") == "taken"
        notes = {*(tmp_path / "tmp").glob("pyspark-stream-connectors-*/*")}
        assert len(notes - checked) == 1, f"no check after a change of {module}"
        checked = notes


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
