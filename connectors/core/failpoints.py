"""Named points at which a test can end or stall a process.

Every durable step has one just before and one just after it. Without the environment variable
``CONNECTORS_FAILPOINTS`` a failpoint costs one look at an empty dictionary.

The variable holds ``name=action`` pairs, separated by commas. The actions:

* ``kill`` or ``kill:N``: SIGKILL of this process, at the N-th pass (default the first);
* ``kill_once:FILE`` or ``kill_once:FILE:N``: the same, by the first process that gets there, which creates FILE;
* ``pause:FILE``: create FILE, then wait until FILE is deleted;
* ``sleep:SECONDS``: wait once a pass;
* ``raise_once:FILE:ERRNO:N``: raise `OSError` with that number, at the N-th pass of the first process that gets there;
* ``raise:ERRNO`` or ``raise:ERRNO:N``: raise `OSError` with that number, at the N-th pass or at each.

A name may begin with the role of a process and a slash, as in ``fetcher/store.before_link=kill``: then only processes
whose environment variable ``CONNECTORS_ROLE`` says that role act on it. The reader process has the role ``reader``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["ROLE_VARIABLE", "failpoint", "set_failpoints"]

_VARIABLE = "CONNECTORS_FAILPOINTS"
ROLE_VARIABLE = "CONNECTORS_ROLE"


def _kill(argument: str) -> Callable[[], None]:
    passes = int(argument or 1)

    def act() -> None:
        nonlocal passes
        passes -= 1
        if passes == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def _once(path: str, passes: int, act: Callable[[], None]) -> Callable[[], None]:
    """Act at the N-th pass, if no other process has."""
    left = passes

    def act_once() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            try:
                Path(path).touch(exist_ok=False)
            except FileExistsError:
                return
            act()

    return act_once


def _kill_once(argument: str) -> Callable[[], None]:
    path, _, passes = argument.partition(":")
    return _once(path, int(passes or 1), lambda: os.kill(os.getpid(), signal.SIGKILL))


def _raise_once(argument: str) -> Callable[[], None]:
    path, number, passes = argument.split(":")
    return _once(path, int(passes), _raise(number))


def _pause(argument: str) -> Callable[[], None]:
    flag = Path(argument)

    def act() -> None:
        flag.touch()
        while flag.exists():
            time.sleep(0.005)

    return act


def _sleep(argument: str) -> Callable[[], None]:
    seconds = float(argument)
    return lambda: time.sleep(seconds)


def _raise(argument: str) -> Callable[[], None]:
    number, _, at = argument.partition(":")
    errno, only, passes = int(number), int(at or 0), 0

    def act() -> None:
        nonlocal passes
        passes += 1
        if not only or passes == only:
            raise OSError(errno, os.strerror(errno))

    return act


_ACTIONS: dict[str, Callable[[str], Callable[[], None]]] = {
    "kill": _kill,
    "kill_once": _kill_once,
    "pause": _pause,
    "sleep": _sleep,
    "raise": _raise,
    "raise_once": _raise_once,
}


def _parse(text: str) -> dict[str, Callable[[], None]]:
    points = {}
    own = os.environ.get(ROLE_VARIABLE, "reader")
    for pair in filter(None, text.split(",")):
        place, _, action = pair.partition("=")
        role, _, name = place.rpartition("/")
        kind, _, argument = action.partition(":")
        if role in {"", own}:
            points[name] = _ACTIONS[kind](argument)
    return points


_points = _parse(os.environ.get(_VARIABLE, ""))


def failpoint(name: str) -> None:
    """Act as a test has asked for at this point; nothing at all outside of tests."""
    if _points and (act := _points.get(name)) is not None:
        act()


def set_failpoints(text: str) -> None:
    """Replace the failpoints of this process; the text is as in ``CONNECTORS_FAILPOINTS``."""
    global _points  # noqa: PLW0603 - one table a process, as with the environment it stands for
    _points = _parse(text)
