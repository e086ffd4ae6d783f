"""``./dev chaos peers`` judges ours, and says what was counted of theirs beside it."""

from __future__ import annotations

import pytest

from tests.chaos.rigs.peer_trial import OURS, THEIRS, together

RIGHT = {"faults": [], "killed": [], "counts": {"lost": 0}, "query_errors": []}
WRONG = {"faults": ["207 lost"], "killed": ["jvm"], "counts": {"lost": 207}, "query_errors": ["ended"]}


def test_what_theirs_lost_does_not_fail_a_trial_and_stands_in_its_record() -> None:
    outcome = together({OURS: RIGHT, THEIRS: WRONG})
    assert outcome["ok"]
    assert outcome["counts"] == {"lost": 0}
    assert outcome["theirs"] == WRONG
    assert "killed" not in outcome


def test_what_ours_lost_fails_a_trial() -> None:
    outcome = together({OURS: WRONG, THEIRS: RIGHT})
    assert not outcome["ok"]
    assert (outcome["faults"], outcome["killed"]) == (["207 lost"], ["jvm"])


@pytest.mark.parametrize("missing", [OURS, THEIRS])
def test_a_trial_of_one_side_alone_has_no_outcome(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        together({side: RIGHT for side in (OURS, THEIRS) if side != missing})
