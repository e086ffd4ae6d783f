"""Values that make no sense under right checksums (rule R9)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from connectors.core.errors import SpoolError
from tests.support.damaged_spool import (
    altered_values,
    lived_in,
    resealed,
    restore,
    use,
    write_file,
)
from tests.support.spool_writing import HandSpool


@pytest.fixture
def spool(tmp_path: Path) -> HandSpool:
    return lived_in(tmp_path / "spool")


ALTERED = 250
"""Of some 7,000 alterations."""


def test_a_value_altered_under_a_right_checksum_gives_the_same_rows_or_a_named_error(spool: HandSpool) -> None:
    wanted, before = use(spool), spool.files()
    refused, wrong = 0, []
    for name, done, altered in random.sample(altered_values(before), ALTERED):
        write_file(spool.root / name, resealed(name, before[name], lambda _, altered=altered: altered))
        try:
            found = use(spool)
        except SpoolError:  # each has a code
            refused += 1
        except Exception as error:  # noqa: BLE001 - all that is left is a finding
            wrong.append(f"{name}: {done}: {error!r}")
        else:
            wrong += [] if found == wanted else [f"{name}: {done}: {found}"]
        restore(spool, before)
    assert not wrong
    assert refused > ALTERED // 3
