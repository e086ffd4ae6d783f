# ruff: noqa: FBT001 - `KinesisKnobs` documents each command, and passes every argument by its name
"""The commands behind `KinesisKnobs`, on the runtime of a server; arguments and results are JSON values."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from connectors.testing.clock import SECOND
from connectors.testing.command_values import nanoseconds, not_negative, one_of
from connectors.testing.kinesis.faults.plan import Cut, EntryFailure, ScriptedError, Target
from connectors.testing.kinesis.model.rules import Arguments, ServiceError
from connectors.testing.kinesis.model.streams import Record, Shard, Stream
from connectors.testing.kinesis.operations.records import encode_record, hash_of
from connectors.testing.kinesis.operations.shards import ShardOperations, find_shard
from connectors.testing.kinesis.operations.streams import StreamOperations
from connectors.testing.kinesis.runtime import KinesisRuntime

__all__ = ["KinesisCommands"]

_ENTRY_ERRORS = ("ProvisionedThroughputExceededException", "InternalFailure")


class KinesisCommands:
    """Each public method is a command; `KinesisKnobs` says what it does."""

    def __init__(self, runtime: KinesisRuntime) -> None:
        self._runtime = runtime
        self._faults = runtime.faults
        self._state = runtime.state
        self._calls = runtime.calls
        self._shards = ShardOperations(runtime.state)
        self._streams = StreamOperations(runtime.state)

    def run(self, name: str, arguments: dict[str, object]) -> object:
        """Run a command by its name; raises `ValueError` with the reason when it cannot be done."""
        command = None if name.startswith("_") or name == "run" else getattr(self, name, None)
        if command is None:
            message = f"no such command: {name!r}"
            raise ValueError(message)
        try:
            return self._runtime.call(lambda: command(**arguments))
        except (ServiceError, TypeError) as error:
            raise ValueError(str(error)) from error

    def _stream(self, stream: str) -> Stream:
        return self._state.stream_named(stream, self._now())

    def _shard(self, stream: str, shard: str) -> Shard:
        return find_shard(self._stream(stream), shard)

    def _now(self) -> int:
        return self._runtime.clock.now()

    # -- streams, shards, records --

    def create_stream(self, stream: str, shards: int) -> None:
        self._streams.create_stream(Arguments({"StreamName": stream, "ShardCount": shards}), self._now())

    def delete_stream(self, stream: str) -> None:
        self._state.delete(self._stream(stream), self._now())

    def recreate_stream(self, stream: str, shards: int) -> None:
        self._state.remove(self._stream(stream))
        self.create_stream(stream, shards)

    def put(self, stream: str, records: list[list[str]], explicit_hash_key: int | None) -> list[list[str]]:
        placed = self._append(stream, ((key, data) for key, data in records), explicit_hash_key)
        return [[shard.id, str(record.sequence)] for shard, record in placed]

    def fill(self, stream: str, count: int, data_bytes: int, keys: int) -> None:
        made = (str(number).rjust(data_bytes, ".").encode() for number in range(count))
        records = ((f"key-{number % keys}", base64.b64encode(data).decode()) for number, data in enumerate(made))
        self._append(stream, records, None)

    def _append(
        self, stream: str, records: Iterable[tuple[str, str]], explicit_hash_key: int | None
    ) -> list[tuple[Shard, Record]]:
        target, now = self._stream(stream), self._now()
        placed = []
        for key, data in records:
            shard = target.shard_of(hash_of(key) if explicit_hash_key is None else explicit_hash_key)
            size = len(base64.b64decode(data, validate=True)) + len(key.encode())
            placed.append((shard, shard.append(now, size, encode_record(data, key))))
        return placed

    def records(self, stream: str, shard: str | None) -> list[list[object]]:
        shards = [self._shard(stream, shard)] if shard else list(self._stream(stream).shards.values())
        return [[each.id, *_shown(record)] for each in shards for record in each.records]

    def shards(self, stream: str, only_open: bool) -> list[str]:
        shards = self._stream(stream).shards.values()
        return [shard.id for shard in shards if not only_open or shard.closed_ns is None]

    def split(self, stream: str, shard: str) -> list[str]:
        parent = self._shard(stream, shard)
        middle = (parent.first_hash + parent.last_hash + 1) // 2
        values = {"StreamName": stream, "ShardToSplit": shard, "NewStartingHashKey": str(middle)}
        self._shards.split_shard(Arguments(values), self._now())
        return [child.id for child in parent.children]

    def merge(self, stream: str, shard: str, adjacent: str) -> str:
        values = {"StreamName": stream, "ShardToMerge": shard, "AdjacentShardToMerge": adjacent}
        parent = self._shard(stream, shard)
        self._shards.merge_shards(Arguments(values), self._now())
        return "".join(child.id for child in parent.children)

    def ignore_keys(self, stream: str, on: bool) -> None:
        self._stream(stream).keys_ignored = on

    def set_max_record_size(self, stream: str, kib: int) -> None:
        values = {"StreamName": stream, "MaxRecordSizeInKiB": kib}
        self._streams.update_max_record_size(Arguments(values), self._now())

    def trim(self, stream: str, shard: str, count: int) -> None:
        found = self._shard(stream, shard)
        if not 0 <= count <= len(found.records):
            message = f"{shard} has {len(found.records)} records, so {count} cannot be trimmed"
            raise ValueError(message)
        found.trim_count(count)

    def number_from(self, stream: str, shard: str, sequence_number: str) -> None:
        self._shard(stream, shard).renumber(int(sequence_number))

    # -- time --

    def now(self) -> float:
        return self._now() / SECOND

    def jump(self, seconds: float) -> None:
        self._runtime.clock.jump(seconds)
        self._runtime.clock_changed()

    def set_speed(self, speed: float) -> None:
        self._runtime.clock.set_speed(speed)
        self._runtime.clock_changed()

    def set_transition(self, seconds: float) -> None:
        self._state.transition_ns = nanoseconds(seconds)

    # -- faults of calls --

    def fail(
        self,
        operation: str | None,
        kind: str,
        times: int | None,
        *,
        message: str,
        status: int,
        after_effect: bool,
        stream: str | None,
        shard: str | None,
    ) -> None:
        target = self._target(operation, stream, shard)
        self._faults.errors.append(ScriptedError(target, _times(times), kind, message, status, after_effect))

    def cut(
        self,
        operation: str | None,
        times: int | None,
        after_effect: bool,
        after_bytes: int,
        stream: str | None,
        shard: str | None,
    ) -> None:
        target = self._target(operation, stream, shard)
        self._faults.cuts.append(Cut(target, _times(times), after_effect, after_bytes))

    def delay_calls(self, operation: str | None, seconds: float, stream: str | None, shard: str | None) -> None:
        target = self._target(operation, stream, shard)
        self._faults.delays[target] = not_negative("seconds", seconds)

    def _target(self, operation: str | None, stream: str | None, shard: str | None) -> Target:
        known = self._runtime.service.operation_names()
        if operation is not None:
            one_of("operation", operation, *known)
        return Target(operation, stream, shard)

    def enforce_limits(self, on: bool) -> None:
        self._faults.limits = on

    # -- faults of reading and writing --

    def fail_entries(
        self, kind: str, count: int | None, every: int, stream: str | None, partition_key: str | None
    ) -> None:
        if every < 1:
            message = f"every must be at least 1, not {every}"
            raise ValueError(message)
        kind = one_of("kind", kind, *_ENTRY_ERRORS)
        self._faults.entry_failures.append(EntryFailure(kind, stream, partition_key, _times(count), every))

    def require_order(self, on: bool) -> None:
        self._faults.order_required = on

    def empty_answers(self, stream: str, shard: str, count: int) -> None:
        self._shard(stream, shard)
        self._faults.empty_answers[stream, shard] = int(not_negative("count", count))

    def walk(self, seconds: float) -> None:
        self._faults.page_ns = nanoseconds(seconds)

    def hide_ends(self, on: bool) -> None:
        self._faults.hidden_ends = on

    def claim_behind(self, seconds: float) -> None:
        self._faults.claimed_behind_ms = nanoseconds(seconds) // 1_000_000

    def set_iterator_life(self, seconds: float) -> None:
        self._faults.iterator_life_ns = nanoseconds(seconds)

    def refuse_trimmed(self, on: bool) -> None:
        self._faults.refuse_trimmed = on

    # -- enhanced fan-out --

    def set_subscription_life(self, seconds: float) -> None:
        self._faults.subscription_life_ns = nanoseconds(seconds)

    def set_takeover(self, seconds: float) -> None:
        self._faults.takeover_ns = nanoseconds(seconds)

    def set_heartbeat(self, seconds: float) -> None:
        self._faults.heartbeat_ns = max(1, nanoseconds(seconds))

    def set_push_delay(self, seconds: float) -> None:
        self._faults.push_delay_ns = nanoseconds(seconds)

    def silence_subscriptions(self, on: bool) -> None:
        self._faults.silent_subscriptions = on

    def subscriptions(self, stream: str) -> list[dict[str, object]]:
        return [
            {
                "consumer": consumer.arn,
                "shard": shard,
                "opened": subscription.opened_ns / SECOND,
                "events": subscription.events,
            }
            for consumer in self._stream(stream).consumers.values()
            for shard, subscription in consumer.subscriptions.items()
        ]

    def end_subscriptions(self, stream: str, shard: str | None, kind: str | None, message: str) -> int:
        affected = [
            subscription
            for consumer in self._stream(stream).consumers.values()
            for of_shard, subscription in consumer.subscriptions.items()
            if shard in {None, of_shard}
        ]
        for subscription in affected:
            if kind is None:
                subscription.cut()
            else:
                subscription.fail(kind, message)
        return len(affected)

    def clear_faults(self) -> None:
        self._faults.clear()

    # -- what happened --

    def calls(
        self, operation: str | None, stream: str | None, shard: str | None, since: int
    ) -> list[dict[str, object]]:
        return [call.to_json() for call in self._calls.select(since, operation, stream, shard)]

    def next_call(self) -> int:
        return self._calls.next_index()

    def call_counts(self, stream: str | None, shard: str | None) -> dict[str, int]:
        return self._calls.counts(stream, shard)

    def reset_calls(self) -> None:
        self._calls.reset()


def _shown(record: Record) -> list[object]:
    values = json.loads(record.encoded)
    return [str(record.sequence), values["PartitionKey"], values["Data"], record.arrival_ns / SECOND]


def _times(value: int | None) -> int | None:
    if value is not None and value < 1:
        message = f"a number of times must be at least 1, or None, not {value}"
        raise ValueError(message)
    return value
