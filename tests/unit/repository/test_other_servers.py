"""Kills on servers that we did not write: each server is a part of its own, and its API is all that is used of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from connectors.testing.kinesis import KinesisServer
from connectors.testing.pubsub import PubSubServer
from tests.chaos import kinesis, pubsub
from tests.chaos.rigs.kinesis_load import KinesisApi, Load
from tests.chaos.rigs.pubsub_kills import VICTIMS, KillPlan, not_acked
from tests.chaos.support.record import Record
from tests.chaos.support.report_sections import kills
from tests.chaos.support.sink import examine
from tests.chaos.support.trials import Trial
from tests.support.pubsub_calls import PubSubCalls
from tests.support.waiting import wait_for


def trials(record: Record, stack: ExitStack) -> Iterator[Trial]:
    """All trials of both runs on servers that we did not write."""
    of_kinesis = kinesis.KillRig(kinesis.parse([]), record, stack)
    for other in kinesis.OTHERS:
        for mode in other.modes:
            yield from of_kinesis.trials_on(other, mode)
    of_pubsub = pubsub.KillRig(record, stack)
    for server in pubsub.OTHERS:
        yield from pubsub.random_kills(of_pubsub, pubsub.OTHER_TRIALS, 10, server)


def test_each_server_and_mode_is_a_part_of_three_trials_with_seeds_of_their_own(tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = list(trials(Record(tmp_path / "thing.json", "thing", {}, []), stack))
    parts = ("kinesis_local_efo", "kinesis_local_polling", "moto_polling", "emulator", "pstest")
    assert Counter(trial.part for trial in made) == {f"{part}_random_kills": 3 for part in parts}
    seeds = [trial.action.keywords for trial in made]  # type: ignore[attr-defined]  # they are partial functions
    assert len({each["plan"].seed if "plan" in each else each["seed"] for each in seeds}) == len(made)


def test_a_server_without_knobs_gets_the_same_kills_and_no_other_faults() -> None:
    plan = KillPlan.make(7, VICTIMS, 1000)
    bare = plan.without_faults()
    assert (bare.moments, bare.options, bare.sink_pause) == (plan.moments, plan.options, plan.sink_pause)
    assert (bare.redelivered, bare.lost_acks, bare.stream_seconds) == (0, 0, 0)


def test_messages_that_a_query_has_not_acked_are_found_by_pulling() -> None:
    topic, subscription = "projects/p/topics/orders", "projects/p/subscriptions/orders"
    with PubSubServer() as server, PubSubCalls(server.endpoint) as calls:
        calls.create(topic, subscription)
        acked, *left = calls.publish(topic, b"1", b"2", b"3")
        calls.ack(subscription, [each for each in calls.pull(subscription, 3) if each.message.message_id == acked])
        assert not_acked(server.endpoint, subscription, 0.1) == set()
        server.jump(11)
        assert not_acked(server.endpoint, subscription, 0.1) == set(left)


def test_records_are_put_and_shards_are_split_and_merged_by_the_api_alone(seed: int) -> None:
    with KinesisServer() as server, closing(KinesisApi(server.endpoint)) as api:
        api.create_stream("orders", 2)
        with Load(server.endpoint, "orders", seed, reshard_seconds=(0.0, 0.0), knobs=False) as load:
            wait_for(lambda: load.splits and load.merges)
            published = load.finish()
        held = api.read("orders")
        assert len(api.shards("orders", only_open=False)) == 2 + 2 * load.splits + load.merges
    assert examine(held, [], published, key="data").faults == {}
    assert examine(held[1:], [], published, key="data").faults == {"lost": 1}
    assert load.faults == 0


def test_shards_that_are_no_neighbours_are_not_merged() -> None:
    with KinesisServer() as server, closing(KinesisApi(server.endpoint)) as api:
        api.create_stream("orders", 3)
        first, _, third = api.shards("orders", only_open=True)
        with pytest.raises(ValueError, match="does not follow"):
            api.merge("orders", first, third)


def test_the_report_shows_the_kills_of_each_server_as_a_row_of_its_own(tmp_path: Path) -> None:
    record = Record(tmp_path / "kinesis.json", "kinesis", {}, [])
    counts = {"kills": 2, "messages": 1200, "replays_compared": 1, "lost": 0}
    record.add("a", "efo_crashes", {"ok": True, "crashed_at": "planned", "counts": counts})
    record.add("b", "efo_random_kills", {"ok": True, "killed": ["jvm", "worker"], "counts": counts})
    record.add("c", "moto_polling_random_kills", {"ok": False, "killed": ["jvm"], "counts": {**counts, "lost": 3}})
    rows = [line for line in kills({"what": "kinesis", "summary": record.summary}) if line.startswith("| `")]
    assert rows == [
        "| `efo_random_kills` | 1 | 2 | 1,200 | 1 | 0 | 0 | 0 | 0 | 77.6% |",
        "| `moto_polling_random_kills` | 1 | 2 | 1,200 | 1 | 0 | 3 | 0 | 1 |  |",
    ]
