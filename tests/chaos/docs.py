"""``./dev chaos docs``: someone new. A fresh clone, an empty home, and only what README and tutorial say.

Each command for the shell in the README, then the tutorial with its install, the notebook in Jupyter, and the site.
Most of its time goes to installs. It writes `docs/faults/docs.json`. ``./dev test`` of the README runs in full with
``--whole`` only; without it, the tests of the documentation stand for it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.support.record import ROOT, head_commit, versions
from tests.support.documents import blocks, run

_KEPT = ("PATH", "LANG", "JAVA_HOME", "TMPDIR")
_KEPT_PREFIXES = ("PIP_", "UV_", "HTTP", "http", "SSL_", "REQUESTS_")
_IN_THE_FOREGROUND = {"./dev broker": "timeout --signal=INT 90 ./dev broker || test $? -eq 124"}
"""What goes on until someone ends it."""
_SHORTENED = {
    "./dev test": "./dev test tests/unit/repository/test_docs.py tests/unit/repository/test_reference_docs.py"
}


class Newcomer:
    """A clone in an empty folder, and an empty home."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.home, self.desk = (folder / name for name in ("clone", "home", "desk"))
        for path in (self.home, self.desk):
            path.mkdir()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.clone)], check=True)
        # What .venv/bin/python was found by is taken from the path: only what a machine has by itself is left.
        kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
        paths = [path for path in kept["PATH"].split(os.pathsep) if not Path(path).is_relative_to(ROOT)]
        self.environment = {
            **kept,
            "PATH": os.pathsep.join(paths),
            "HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def shell(self, command: str, folder: Path) -> None:
        """Run a command; a failure is an `AssertionError` with the end of what it printed."""
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout[-3000:]}"

    def readme(self, *, whole: bool) -> None:
        """The commands of the README, each line by itself, in the clone; pip in an environment of its own."""
        self.shell("python3 -m venv ~/readme", self.clone)
        page = (self.clone / "README.md").read_text(encoding="utf-8")
        lines = [line for one in blocks(page) if one.language == "sh" for line in one.text.splitlines()]
        assert lines
        for line in lines:
            command = line.partition("#")[0].strip()
            command = _IN_THE_FOREGROUND.get(command, command)
            if not whole:
                command = _SHORTENED.get(command, command)
            self.shell(f". ~/readme/bin/activate; {command}", self.clone)

    def tutorial(self) -> None:
        """The tutorial with its install."""
        page = (self.clone / "docs/tutorial/first-stream.md").read_text(encoding="utf-8")
        run(page, self.desk, self.environment, install=True, where=self.clone)

    def notebook(self) -> None:
        """The notebooks, in Jupyter, in the environment that the tutorial has made."""
        self.shell(". ~/streams/bin/activate; pip install --quiet nbclient ipykernel", self.clone)
        self.shell(". ~/streams/bin/activate; jupyter execute --timeout=300 examples/first_stream.ipynb", self.clone)
        self.shell(". ~/streams/bin/activate; pip install --quiet '.[all,spark,testing]' plotly", self.clone)
        self.shell(". ~/streams/bin/activate; jupyter execute --timeout=300 examples/tour.ipynb", self.clone)

    def site(self) -> None:
        """The site, and reference pages that are as the code declares."""
        self.shell("./dev docs --site && git diff --exit-code docs && test -f build/site/index.html", self.clone)


def main() -> int:
    """Run all parts, and write the record; the exit code is 1 if one failed."""
    parser = argparse.ArgumentParser(prog="./dev chaos docs", description="README, tutorial, notebook and site.")
    parser.add_argument("--whole", action="store_true", help="also run ./dev test in full")
    parser.add_argument("--record", type=Path, default=ROOT / "docs/faults/docs.json")
    command_line = parser.parse_args()
    parts: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        newcomer = Newcomer(Path(folder))
        steps: dict[str, Callable[[], None]] = {
            "readme": lambda: newcomer.readme(whole=command_line.whole),
            "tutorial": newcomer.tutorial,
            "notebook": newcomer.notebook,
            "site": newcomer.site,
        }
        for name, step in steps.items():
            began = time.monotonic()
            try:
                step()
            except AssertionError as error:
                print(f"{name}: {error}")
                problem = str(error).partition("\n")[0].replace(folder, "")
            else:
                problem = ""
            seconds = round(time.monotonic() - began)
            parts.append({"part": name, "ok": not problem, "problem": problem, "seconds": seconds})
            print(f"{name}: {'failed' if problem else 'well'} ({seconds} s)", flush=True)
    record = {
        "what": "docs",
        "commit": head_commit(),
        "versions": versions(["pyspark", "pyarrow"]),
        "ended": dt.datetime.now(dt.UTC).date().isoformat(),
        "whole": command_line.whole,
        "parts": parts,
    }
    command_line.record.write_text(json.dumps(record, indent=1) + "\n")
    return int(not all(part["ok"] for part in parts))


if __name__ == "__main__":
    sys.exit(main())
