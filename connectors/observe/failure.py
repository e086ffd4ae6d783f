"""Why a query failed, in one line: Spark's own text of it has hundreds."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

OUR_ERROR: Final = re.compile(r"connectors\.core\.errors\.(\w+): \[([A-Z0-9_]+)\] ([^\n]*)")
"""An error of this pack in what Spark passes on from its Python processes: a traceback ends with class and text."""
_NO_REASON: Final = re.compile(r"at \S+\(.*\)$|\.\.\. \d+ more$|Driver stacktrace:$|SQLSTATE: \w+( SQLSTATE: \w+)*$")
_PLAN: Final = "\n=== Streaming Query ===\n"
"""Begins what PySpark shows below the reason: offsets and plan of the query."""
_LONGEST: Final = 1000


def last_line(exception: str) -> str:
    """Return the line that says what is wrong: the last one that is no frame of a stack of the JVM, and no plan."""
    lines = [line.strip() for line in exception.partition(_PLAN)[0].splitlines()]
    return next((line for line in reversed(lines) if line and not _NO_REASON.match(line)), "")


def full_text(error: BaseException | None) -> str:
    """Return the text of an error and its causes, with the stack of the JVM, which names their classes."""
    texts: list[str] = []
    while error is not None:
        texts.append(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
        # Classic PySpark and Spark Connect keep the stack under two names.
        stacks = (getattr(error, name, None) for name in ("_stackTrace", "_stacktrace"))
        texts += [stack for stack in stacks if isinstance(stack, str)]
        error = error.__cause__ or getattr(error, "_cause", None)
    return "\n".join(texts)


def summary(error: BaseException) -> str:
    """Return one line of at most 1,000 characters: the error of this pack in a failure, else the last reason in it."""
    match = OUR_ERROR.search(full_text(error))
    line = f"[{match[2]}] {match[3]}" if match else last_line(str(error)) or type(error).__qualname__
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."


def add_last_note(error: BaseException) -> None:
    """Add the summary of an error as its last note, which Python prints last; a text of one line needs none."""
    line = summary(error)
    if "\n" in str(error).strip() and line not in getattr(error, "__notes__", ()):
        error.add_note(line)


@contextlib.contextmanager
def summarize_failure() -> Iterator[None]:
    """Have an error that ends the program printed with its reason as the last line.

    Spark's text of a failed query has hundreds of lines, with the one that says what is wrong among them. That line is
    added to the error as a note, and the error goes on as it was.

        with summarize_failure():
            query.awaitTermination()
    """
    try:
        yield
    except Exception as error:
        add_last_note(error)
        raise
