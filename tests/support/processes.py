"""Which processes a test run has started, found through a mark in their environment."""

from __future__ import annotations

import os
from pathlib import Path

RUN_MARK = "CONNECTORS_TEST_RUN"


def _parents() -> dict[int, int]:
    """The parent of every process, by process id."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
    return parents


def orphans(mark: str) -> dict[int, str]:
    """Command lines, by process id, of processes that carry the mark and are no longer below this process."""
    parents = _parents()
    found = {}
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            continue
        try:
            if f"{RUN_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = command.replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # ended meanwhile, or another user's
    return found
