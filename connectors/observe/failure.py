"""Why a query failed, in one line: Spark's own text of it has hundreds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from connectors.core.errors import ConnectorError, error_from_json

_OURS: Final = f"{ConnectorError.__module__}."
"""Begins an error of this pack in what Spark passes on from its Python processes: class, code and text."""
_PLAN: Final = "\n=== Streaming Query ===\n"
"""Begins what PySpark shows below the reason: offsets and plan of the query."""
_NO_REASON: Final = ("at ", "... ", "Driver stacktrace:", "SQLSTATE: ")
"""How lines of a stack of the JVM begin."""
_LONGEST: Final = 1000


class OwnError(NamedTuple):
    """An error of this pack in the text of a failure."""

    code: str
    said: str
    transient: bool


def own_error(text: str) -> OwnError | None:
    """Return the first error of this pack in the text of a failure, which a traceback ends with; None without one."""
    for line in text.splitlines():
        kind, _, rest = line.partition(_OURS)[2].partition(": [")
        code, _, said = rest.partition("] ")
        if kind.isidentifier() and said:
            return OwnError(code, said, error_from_json({"kind": kind, "code": code}).transient)
    return None


def last_line(exception: str) -> str:
    """Return the line that says what is wrong: the last one that is not a frame of a stack of the JVM, and no plan."""
    lines = [line.strip() for line in exception.partition(_PLAN)[0].splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith(_NO_REASON)), "")


def full_text(error: BaseException | None) -> str:
    """Return the text of an error and its causes, with the stack of the JVM, which names their classes."""
    from connectors.core.processes.spark import reasons_of_spark  # noqa: PLC0415 - `connectors watch` does without Spark

    texts: list[str] = []
    while error is not None:
        texts.append(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
        stacks, cause = reasons_of_spark(error)
        texts += stacks
        error = error.__cause__ or cause
    return "\n".join(texts)


def summary(error: BaseException) -> str:
    """Return one line of at most 1,000 characters: the error of this pack in a failure, else the last reason in it."""
    own = own_error(full_text(error))
    line = f"[{own.code}] {own.said}" if own else last_line(str(error)) or type(error).__qualname__
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."


def add_last_note(error: BaseException) -> None:
    """Add the summary of an error as its last note, which Python prints last; a text of one line needs none."""
    line = summary(error)
    if "\n" in str(error).strip() and line not in getattr(error, "__notes__", ()):
        error.add_note(line)


@contextlib.contextmanager
def summarize_failure() -> Iterator[None]:
    """Print the reason of an error that ends the program as the last line.

    Spark's text for a failed query has hundreds of lines, and only one says what is wrong. That line is added to the
    error as a note, and the error is raised again unchanged.

        with summarize_failure():
            query.awaitTermination()
    """
    try:
        yield
    except Exception as error:
        add_last_note(error)
        raise
