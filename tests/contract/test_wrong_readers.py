"""The contract suite is trusted because each of its tests fails for a reader that breaks what it is about."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract import test_reader_contract as contract
from tests.contract import wrong_sources as wrong
from tests.contract.reference_harness import ReferenceHarness
from tests.support.spark_protocol.driver import InProcessWorkers, ProtocolError

CAUGHT_BY: dict[type, tuple[Callable[..., None], dict[str, Any]]] = {
    wrong.ThreadInConstructor: (contract.test_constructors_keep_only_options_and_pickle, {}),
    wrong.ConnectionInConstructor: (contract.test_constructors_keep_only_options_and_pickle, {}),
    wrong.ChildInConstructor: (contract.test_constructors_keep_only_options_and_pickle, {}),
    wrong.NotPicklable: (contract.test_constructors_keep_only_options_and_pickle, {}),
    wrong.CaseSensitiveKeys: (contract.test_option_keys_in_any_case_give_the_same_rows, {}),
    wrong.InitialOffsetMoves: (contract.test_initial_offset_is_one_constant, {}),
    wrong.StartMissing: (contract.test_end_offset_carries_start_exactly_when_its_start_is_the_sentinel, {}),
    wrong.StartInEveryOffset: (contract.test_end_offset_carries_start_exactly_when_its_start_is_the_sentinel, {}),
    wrong.StartIgnored: (contract.test_latest_is_pinned_by_the_first_batch, {"step": "offsets_logged"}),
    wrong.SentinelsNotPlanned: (contract.test_partitions_of_two_sentinels_are_empty, {}),
    wrong.SentinelNotCommitted: (contract.test_commit_of_the_sentinel_does_nothing, {}),
    wrong.PlansToTheHead: (contract.test_failed_batch_0_is_replayed_with_the_same_rows_after_a_restart, {}),
    wrong.LatestNotPinned: (contract.test_latest_is_pinned_by_the_first_batch, {"step": "batch_committed"}),
    wrong.LatestNotPinnedLater: (
        contract.test_latest_is_pinned_when_the_sentinel_was_logged_by_an_earlier_batch,
        {},
    ),
    wrong.NoneWhenIdle: (contract.test_latest_offset_is_never_none, {}),
    wrong.OtherOffsetWhenIdle: (contract.test_nothing_new_returns_the_start_unchanged, {}),
    wrong.UnsortedKeys: (contract.test_offsets_are_text_with_sorted_keys, {}),
    wrong.ReadAllAsLimit: (contract.test_default_read_limit_is_never_read_all_available, {}),
    wrong.LimitIgnored: (contract.test_rate_limit_cuts_batches, {}),
    wrong.StaleFirstAnswer: (contract.test_first_call_after_a_start_waits_for_a_fresh_answer, {}),
    wrong.AvailableNowGoesOn: (contract.test_available_now_reads_what_was_there_and_ends, {}),
    wrong.AvailableNowTooEarly: (contract.test_available_now_reads_what_was_there_and_ends, {}),
    wrong.OnceWithLimit: (contract.test_once_reads_all_there_is_in_one_batch, {}),
    wrong.PlanningNeedsLatestOffset: (contract.test_planning_is_a_pure_function_of_the_offsets, {}),
    wrong.OtherLayoutAfterRestart: (
        contract.test_unfinished_batch_is_planned_again_alike_before_any_latest_offset,
        {},
    ),
    wrong.OtherRowsWhenReadAgain: (contract.test_reading_a_partition_twice_gives_identical_rows, {}),
    wrong.OtherSchemaInLaterBatches: (contract.test_every_batch_has_exactly_the_declared_schema, {}),
    wrong.IdleAsksTheService: (contract.test_idle_latest_offset_is_answered_from_memory, {}),
    wrong.ForgetsOnCommit: (contract.test_no_row_is_lost_or_doubled_when_the_query_crashes, {"step": "tasks_done"}),
    wrong.ChildStays: (contract.test_children_are_gone_soon_after_the_reader, {"end": "kill"}),
    wrong.WaitsForever: (contract.test_blocking_wait_ends_soon_after_the_parent_was_killed, {}),
    wrong.ThreadStays: (contract.test_reader_ends_soon_after_its_idle_parent_was_killed, {}),
    wrong.SlowLock: (contract.test_start_at_once_after_a_kill_works, {}),
    wrong.PlansAtRead: (contract.test_batch_read_is_planned_once, {}),
}


class WrongHarness(ReferenceHarness):
    """The reference harness over a source with a wrong reader."""

    patience = 3.0

    def __init__(self, folder: Path, reader: type) -> None:
        super().__init__(folder)
        self.source = f"{wrong.__name__}:{reader.__name__}Source"  # type: ignore[misc] - one for each instance


def test_every_wrong_reader_has_a_test_that_catches_it() -> None:
    assert set(CAUGHT_BY) == set(wrong.WRONG_READERS)


@pytest.mark.parametrize("reader", CAUGHT_BY, ids=lambda reader: reader.__name__)
def test_wrong_reader_is_caught(reader: type, tmp_path: Path, workers: InProcessWorkers) -> None:
    test, settings = CAUGHT_BY[reader]
    (tmp_path / "source").mkdir()
    fixtures: dict[str, Any] = {"workers": workers, "name": ""}
    fixtures |= dict.fromkeys(("harness", "batch_harness"), WrongHarness(tmp_path / "source", reader))
    wanted = inspect.signature(test).parameters
    arguments = {name: value for name, value in (fixtures | settings).items() if name in wanted}
    with pytest.raises((AssertionError, ProtocolError)):
        test(**arguments)
