"""What is done to the traced source, once with Spark (`record.py`) and once with the protocol driver.

A scenario tells an engine what to do and waits only for things that both engines have: a batch that went through the
sink, idle polling, an end. Nothing depends on time, so the calls a reader gets are the same each time, once runs of
equal calls are folded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

TRACES = Path(__file__).parent / "traces"
LONGEST_CYCLE = 16
"""Longest run of calls that is folded when it repeats, in calls."""
KILLED = "source is killed"
_LIFE_EVENTS = (KILLED, "source stop()", "source DataSourceStreamReader.__init__()")


class Engine(Protocol):
    """Runs one query at a time over the traced sources of a scenario, always on the same checkpoint."""

    def head(self, rows: int, label: str = "a") -> None:
        """Set how many rows a source has."""

    def start(
        self,
        trigger: str = "default",
        *,
        fail_at: int | None = None,
        hold_at: int | None = None,
        grow_at: tuple[int, int] | None = None,
    ) -> None:
        """Start the query: its sink fails at a batch, or waits there for ever, or sets the head (batch, head)."""

    def until_batches(self, count: int) -> None:
        """Wait until the sink has finished this many batches since the start."""

    def until_held(self) -> None:
        """Wait until the sink waits at the batch it was told to hold."""

    def until_idle(self) -> None:
        """Wait until the source was asked several times and had nothing new."""

    def until_failed(self) -> None:
        """Wait until the query has ended with an error."""

    def until_finished(self) -> None:
        """Wait until the query has ended by itself."""

    def stop(self) -> None:
        """Stop the query."""

    def batch_read_actions(self) -> None:
        """Load the source once as a batch; then count it, collect it, and collect it filtered."""


@dataclass(frozen=True)
class Scenario:
    """A name, what it shows, the options of each source by label, and the steps."""

    name: str
    shows: str
    steps: Callable[[Engine], None]
    sources: dict[str, dict[str, str]] = field(default_factory=lambda: {"a": {}})
    scans: int = 1
    """How often the plan reads the source: 2 stands for a union of the stream with itself."""


def _cold_start_with_data(engine: Engine) -> None:
    engine.head(6)
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.head(9)
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()


def _cold_start_without_data(engine: Engine) -> None:
    engine.head(0)
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.head(3)
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()


def _restart_without_new_data(engine: Engine) -> None:
    engine.head(2)
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.head(4)
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()
    engine.start()
    engine.until_idle()
    engine.head(5)
    engine.until_batches(1)
    engine.until_idle()
    engine.stop()


def _failed_batch_0(engine: Engine) -> None:
    engine.head(5)
    engine.start(fail_at=0)
    engine.until_failed()
    engine.head(8)
    engine.start(fail_at=0)
    engine.until_failed()
    engine.start()
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()


def _failed_later_batch(engine: Engine) -> None:
    engine.head(3)
    engine.start(fail_at=2)
    engine.until_batches(1)
    engine.until_idle()
    engine.head(5)
    engine.until_batches(2)
    engine.until_idle()
    engine.head(6)
    engine.until_failed()
    engine.head(10)
    engine.start()
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()


def _rate_limit(engine: Engine) -> None:
    engine.head(7)
    engine.start()
    engine.until_batches(3)
    engine.until_idle()
    engine.stop()


def _processing_time(engine: Engine) -> None:
    engine.head(3)
    engine.start("processing_time")
    engine.until_batches(1)
    engine.until_idle()
    engine.head(4)
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()


def _once(engine: Engine) -> None:
    engine.head(7)
    engine.start("once")
    engine.until_finished()
    engine.start("once")
    engine.until_finished()
    engine.head(9)
    engine.start("once", fail_at=1)
    engine.until_failed()
    engine.head(11)
    engine.start("once")
    engine.until_finished()
    engine.start("once")
    engine.until_finished()


def _available_now(engine: Engine) -> None:
    engine.head(7)
    engine.start("available_now", grow_at=(1, 9))
    engine.until_finished()
    engine.start("available_now")
    engine.until_finished()
    engine.start("available_now")
    engine.until_finished()


def _available_now_without_data(engine: Engine) -> None:
    engine.head(0)
    engine.start("available_now")
    engine.until_finished()
    engine.start("available_now")
    engine.until_finished()


def _available_now_after_failure(engine: Engine) -> None:
    engine.head(5)
    engine.start("available_now", fail_at=1)
    engine.until_failed()
    engine.start("available_now")
    engine.until_finished()


def _unresolved_alone(engine: Engine) -> None:
    engine.head(-1)
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.head(4)
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()


def _two_sources_one_lags(engine: Engine) -> None:
    engine.head(2)
    engine.head(-1, "b")
    engine.start(fail_at=3)
    engine.until_batches(1)
    engine.until_idle()
    engine.head(4)
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()
    engine.start(fail_at=3)
    engine.until_idle()
    engine.head(5)
    engine.until_batches(1)
    engine.until_idle()
    engine.head(3, "b")
    engine.until_failed()
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.head(6)
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()


def _two_sources_one_idle(engine: Engine) -> None:
    engine.head(2)
    engine.head(2, "b")
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.head(4)
    engine.until_batches(2)
    engine.until_idle()
    engine.stop()


def _other_key_order(engine: Engine) -> None:
    engine.head(4)
    engine.start(hold_at=7)
    engine.until_held()
    engine.stop()


def _none_at_first(engine: Engine) -> None:
    engine.head(-1)
    engine.start()
    engine.until_failed()
    engine.start()
    engine.until_failed()


def _none_later(engine: Engine) -> None:
    engine.head(3)
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.head(-1)
    engine.until_failed()
    engine.start()
    engine.until_failed()


def _drifting_initial(engine: Engine) -> None:
    engine.head(0)
    engine.start(fail_at=0)
    engine.until_failed()
    engine.start(hold_at=1)
    engine.until_idle()
    engine.stop()


def _reader_raises(engine: Engine) -> None:
    engine.head(3)
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.head(-1)
    engine.until_failed()
    engine.start()
    engine.until_failed()


def _reader_raises_in_partitions(engine: Engine) -> None:
    engine.head(-2)
    engine.start()
    engine.until_failed()
    engine.head(4)
    engine.start()
    engine.until_batches(1)
    engine.until_idle()
    engine.stop()


def _batch_read(engine: Engine) -> None:
    engine.head(5)
    engine.batch_read_actions()


SCENARIOS = [
    Scenario("cold_start_with_data", "a first batch, idle polling, a second batch", _cold_start_with_data),
    Scenario(
        "cold_start_without_data", "batch 0 is built without data, later batches are not", _cold_start_without_data
    ),
    Scenario(
        "restart_without_new_data", "idle after a restart; commit comes with the next data", _restart_without_new_data
    ),
    Scenario("failed_batch_0", "batch 0 fails twice and is planned again before any latestOffset", _failed_batch_0),
    Scenario("failed_later_batch", "batch 2 fails and is planned again before any latestOffset", _failed_later_batch),
    Scenario("rate_limit", "the default limit cuts batches", _rate_limit, {"a": {"limit": "3"}}),
    Scenario("processing_time", "polling once an interval", _processing_time),
    Scenario("once", "one call with ReadAllAvailable, without prepare", _once, {"a": {"limit": "3"}}),
    Scenario("available_now", "prepare, limited batches, end", _available_now, {"a": {"limit": "3"}}),
    Scenario("available_now_without_data", "a first run without data", _available_now_without_data),
    Scenario(
        "available_now_after_failure",
        "the unfinished batch, then the rest",
        _available_now_after_failure,
        {"a": {"limit": "3"}},
    ),
    Scenario("unresolved_alone", "the sentinel is logged as the end of batch 0", _unresolved_alone),
    Scenario(
        "two_sources_one_lags",
        "the sentinel is logged in several batches; the first real end fails and is planned again",
        _two_sources_one_lags,
        {"a": {}, "b": {}},
    ),
    Scenario("two_sources_one_idle", "a batch for one source only", _two_sources_one_idle, {"a": {}, "b": {}}),
    Scenario(
        "other_key_order",
        "an equal offset with another key order gives empty batches",
        _other_key_order,
        {"a": {"variant": "other_key_order"}},
    ),
    Scenario(
        "none_at_first", "None is logged as null and fails in partitions", _none_at_first, {"a": {"variant": "none"}}
    ),
    Scenario("none_later", "None after a batch is logged as null", _none_later, {"a": {"variant": "none"}}),
    Scenario(
        "drifting_initial",
        "initialOffset is called again for the first batch, and again after a restart",
        _drifting_initial,
        {"a": {"variant": "drifting_initial"}},
    ),
    Scenario(
        "reader_raises",
        "an error of the reader ends the query; stop is called",
        _reader_raises,
        {"a": {"variant": "raise_in_latest"}},
    ),
    Scenario(
        "reader_raises_in_partitions",
        "planning fails after the offsets were logged, and is repeated with the same offsets",
        _reader_raises_in_partitions,
        {"a": {"variant": "raise_in_partitions"}},
    ),
    Scenario("union_with_itself", "one reader, partitions called once for each scan", _cold_start_with_data, scans=2),
    Scenario(
        "old_signature", "latestOffset without arguments", _cold_start_with_data, {"a": {"variant": "old_signature"}}
    ),
    Scenario("batch_read", "planned once a load, read by every action", _batch_read),
]


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events a trace file holds so far, whole lines only."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line]


def _sort_reads(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring reads by tasks in order of their partitions, because tasks run side by side."""
    answer: list[dict[str, Any]] = []
    reads: list[dict[str, Any]] = []
    for event in events:
        if event["call"] == "read":
            reads.append(event)
            continue
        answer += sorted(reads, key=lambda read: json.dumps(read["args"]))
        reads = []
        answer.append(event)
    return answer + sorted(reads, key=lambda read: json.dumps(read["args"]))


def fold(calls: list[str]) -> list[str | list[str]]:
    """Write a run that repeats as one list of its calls, shorter cycles first.

    A cycle that was cut off by the end of its process is dropped: where it was cut is chance.
    """
    answer: list[str | list[str]] = []
    position = 0
    while position < len(calls):
        cycle, following = _cycle(calls, position)
        if cycle:
            answer.append(cycle)
            position = following
        else:
            answer.append(calls[position])
            position += 1
    return answer


def _cycle(calls: list[str], position: int) -> tuple[list[str], int]:
    """The cycle that repeats from a position on, and the position after it; or an empty cycle."""
    for length in range(1, LONGEST_CYCLE + 1):
        cycle = calls[position : position + length]
        following = position + length
        if len(cycle) < length or any(call in _LIFE_EVENTS for call in cycle):
            break
        while calls[following : following + length] == cycle:
            following += length
        if following > position + length:
            cut = 0
            while following + cut < len(calls) and calls[following + cut] == cycle[cut]:
                cut += 1
            ends = following + cut == len(calls) or calls[following + cut] in _LIFE_EVENTS
            return cycle, following + cut if ends else following
    return [], position


def folded_trace(events: list[dict[str, Any]]) -> dict[str, list[str | list[str]]]:
    """The calls of each source as text, without times and process ids, with runs of equal calls folded."""
    answer: dict[str, list[str | list[str]]] = {}
    for source in sorted({event["source"] for event in events}):
        mine = _sort_reads([event for event in events if event["source"] == source])
        answer[source] = fold(_with_ends([_shown(event) for event in mine]))
    return answer


def _with_ends(calls: list[str]) -> list[str]:
    """The calls with every end by the engine shown in one way.

    Spark sends SIGTERM when a query stops. Where that interrupts an answer the reader may see its socket closed
    a moment earlier, and PySpark then calls ``stop()``: which of the two comes, or both, is chance. After a reader
    has raised, ``stop()`` always comes, and SIGTERM may.
    """
    answer: list[str] = []
    for call in calls:
        last = answer[-1] if answer else ""
        stopped = call == "source stop()" and not last.endswith('-> "raises"')
        if stopped or call.startswith("source signal("):
            if last not in (KILLED, "source stop()"):
                answer.append(KILLED)
        else:
            answer.append(call)
    return answer


def _shown(event: dict[str, Any]) -> str:
    arguments = ", ".join(json.dumps(argument) for argument in event["args"])
    result = "" if event["result"] is None else f" -> {json.dumps(event['result'])}"
    if event["call"] == "latestOffset" and event["result"] is None:
        result = " -> null"
    return f"{event['role']} {event['call']}({arguments}){result}"
