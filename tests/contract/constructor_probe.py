"""Make a source and its readers in a fresh process, and print what their constructors did beside keeping options.

``python -m tests.contract.constructor_probe``, with the arguments as one object of JSON on standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema

from tests.support.spark_protocol.driver import descendants

_FORBIDDEN = ("socket.", "subprocess.", "os.fork", "os.posix_spawn", "os.exec", "os.mkdir", "os.rename", "os.remove")


def _state() -> dict[str, set[str]]:
    """The open files, threads and children of this process."""
    targets = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            targets.add(f"{entry.name} {entry.readlink()}")
        except OSError:
            continue  # the folder that is being listed
    return {
        "open files": {target for target in targets if "/proc/" not in target},
        "threads": {entry.name for entry in Path("/proc/self/task").iterdir()},
        "children": {str(pid) for pid in descendants(os.getpid())},
    }


class Probe:
    """Runs constructors and notes what they do."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.watching = False
        self.found: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watching and (event.startswith(_FORBIDDEN) or (event == "open" and self._is_opened(*arguments))):
            self.found.append(f"{event} {arguments}")

    def _is_opened(self, path: object, mode: str | None, flags: int) -> bool:
        """Whether an opened file is the source's own, or opened for writing; imports read files too."""
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) or any(sign in (mode or "") for sign in "wax+")
        return writes or str(path).startswith(self.folder)

    def run(self, make: Callable[[], Any]) -> Any:
        """Call a constructor, look at what is different afterwards, and send what it made through pickle."""
        before = _state()
        self.watching = True
        made = make()
        self.watching = False
        for what, after in _state().items():
            self.found += [f"{what}: {new}" for new in sorted(after - before[what])]
        try:
            CPickleSerializer().loads(CPickleSerializer().dumps(made))
        except Exception as error:  # noqa: BLE001 - any error of pickling is what is looked for
            self.found.append(f"{type(made).__name__} does not pickle: {error!r}")
        return made


def main() -> None:
    """Probe one source."""
    asked = json.load(sys.stdin)
    module, _, name = asked["source"].partition(":")
    source_class = getattr(importlib.import_module(module), name)
    options = CaseInsensitiveDict(asked["options"])
    probe = Probe(asked["folder"])
    source = probe.run(lambda: source_class(options=options))
    schema = source.schema()
    to_arrow_schema(schema, timezone="UTC")
    probe.run(lambda: source.streamReader(schema=schema))
    if asked["batch_read"]:
        probe.run(lambda: source.reader(schema=schema))
    sys.stdout.write(json.dumps(probe.found))


if __name__ == "__main__":
    main()
