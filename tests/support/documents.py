"""Pages that are run as they stand: their shell blocks in one shell, in a folder where their programs are saved.

A block of Python after the words "Save this as `NAME`" is saved under that name. A block of text after one for the
shell is what the latter prints, among other lines. A block for the shell that installs something runs only where the
page is tried on an empty machine: `./dev chaos docs`.

Every block of code is run by a test. Those in Python and SQL are run by
`tests/spark/test_documents.py::test_the_blocks_of_a_page_run`, unless a comment in the line before says otherwise:
``<!-- run by tests/FILE::TEST -->``, or ``<!-- not run: WHY -->``; ``<!-- blocks not run: WHY -->`` holds for a page.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARKED = re.compile(r"<!-- (?:run by (\S+)|not run: (.+?)) -->\s*\Z")
_WHOLE_PAGE = re.compile(r"^<!-- blocks not run: (.+?) -->$", re.MULTILINE)
_SAVED = re.compile(r"[Ss]ave\s+this\s+as\s+`([^`]+)`:\s*\Z")
_MARK = "--- block {} has ended ---"
_LONGEST_SECONDS = 1800  # with an install; a test has a shorter limit of its own


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Attributes:
        language: what stands after the fence.
        text: what is in it.
        saved_as: the name to save it by; empty for none.
        run_by: the test that the page names as the one that runs it: ``tests/FILE::TEST``; empty for none.
        not_run: why no test runs it, as the page says; empty for none.
    """

    language: str
    text: str
    saved_as: str
    run_by: str = ""
    not_run: str = ""

    @property
    def is_code(self) -> bool:
        """Whether it can be run: text is output, or a drawing."""
        return self.language not in {"", "text"}

    @property
    def installs(self) -> bool:
        """Whether it takes minutes and a registry."""
        return "pip install" in self.text


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in their order."""
    whole = _WHOLE_PAGE.search(page)
    found = []
    for match in _FENCE.finditer(page):
        before = page[: match.start()]
        mark = _MARKED.search(before)
        name = _SAVED.search(before[: mark.start()] if mark else before)
        run_by, not_run = (mark[1] or "", mark[2] or "") if mark else ("", whole[1] if whole else "")
        found.append(Block(match[2], textwrap.dedent(match[3]), name[1] if name else "", run_by, not_run))
    return found


def run(
    page: str, folder: Path, environment: Mapping[str, str], *, install: bool, where: Path | None = None
) -> dict[str, str]:
    """Run a page, and compare what it prints with what it says.

    Args:
        page: its text.
        folder: empty; where its programs are saved and its commands run.
        environment: what its shell has.
        install: whether blocks that install are run; they run in `where`, from which the page then goes to `folder`.
        where: a clone.

    Returns:
        What each block for the shell printed, by its text.

    Raises:
        AssertionError: a command failed, or something that the page shows was not printed.
    """
    wanted = blocks(page)
    script = ["set -eu"]
    shells = [one for one in wanted if one.language == "sh" and (install or not one.installs)]
    for one in wanted:
        if one.saved_as:
            (folder / one.saved_as).write_text(one.text)
    for number, one in enumerate(shells):
        script.append(f"cd '{where if one.installs else folder}'")
        script += [one.text, f"echo '{_MARK.format(number)}'"]
    status, output = _shell("\n".join(script), folder, environment)
    assert status == 0, output
    printed: dict[str, str] = {}
    for number, one in enumerate(shells):
        printed[one.text], mark, output = output.partition(_MARK.format(number) + "\n")
        assert mark, f"{one.text} was not reached: {output}"
    for one, after in itertools.pairwise(wanted):
        if after.language == "text" and one.text in printed:
            lines = [line.strip() for line in printed[one.text].splitlines()]
            missing = [line for line in after.text.splitlines() if line.strip() not in lines]
            assert not missing, f"{one.text} does not print {missing}: {printed[one.text]}"
    return printed


def _shell(script: str, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a script; its status and what it prints. What it has started in the background ends with it."""
    with TemporaryFile("w+") as output:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(_LONGEST_SECONDS)
        finally:
            process.kill()
            for entry in Path("/proc").glob("[0-9]*"):
                if _runs_in(entry, folder):
                    os.kill(int(entry.name), signal.SIGKILL)
        output.seek(0)
        return status, output.read()


def _runs_in(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink() == folder
    except OSError:
        return False


def environment(**changes: str) -> dict[str, str]:
    """The environment of these tests: their Python first, Spark on loopback."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **changes}
