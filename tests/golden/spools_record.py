"""Records a spool in the present format: ``python -m tests.golden.spools_record NAME``.

The newest snapshot has records behind it, and segments were freed before and after it, quarantined, and wait for
admission; the ids of most are in runs. `tests/unit/spool/ledger/test_conversion.py` opens all of them.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

from connectors.spool.admin.repair import quarantine_named
from connectors.spool.stream.compaction import Compaction, CompactionSettings
from tests.support.power_loss_rig import UnsyncedDisk, on_disk
from tests.support.spool_writing import HandSpool

SPOOLS: Final = Path(__file__).parent / "spools"
_FIRST = 60
_ROUNDS = 70
_DAMAGED = "inbox/f0/45.arrow"


def fill(spool: HandSpool) -> dict[str, Any]:
    """Fill a spool by three writers; return what is known of it."""
    known: list[str] = []
    ledger = spool.open("one")
    for number in range(_FIRST):
        ids = [str(10_000 + number), f"id-{number}"]
        known += ids
        spool.write(ids, published=1_000_000 + number)
    ledger.admit()
    Compaction(ledger, CompactionSettings(recent_ids=1)).step()
    damaged = spool.root / _DAMAGED
    damaged.write_bytes(damaged.read_bytes()[:-100])
    [lost] = quarantine_named(str(spool.root), [_DAMAGED])
    ledger = spool.open("two")
    compaction = Compaction(ledger, CompactionSettings(free_segments=4, merge=3))
    for number in range(_ROUNDS):
        ids = [f"later-{number}", *([known[number]] if number % 3 == 0 else [])]
        known.append(ids[0])
        spool.write(ids, fetcher="f2", published=2_000_000 + number)
        ledger.admit()
        ledger.commit(number + 1)
        compaction.step()
        compaction.merge()
    state = ledger.state
    rows = [list(row) for part in spool.read(state.oldest, state.head) for row in part]
    spool.write(["waiting"], fetcher="f3", published=3_000_000)
    return {
        "rows": rows,
        "head": state.head,
        "committed": state.committed,
        "segments": len(state.segments),
        "counters": state.counters,
        "lost": [lost.first, lost.end],
        "ids": known,
        "waiting": ["waiting"],
    }


def main() -> None:
    """Record a spool under a name."""
    with tempfile.TemporaryDirectory() as folder, on_disk(UnsyncedDisk()):
        spool = HandSpool(Path(folder) / "spool")
        facts = fill(spool)
        SPOOLS.mkdir(exist_ok=True)
        with tarfile.open(SPOOLS / f"{sys.argv[1]}.tar.gz", "w:gz") as archive:
            for name, data in {**spool.files(), "facts.json": json.dumps(facts, sort_keys=True).encode()}.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    main()
