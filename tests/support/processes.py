"""Which processes a test run has started, found through a mark in their environment."""

from __future__ import annotations

import os
from pathlib import Path

from connectors.core.processes.table import PROCESSES

RUN_MARK = "CONNECTORS_TEST_RUN"


def orphans(mark: str) -> dict[int, str]:
    """Command lines, by process id, of processes that carry the mark and are no longer below this process.

    Only Linux shows the environment of other processes; elsewhere none is found.
    """
    parents = PROCESSES.parents()
    found = {}
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            continue
        try:
            if f"{RUN_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = " ".join(PROCESSES.arguments(pid))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found
