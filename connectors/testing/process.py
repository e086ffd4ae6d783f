"""Servers in processes of their own: start one and wait until it listens, and end when the parent is gone.

A server program prints ``listening on HOST:PORT`` when it is ready, and ends when its standard input ends: that is how
a child learns of the death of its parent, even by SIGKILL. As other processes can hold that pipe open by accident (a
fork of the parent), it also looks at its parent's pid from time to time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Self

from connectors.core.errors import ServiceUnavailableError
from connectors.core.processes.interpreter import python_command, python_environment
from connectors.core.processes.parent import ParentWatch
from connectors.core.processes.table import start_time

__all__ = [
    "ServerProcess",
    "announce",
    "aws_exports",
    "on_parent_death",
    "on_termination",
    "server_parser",
    "start_bound_process",
    "stop_event",
]

_READY = "listening on "
_LOOK_AT_PARENT_SECONDS = 0.5
_LOG_TAIL_BYTES = 4000
_PR_SET_PDEATHSIG = 1
_BY_KERNEL = "by-kernel"
_WATCHED = "watched"
_WATCH = "watch"


def server_parser(
    name: str,
    description: str,
    port: str = "the port; 0 takes a free one (default: 0)",
    package: str = "connectors.testing",
) -> ArgumentParser:
    """Return a parser of the arguments that every server program has.

    Args:
        name: of the server, as ``python -m PACKAGE NAME`` takes it.
        description: what it is.
        port: the help on ``--port``.
        package: whose program it is.
    """
    parser = ArgumentParser(prog=f"python -m {package} {name}", description=description)
    parser.add_argument("--port", type=int, default=0, help=port)
    parser.add_argument("--exit-with-parent", action="store_true", help="end when standard input ends")
    return parser


def announce(
    endpoint: str, addresses: Mapping[str, str] | None = None, exports: Mapping[str, str] | None = None
) -> None:
    """Say on standard output that this program listens.

    Below the first line stands what a shell can evaluate: comments, and commands that export variables.

    Args:
        endpoint: where.
        addresses: each address in the form that clients take, by its label.
        exports: variables of the environment that clients read, with their values.
    """
    labelled = [f"# {label}: {address}" for label, address in (addresses or {}).items()]
    exported = [f"export {name}={shlex.quote(value)}" for name, value in (exports or {}).items()]
    sys.stdout.write("\n".join([f"{_READY}{endpoint}", *labelled, *exported, ""]))
    sys.stdout.flush()


def aws_exports(variable: str, url: str, region: str = "us-east-1") -> dict[str, str]:
    """Return what AWS's clients read of the environment, for a server that takes any credentials."""
    return {variable: url, "AWS_REGION": region, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}


def on_termination(action: Callable[[], None]) -> None:
    """Call ``action`` in a thread, once, on SIGTERM or SIGINT; to be called by the main thread.

    In a thread, because a handler runs in the middle of what the main thread does: if that is about to wait for a
    `threading.Event`, it holds the lock of the event, and a handler that sets the event waits for itself.
    """
    reading, writing = os.pipe()

    def watch() -> None:
        os.read(reading, 1)
        action()

    threading.Thread(target=watch, name="termination-watch", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: os.write(writing, b"!"))


def on_parent_death(action: Callable[[], None]) -> None:
    """Call ``action`` in a thread, once, when standard input ends or the parent of this process is gone."""
    parent = ParentWatch()

    def watch() -> None:
        while not parent.is_gone():
            readable, _, _ = select.select([0], [], [], _LOOK_AT_PARENT_SECONDS)
            if readable and not os.read(0, 4096):
                break
        action()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def stop_event(*, with_parent: bool) -> threading.Event:
    """An event that SIGTERM and SIGINT set; to be called by the main thread of a server program.

    Args:
        with_parent: the end of standard input and the death of the parent set it too.
    """
    stopping = threading.Event()
    on_termination(stopping.set)
    if with_parent:
        on_parent_death(stopping.set)
    return stopping


def start_bound_process(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    by_kernel: bool = sys.platform == "linux",
) -> subprocess.Popen[bytes]:
    """Start a program that knows nothing of all this, in a process group of its own, bound to this one.

    The kernel of Linux kills it when the thread that calls this ends, however it ends: call it from the main thread.
    The child asks for that itself, between its start as this module and its becoming the program, so that no code of
    ours runs after a fork of a process that may have threads. Elsewhere a child of the program looks from time to time
    whether this process still runs.
    """
    way = _BY_KERNEL if by_kernel else _WATCHED
    launcher = python_command("-m", "connectors.testing.process", way, str(os.getpid()), *command)
    return subprocess.Popen(
        launcher,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=python_environment(),
        start_new_session=True,
    )


def _become(parent: int, command: list[str]) -> None:
    """Replace this program by ``command``, which the kernel kills when ``parent`` is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the parent is gone already")
    os.execv(command[0], command)  # noqa: S606 - the caller's own program


def _be_watched(parent: int, command: list[str]) -> None:
    """Replace this program by ``command``, beside a child that kills both when ``parent`` is gone."""
    watch = python_command("-m", "connectors.testing.process", _WATCH, str(parent), str(os.getpid()))
    subprocess.Popen(watch, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.execv(command[0], command)  # noqa: S606 - the caller's own program


def _watch(parent: int, program: list[str]) -> None:
    """Kill this process group when ``parent`` is gone, unless the program has ended before."""
    start, watched = start_time(parent), ParentWatch(int(program[0]))
    while not watched.is_gone():
        if not start or start_time(parent) != start:
            os.killpg(0, signal.SIGKILL)
        time.sleep(_LOOK_AT_PARENT_SECONDS)


class ServerProcess:
    """A server program as a child process, in a process group of its own; a context manager that ends it.

    Args:
        module: run as ``python -m MODULE``; it must behave as the top of this module says.
        arguments: its command line.
        start_timeout: real seconds until it must listen.

    Raises:
        ServiceUnavailableError: the program ended, or did not listen in time; says what it wrote.
    """

    def __init__(self, module: str, arguments: Sequence[str], start_timeout: float = 60.0) -> None:
        self.endpoint = ""
        """``HOST:PORT`` that it listens on."""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = subprocess.Popen(
            python_command("-m", module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=python_environment(),
            start_new_session=True,
        )
        self.pid = self._process.pid
        try:
            self.endpoint = self._wait_until_ready(module, start_timeout)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def is_running(self) -> bool:
        """True while the process lives."""
        return self._process.poll() is None

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Within, it answers nothing."""
        os.killpg(self.pid, signal.SIGSTOP)
        # On a busy machine its threads run on until one of them has taken the signal.
        if hasattr(os, "waitid"):  # Python 3.13 has it on Macs too
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        else:
            os.waitpid(self.pid, os.WUNTRACED)
        try:
            yield
        finally:
            os.killpg(self.pid, signal.SIGCONT)

    def stop(self, timeout: float = 10.0) -> None:
        """End it by SIGTERM, and by SIGKILL after ``timeout`` seconds; does nothing the second time."""
        if self.is_running():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End it, and all of its process group, by SIGKILL."""
        if self.is_running():
            # Its session is its own, so the group has its pid; once it was waited for, that pid may be another's.
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def _wait_until_ready(self, module: str, start_timeout: float) -> str:
        stdout = self._process.stdout
        if stdout is None:
            raise self._not_started(module, "has no output")
        give_up_at = time.monotonic() + start_timeout
        received = b""
        while b"\n" not in received:
            seconds = give_up_at - time.monotonic()
            readable = seconds > 0 and select.select([stdout], [], [], seconds)[0]
            if not readable:
                raise self._not_started(module, f"did not listen within {start_timeout} s")
            data = os.read(stdout.fileno(), 4096)
            if not data:
                raise self._not_started(module, f"ended with status {self._process.wait()}")
            received += data
        line = received.decode().splitlines()[0]
        if not line.startswith(_READY):
            raise self._not_started(module, f"printed {line!r} instead of its endpoint")
        return line.removeprefix(_READY)

    def _not_started(self, module: str, what: str) -> ServiceUnavailableError:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        wrote = self._log.read().decode(errors="replace").strip()
        return ServiceUnavailableError(
            "TESTING_SERVER_NOT_STARTED", f"{module} {what}", action=f"It wrote: {wrote}" if wrote else ""
        )


if __name__ == "__main__":
    _run = {_BY_KERNEL: _become, _WATCHED: _be_watched, _WATCH: _watch}[sys.argv[1]]
    _run(int(sys.argv[2]), sys.argv[3:])
