"""The kills of the demo follow from its seed."""

from __future__ import annotations

import pytest

from connectors.cli.demo.processes import VICTIMS, planned_kills


@pytest.mark.parametrize("kills", [0, 1, 3, 7])
def test_the_same_seed_gives_the_same_kills_in_the_order_of_the_rows(kills: int) -> None:
    moments = planned_kills(5, kills)
    assert moments == planned_kills(5, kills)
    assert len(moments) == kills
    shares = [moment.share for moment in moments]
    assert shares == sorted(shares)
    assert all(0 < share <= 0.8 for share in shares)


def test_other_seeds_give_other_kills() -> None:
    assert len({str(planned_kills(seed, 3)) for seed in range(20)}) == 20


def test_three_kills_strike_each_kind_once_and_the_driver_between_a_write_and_its_record() -> None:
    for seed in range(20):
        moments = planned_kills(seed, 3)
        assert sorted(moment.victim for moment in moments) == sorted(VICTIMS)
        assert [moment.victim for moment in moments if moment.held] == ["driver"]
