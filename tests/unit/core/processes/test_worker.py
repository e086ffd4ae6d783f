"""What a task does once in its process."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from typing import Any

import pytest

from connectors.kafka.datasource import KafkaBatchReader, KafkaStreamReader
from connectors.kinesis.datasource import KinesisBatchReader, KinesisStreamReader
from connectors.pubsub.datasource import PubSubBatchReader, PubSubStreamReader

PROGRAM = """
import gc
from connectors.core.processes.worker import settle_worker
settle_worker()
first = gc.get_freeze_count()
class Ring: pass
ring = Ring(); ring.itself = ring; del ring
settle_worker()
print(first > 0, gc.get_freeze_count() == first, gc.collect() > 0)
"""


def test_a_worker_is_settled_once_and_what_its_tasks_leave_is_still_collected() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["True", "True", "True"]


SINK = """
import os, socket, sys
from connectors.core.processes.worker import _connections, settle_sink
theirs = int(sys.argv[1])
before = len(os.listdir("/proc/self/fd"))
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
settle_sink()
settle_sink()
leaked = len(os.listdir("/proc/self/fd")) - before
blocks = [bytes(10 << 20) for _ in range(3)]
for number, block in enumerate(blocks):
    blocks[number] = bytearray(block)
before = resident()
del blocks, block
print(theirs in _connections(), before - resident() < 5, leaked, flush=True)
connection = socket.socket(fileno=theirs)
connection.sendall(connection.recv(5))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_sink_s_worker_keeps_its_connections_and_its_memory() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        jvm = socket.create_connection(server.getsockname())
        worker, _ = server.accept()
        program = subprocess.Popen(
            [sys.executable, "-c", SINK, str(worker.fileno())],
            pass_fds=[worker.fileno(), server.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        worker.close()
        with jvm, program:
            jvm.sendall(b"rows\n")
            assert jvm.recv(5) == b"rows\n"
            jvm.shutdown(socket.SHUT_WR)
            assert jvm.recv(1) == b"", "nothing else holds the connection open"
            assert program.communicate(timeout=60)[0].split() == ["True", "True", "0"]


needs_quick_ack = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the kernel has no TCP_QUICKACK")


def acknowledged(program: str, kind: Any = KafkaStreamReader) -> str:
    """What a program prints that gets a reader, and the descriptor of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        worker, _ = server.accept()
        with worker:
            arguments = [pickle.dumps(kind({"option": "value"})).hex(), str(worker.fileno())]
            command = [sys.executable, "-c", program, *arguments]
            return subprocess.run(
                command, pass_fds=[worker.fileno()], capture_output=True, text=True, check=True, timeout=60
            ).stdout


READER = """
import pickle, socket, sys
reader, theirs = pickle.loads(bytes.fromhex(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)  # as after a task that sent rows
print(theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
pickle.loads(bytes.fromhex(sys.argv[1]))
options = (socket.TCP_QUICKACK, socket.TCP_NODELAY)
print(*(theirs.getsockopt(socket.IPPROTO_TCP, option) for option in options), reader._options)
"""
READERS = [
    KafkaStreamReader,
    KafkaBatchReader,
    KinesisStreamReader,
    KinesisBatchReader,
    PubSubStreamReader,
    PubSubBatchReader,
]


@needs_quick_ack
@pytest.mark.parametrize("kind", READERS)
def test_a_reader_that_comes_to_a_worker_has_all_sent_at_once_on_both_sides(kind: Any) -> None:
    assert acknowledged(READER, kind).split("\n", 1) == ["0", "1 1 {'option': 'value'}\n"]


REUSED = """
import os, pickle, socket, sys
first, last = sorted((int(sys.argv[2]), os.dup(int(sys.argv[2]))))
theirs = socket.socket(fileno=last)
pickle.loads(bytes.fromhex(sys.argv[1]))
os.dup2(os.open("/dev/null", os.O_RDONLY), first)
theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
pickle.loads(bytes.fromhex(sys.argv[1]))
print(theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
"""


@needs_quick_ack
def test_the_connection_is_still_found_when_the_number_of_its_first_descriptor_belongs_to_something_else() -> None:
    # Spark has three for it, and closes two of them after each task.
    assert acknowledged(REUSED) == "1\n"


HASTY = """
import os, pickle, socket, sys
theirs, pair = int(sys.argv[2]), [each.detach() for each in socket.socketpair()]
socket.setdefaulttimeout(5)  # of the user's own code, in the same worker
for _ in range(2):
    pickle.loads(bytes.fromhex(sys.argv[1]))
print(os.get_blocking(theirs), *map(os.get_blocking, pair))
"""


def test_connections_still_wait_for_their_data_where_sockets_of_the_process_have_a_timeout() -> None:
    assert acknowledged(HASTY) == "True True True\n"


WATCHED = """
import logging, pickle, sys
logging.basicConfig(stream=sys.stdout, format="%(message).18s", level="WARNING")
def watch(event, arguments):
    if event in ("os.listdir", "os.scandir") and str(arguments[0]) == "/proc/self/fd":
        raise RuntimeError("a hook of the user allows no such call")
sys.addaudithook(watch)
logging.raiseExceptions = False
print(pickle.loads(bytes.fromhex(sys.argv[1]))._options)
"""


def test_no_error_while_a_reader_is_unpickled_fails_its_task() -> None:
    said = acknowledged(WATCHED).splitlines()
    assert said[0] == "[WORKER_NOT_TUNED]"
    assert said[-1] == "{'option': 'value'}"


@needs_quick_ack
def test_one_environment_variable_leaves_a_worker_s_connection_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTORS_NO_FAST_PATH", "1")
    assert acknowledged(READER).split("\n", 1) == ["0", "0 0 {'option': 'value'}\n"]
