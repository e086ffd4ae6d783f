"""Named points at which a test can end or stall a process; every durable step has one just before and just after it.

``CONNECTORS_FAILPOINTS`` holds ``name=action`` pairs, separated by commas. The actions:

* ``kill`` or ``kill:N``: SIGKILL of this process, at the N-th pass (default the first);
* ``kill_once:FILE`` or ``kill_once:FILE:N``: the same, by the first process that gets there, which creates FILE;
* ``pause:FILE``: create FILE, then wait until FILE is deleted;
* ``sleep:SECONDS``: wait once a pass;
* ``raise_once:FILE:ERRNO:N``: raise `OSError` with that number, at the N-th pass of the first process that gets there;
* ``raise:ERRNO`` or ``raise:ERRNO:N``: raise `OSError` with that number, at the N-th pass or at each.

A name may begin with a role and a slash, as in ``fetcher/store.before_link=kill``: then only processes whose variable
``CONNECTORS_ROLE`` names that role act on it. The reader process has the role ``reader``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

ROLE_VARIABLE = "CONNECTORS_ROLE"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(number: int) -> None:
    raise OSError(number, os.strerror(number))


def _at(passes: int, act: Callable[[], None], once: str = "") -> Callable[[], None]:
    """Act at the N-th pass, or at each for 0; with a file only in the process that creates it."""
    passed = 0

    def act_at() -> None:
        nonlocal passed
        passed += 1
        if passes and passed != passes:
            return
        if once:
            try:
                Path(once).touch(exist_ok=False)
            except FileExistsError:
                return
        act()

    return act_at


def _pause(file: str) -> None:
    Path(file).touch()
    while Path(file).exists():
        time.sleep(0.005)


def _action(kind: str, argument: str) -> Callable[[], None]:
    first, _, rest = argument.partition(":")
    match kind:
        case "kill":
            return _at(int(argument or 1), _kill)
        case "kill_once":
            return _at(int(rest or 1), _kill, first)
        case "raise":
            return _at(int(rest or 0), lambda: _raise(int(first)))
        case "raise_once":
            number, _, passes = rest.partition(":")
            return _at(int(passes), lambda: _raise(int(number)), first)
        case "pause":
            return lambda: _pause(argument)
        case "sleep":
            return lambda: time.sleep(float(argument))
    raise ValueError(f"there is no failpoint action {kind!r}")


def _parse(text: str) -> dict[str, Callable[[], None]]:
    points = {}
    own = os.environ.get(ROLE_VARIABLE, "reader")
    for pair in filter(None, text.split(",")):
        place, _, action = pair.partition("=")
        role, _, name = place.rpartition("/")
        kind, _, argument = action.partition(":")
        if role in {"", own}:
            points[name] = _action(kind, argument)
    return points


_points = _parse(os.environ.get("CONNECTORS_FAILPOINTS", ""))


def failpoint(name: str) -> None:
    """Act as a test has asked for at this point; nothing at all outside of tests."""
    if _points and (act := _points.get(name)) is not None:
        act()


def set_failpoints(text: str) -> None:
    """Replace the failpoints of this process; the text is as in ``CONNECTORS_FAILPOINTS``."""
    global _points  # noqa: PLW0603 - one table a process, as with the environment it stands for
    _points = _parse(text)
