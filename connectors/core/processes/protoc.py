"""Run protoc in a process of its own: what it reads may be hostile, and can overflow its stack.

Its messages are returned, instead of being written to this process's standard error.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from connectors.core.errors import ConnectorError
from connectors.core.processes.interpreter import python_command, python_environment, without_present_folder

FOREIGN_LIMITS: Final = {"RLIMIT_CPU": 10, "RLIMIT_AS": 2 << 30, "RLIMIT_FSIZE": 64 << 20, "RLIMIT_NOFILE": 256}
"""The limits for texts of other people: seconds of processor time, bytes of memory and of a file, open files."""
_NO_CORE: Final = {"RLIMIT_CORE": 0}
_CHILD: Final = Path(__file__).with_name("protoc_child.py")
_REFUSED: Final = 65  # as in protoc_child
_MOST_OUTPUT: Final = 1 << 16
_PLACE: Final = re.compile(r"^(.+?\.proto:\d+(?::\d+)?): (.*)", re.MULTILINE)


def run_protoc(
    arguments: Sequence[str],
    limits: Mapping[str, int] | None = None,
    seconds: float | None = None,
    folder: str | None = None,
) -> tuple[bool, str]:
    """Return whether protoc accepts its input, and the first 64 kB of what it printed, or what ended it.

    Imports of protobuf itself, google/protobuf/..., are found without an argument.

    Args:
        arguments: of protoc; they are not a command line, so they may be long.
        limits: by their names in the module `resource`.
        seconds: after which it is killed, however little it was given to run.
        folder: where it runs; the present one, if absent.

    Raises:
        ConnectorError: PROTOC_FAILED, whatever the input: it did not start, or not end in time.
    """
    program = _CHILD.read_text(encoding="utf-8")
    order = json.dumps({"arguments": list(arguments), "limits": {**_NO_CORE, **(limits or {})}}).encode()
    environment = python_environment(without_present_folder(sys.path))
    with TemporaryFile() as output:
        try:
            ended = subprocess.run(
                python_command("-c", program),
                input=order,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=environment,
                timeout=seconds,
                cwd=folder,
                check=False,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failed(
                f"{type(error).__name__}: {error.strerror}" if isinstance(error, OSError) else "no end in time"
            ) from None
        output.seek(0)
        printed = output.read(_MOST_OUTPUT).decode(errors="replace").strip()
    if ended < 0:
        return False, f"it was ended by {_signal_name(-ended)}"
    if limits and "cannot allocate memory" in printed:  # of the system's library, which then ends the process
        return False, "it needs too much memory"
    if ended not in {0, _REFUSED}:
        raise _failed(printed.rpartition("\n")[2][:300] or f"it ended with {ended}")
    return not ended, printed


def place_of(printed: str) -> tuple[str, str, int]:
    """Return file, line and column of the first message of protoc, its text, and how many more there are.

    The place is empty where no message has one.
    """
    places = _PLACE.findall(printed)
    place, what = places[0] if places else ("", printed.partition("\n")[0])
    return place, what, max(len(places) - 1, 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _failed(why: str) -> ConnectorError:
    return ConnectorError(
        "PROTOC_FAILED",
        f"The Protobuf compiler could not be run: {why}",
        "protoc",
    )
