"""The record of a fault run goes on where it stopped, and its count of a sink sees every fault."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.rigs.kinesis_load import keys_out_of_order
from tests.chaos.support.record import Record, upper_bound
from tests.chaos.support.sink import Findings, examine
from tests.chaos.support.trials import Trial, add_record_arguments, run_trials

SETTINGS = {"messages": 10}


def record(path: Path, settings: dict[str, int] = SETTINGS, **arguments: Any) -> Record:
    return Record(path, "thing", settings, ["pyarrow"], **arguments)


def test_each_kind_of_victim_has_the_bound_that_its_own_kills_support(tmp_path: Path) -> None:
    kept = record(tmp_path / "thing.json")
    for number in range(60):
        kept.add(f"jvm-{number}", "kills", {"ok": True, "killed": ["jvm"]})
    kept.add("fetcher-0", "kills", {"ok": False, "killed": ["fetcher"]})
    kept.add("worker-0", "kills", {"ok": True, "killed": ["worker"]})
    bounds = kept.summary["kills"]["failure_rate_upper_bound_95_by_victim"]
    assert bounds == {"fetcher": None, "jvm": upper_bound(60), "worker": 0.95}


def test_a_part_is_run_again_by_other_seeds_until_it_has_the_least_number_of_trials(tmp_path: Path) -> None:
    seeds: dict[str, list[int]] = {"once": [], "often": []}

    def trials(kept: Record, _stack: ExitStack) -> Iterator[Trial]:
        for name, part in (("a", "once"), ("b", "often"), ("c", "often")):

            def run(_folder: Path, name: str = name, part: str = part) -> dict[str, Any]:
                seeds[part].append(kept.trial_seed(name))
                return {"ok": True}

            yield Trial(name, part, run)

    def go_on(least: str) -> list[str]:
        parser = argparse.ArgumentParser()
        add_record_arguments(parser, "thing")
        path = tmp_path / "thing.json"
        parsed = parser.parse_args(["--record", str(path), "--least", least, "--seed", "7"])
        assert run_trials("thing", parsed, SETTINGS, ["pyarrow"], trials) == 0
        return [each["trial"] for each in record(path).trials]

    assert go_on("1") == ["a", "b", "c"]
    assert go_on("3") == ["a", "b", "c", "a-round-2", "b-round-2", "a-round-3"]
    assert len({*seeds["once"]}) == 3, "each round has a seed of its own"


def test_a_trial_that_cannot_run_here_is_skipped_with_its_reason_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def trials(_record: Record, _stack: ExitStack) -> Iterator[Trial]:
        yield Trial("a", "ours", lambda _: {"ok": True})
        yield Trial("b", "theirs", lambda _: {"ok": True}, lambda: "it is not installed")

    parser = argparse.ArgumentParser()
    add_record_arguments(parser, "thing")
    path = tmp_path / "thing.json"
    assert run_trials("thing", parser.parse_args(["--record", str(path)]), SETTINGS, ["pyarrow"], trials) == 0
    assert [each["trial"] for each in record(path).trials] == ["a"]
    assert "skipped, 1 trials:\nb: it is not installed" in capsys.readouterr().out


def row(identity: str, offset: int, payload: bytes = b"x") -> dict[str, Any]:
    return {"id": identity, "offset": offset, "payload": payload}


PUBLISHED = {identity: {"payload": b"x"} for identity in "abc"}
RIGHT = [row("a", 0), row("b", 1), row("c", 2)]
RUNS = [{"batch": 0, "digest": "1"}, {"batch": 1, "digest": "2"}, {"batch": 1, "digest": "2"}]


def count(rows: list[dict[str, Any]], runs: list[dict[str, Any]] = RUNS) -> Findings:
    return examine(rows, runs, PUBLISHED, key="id", position="offset")


@pytest.mark.parametrize(
    ("rows", "runs", "fault"),
    [
        (RIGHT, RUNS, {}),
        ([row("a", 0), row("b", 1)], RUNS, {"lost": 1}),
        ([*RIGHT, row("b", 3)], RUNS, {"doubled": 1}),
        ([*RIGHT, row("d", 3)], RUNS, {"phantom": 1}),
        ([row("a", 0), row("b", 1, b"y"), row("c", 2)], RUNS, {"altered": 1}),
        ([row("a", 0), row("b", 2), row("c", 1)], RUNS, {"misplaced": 2}),
        (RIGHT, [*RUNS, {"batch": 0, "digest": "3"}], {"replays_differing": 1}),
    ],
)
def test_each_fault_of_a_sink_is_counted_as_what_it_is(
    rows: list[dict[str, Any]], runs: list[dict[str, Any]], fault: dict[str, int]
) -> None:
    assert count(rows, runs).faults == fault


def test_rows_of_a_key_that_stand_in_another_order_are_seen() -> None:
    published = [b"1", b"2", b"3", b"4"]
    rows = [{"partitionKey": key, "data": data} for key, data in (("a", b"1"), ("b", b"3"), ("a", b"4"), ("b", b"2"))]
    assert keys_out_of_order(rows, published) == ["b"]
    assert keys_out_of_order(rows[:3], published) == []
