"""A process that has imported PySpark and forks reader processes, since imports are most of a reader's start.

Spark starts ``python -m pyspark.sql.streaming.python_streaming_source_runner`` for each stream. A forked process runs
the same module as its ``__main__``, with the environment, the folder, the import path and the pipes of such a start.
The process also imports the packages of others that our sources use; a reader imports the modules of its source itself.
Measured: 0.47 of the 0.66 s of processor time of the start of a reader of Kinesis.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

from connectors.core.processes.interpreter import python_command
from tests.support.spark_protocol.errors import ProtocolError
from tests.support.spark_protocol.system import child_environment

__all__ = ["ForkedProcess", "fork_reader"]

_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_IMPORTED = "pyspark.sql.worker.plan_data_source_read"
"""It imports all that the runner does; the runner itself is first imported as a reader's ``__main__``."""
_PACKAGES = (
    "pyarrow.compute",
    "msgspec",
    "xxhash",
    "botocore.auth",
    "botocore.client",
    "botocore.session",
    "h2.connection",
    "grpc",
    "google.protobuf.descriptor_pb2",
    "google.protobuf.text_format",
)
"""What our sources use of other packages, where it is installed; none of them starts a thread when it is imported."""
_LONGEST_ORDER = 1 << 17
"""Bytes of an order; Linux takes no longer environment string either."""


class ForkedProcess:
    """A reader process, with the methods and attributes of `subprocess.Popen` that its user needs."""

    def __init__(self, template: _Template, environment: Mapping[str, str]) -> None:
        self._template = template
        self.returncode: int | None = None
        self._lock = threading.Lock()
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        self.stdin: IO[bytes] = os.fdopen(write_in, "wb")
        self.stdout: IO[bytes] = os.fdopen(read_out, "rb")
        try:
            order = {"environment": dict(environment), "folder": os.getcwd()}  # noqa: PTH109 - as a text
            self.pid = int(template.ask(order, [read_in, write_out])["pid"])
        except BaseException:
            self.stdin.close()
            self.stdout.close()
            raise
        finally:
            os.close(read_in)
            os.close(write_out)
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code.

        Raises:
            subprocess.TimeoutExpired: it runs on after so many seconds.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(_RUNNER, timeout or 0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                waiting = select.poll()
                waiting.register(self._pidfd, select.POLLIN)
                if waiting.poll(None if seconds is None else seconds * 1000):
                    self.returncode = int(self._template.ask({"wait": self.pid}, [])["code"])
                    os.close(self._pidfd)
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Template:
    """The process that forks, as its parent sees it; it ends when its parent does."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                python_command("-m", __name__, str(theirs.fileno())),
                env=child_environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def ask(self, order: Mapping[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Send an order and return its answer."""
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
                answer = self._control.recv(_LONGEST_ORDER)
            except OSError as error:
                raise ProtocolError(f"the process that forks readers does not answer: {error}") from error
        if not answer:
            raise ProtocolError(f"the process that forks readers ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process; its readers run on."""
        self._control.close()
        if self.owner == os.getpid():
            self.process.wait()


_templates: list[_Template] = []
_templates_lock = threading.Lock()


def fork_reader(environment: Mapping[str, str]) -> ForkedProcess:
    """Start PySpark's runner of stream readers in a process of its own.

    Args:
        environment: of the process.

    Raises:
        ProtocolError: the process that forks has ended, and so has another one.
    """
    template = _living_template()
    try:
        return ForkedProcess(template, environment)
    except ProtocolError:  # it was killed a moment ago
        return ForkedProcess(_living_template(instead_of=template), environment)


def _living_template(instead_of: _Template | None = None) -> _Template:
    with _templates_lock:
        last = _templates[0] if _templates else None
        if last is None or last is instead_of or last.owner != os.getpid() or last.process.poll() is not None:
            _templates[:] = [_Template()]
        return _templates[0]


def _become_reader(order: Mapping[str, Any], descriptors: list[int], own_paths: list[str]) -> None:
    """Make this process, which was forked, what a started one would be."""
    for target, descriptor in enumerate([descriptors[0], descriptors[1], descriptors[1]]):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    given = order["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = list(dict.fromkeys([*filter(None, given), *own_paths]))
    gc.unfreeze()


def _serve(control: socket.socket) -> bool:
    """Fork readers until the parent has ended; returns True in a process that was forked."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own_paths = [path for path in sys.path if path not in inherited]
    gc.freeze()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _LONGEST_ORDER, 2)
        if not data:
            return False
        order = json.loads(data)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            control.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_reader(order, descriptors, own_paths)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps({"pid": pid}).encode())


def main() -> None:
    """Serve the parent's orders, which come by the socket whose descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    importlib.import_module(_IMPORTED)
    for name in _PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    if _serve(control):
        sys.argv[1:] = []
        runpy.run_module(_RUNNER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
