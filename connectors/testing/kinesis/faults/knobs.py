"""What a test can ask of the Kinesis server and do to it; the same in its own process and from another one.

`KinesisServer` and `KinesisControl` are both `KinesisKnobs`. ``operation``, ``stream`` and ``shard`` are names and ids
as in the API; None means any. Faults stay until they are used up, set again, or cleared by `clear_faults`.

Times: what is a time of the service (retention, lives of iterators, limits a second, transitions) is counted on the
server's clock, which `set_speed` and `jump` change. What is a delay on the network (`delay_calls`) is real seconds.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from connectors.testing.kinesis.faults.calls import Call

__all__ = ["KinesisKnobs", "OpenSubscription", "StoredRecord"]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record that the server holds."""

    shard: str
    sequence_number: int
    partition_key: str
    data: bytes
    arrival: float
    """Server time, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class OpenSubscription:
    """A SubscribeToShard that is under way."""

    consumer: str
    """ARN of the consumer."""
    shard: str
    opened: float
    """Server time, in seconds since 1970."""
    events: int
    """How many were sent."""


class KinesisKnobs(ABC):
    """See the top of this module. Every method raises `ValueError` for an argument that is not legal."""

    @abstractmethod
    def _command(self, name: str, /, **arguments: object) -> Any:
        """Run a method of `KinesisCommands`; arguments and result are JSON values."""

    # -- streams, shards, records --

    def create_stream(self, stream: str, shards: int = 1) -> None:
        """Create a provisioned stream."""
        self._command("create_stream", stream=stream, shards=shards)

    def delete_stream(self, stream: str) -> None:
        """Delete a stream, with its records."""
        self._command("delete_stream", stream=stream)

    def recreate_stream(self, stream: str, shards: int = 1) -> None:
        """Delete a stream and create another one under its name, later by the clock of the service."""
        self._command("recreate_stream", stream=stream, shards=shards)

    def put(
        self, stream: str, records: Sequence[tuple[str, bytes]], explicit_hash_key: int | None = None
    ) -> list[tuple[str, int]]:
        """Put any number of (partition key, data), whatever the limits and faults; gives shard and sequence number."""
        encoded = [[key, base64.b64encode(data).decode()] for key, data in records]
        placed = self._command("put", stream=stream, records=encoded, explicit_hash_key=explicit_hash_key)
        return [(shard, int(number)) for shard, number in placed]

    def fill(self, stream: str, count: int, data_bytes: int, keys: int = 1000) -> None:
        """Put ``count`` records made in the server: a decimal number from 0 up, padded with dots at the left.

        Their partition keys are ``key-0`` to ``key-<keys - 1>``, in turn.
        """
        self._command("fill", stream=stream, count=count, data_bytes=data_bytes, keys=keys)

    def records(self, stream: str, shard: str | None = None) -> list[StoredRecord]:
        """What the server holds, shard by shard in the order of their numbers."""
        found = self._command("records", stream=stream, shard=shard)
        return [
            StoredRecord(of_shard, int(number), key, base64.b64decode(data), arrival)
            for of_shard, number, key, data, arrival in found
        ]

    def shards(self, stream: str, *, only_open: bool = False) -> list[str]:
        """Ids of the shards that are listed, in the order of their numbers."""
        found: list[str] = self._command("shards", stream=stream, only_open=only_open)
        return found

    def split(self, stream: str, shard: str) -> list[str]:
        """Split a shard in the middle; gives the children."""
        children: list[str] = self._command("split", stream=stream, shard=shard)
        return children

    def merge(self, stream: str, shard: str, adjacent: str) -> str:
        """Merge two adjacent shards; gives the child."""
        return str(self._command("merge", stream=stream, shard=shard, adjacent=adjacent))

    def ignore_keys(self, stream: str, *, on: bool = True) -> None:
        """Let records go to any shard, whatever their keys: record distribution strategy AUTO."""
        self._command("ignore_keys", stream=stream, on=on)

    def set_max_record_size(self, stream: str, kib: int) -> None:
        """Let a stream take records of up to ``kib`` KiB, from 1024 (the default) to 10240."""
        self._command("set_max_record_size", stream=stream, kib=kib)

    def trim(self, stream: str, shard: str, count: int) -> None:
        """Forget the oldest ``count`` records of a shard, as if they were past the retention."""
        self._command("trim", stream=stream, shard=shard, count=count)

    def number_from(self, stream: str, shard: str, sequence_number: int) -> None:
        """Give the next records of a shard this sequence number, and the ones after it; they must be above the last."""
        self._command("number_from", stream=stream, shard=shard, sequence_number=str(sequence_number))

    # -- time --

    def now(self) -> float:
        """Server time, in seconds since 1970."""
        return float(self._command("now"))

    def jump(self, seconds: float) -> None:
        """Move server time forward at once; what became due is done when this returns."""
        self._command("jump", seconds=seconds)

    def set_speed(self, speed: float) -> None:
        """Let server time run ``speed`` times as fast as real time from now on."""
        self._command("set_speed", speed=speed)

    def set_transition(self, seconds: float) -> None:
        """Let creating, deleting and resharding a stream take server time; 0, the default, is at once."""
        self._command("set_transition", seconds=seconds)

    # -- faults of calls --

    def fail(
        self,
        operation: str | None,
        kind: str,
        times: int | None = 1,
        *,
        message: str = "made to fail",
        status: int = 400,
        after_effect: bool = False,
        stream: str | None = None,
        shard: str | None = None,
    ) -> None:
        """Answer the next ``times`` calls (None: all) with an error. Several calls of `fail` are used up in order.

        Args:
            operation: such as ``GetRecords``.
            kind: such as ``InternalFailureException``.
            times: how many calls; None for all until `clear_faults`.
            message: text of the error.
            status: HTTP status; 500 and above are what a client takes for trouble of the service.
            after_effect: the call takes effect, only its answer is lost.
            stream: only calls about this stream.
            shard: only calls about this shard.
        """
        self._command(
            "fail",
            operation=operation,
            kind=kind,
            times=times,
            message=message,
            status=status,
            after_effect=after_effect,
            stream=stream,
            shard=shard,
        )

    def throttle(
        self, operation: str | None, times: int | None = 1, *, stream: str | None = None, shard: str | None = None
    ) -> None:
        """Answer the next ``times`` calls with ``ProvisionedThroughputExceededException``."""
        message = "Rate exceeded for the shard."
        kind = "ProvisionedThroughputExceededException"
        self.fail(operation, kind, times, message=message, stream=stream, shard=shard)

    def cut(
        self,
        operation: str | None,
        times: int | None = 1,
        *,
        after_effect: bool = False,
        after_bytes: int = 0,
        stream: str | None = None,
        shard: str | None = None,
    ) -> None:
        """Cut the connection of the next ``times`` calls.

        Args:
            operation: such as ``PutRecords``.
            times: how many calls; None for all until `clear_faults`.
            after_effect: the call takes effect first.
            after_bytes: with ``after_effect``, so much of the answer's body is sent.
            stream: only calls about this stream.
            shard: only calls about this shard.
        """
        self._command(
            "cut",
            operation=operation,
            times=times,
            after_effect=after_effect,
            after_bytes=after_bytes,
            stream=stream,
            shard=shard,
        )

    def delay_calls(
        self, operation: str | None, seconds: float, *, stream: str | None = None, shard: str | None = None
    ) -> None:
        """Let calls wait before they are handled; 0 ends it."""
        self._command("delay_calls", operation=operation, seconds=seconds, stream=stream, shard=shard)

    def enforce_limits(self, *, on: bool = True) -> None:
        """Keep the service's limits a second: calls, and records and bytes of shards. Off by default."""
        self._command("enforce_limits", on=on)

    # -- faults of reading and writing --

    def fail_entries(
        self,
        kind: str = "ProvisionedThroughputExceededException",
        count: int | None = 1,
        *,
        every: int = 1,
        stream: str | None = None,
        partition_key: str | None = None,
    ) -> None:
        """Let entries of PutRecords fail, in requests that succeed.

        Args:
            kind: ``ProvisionedThroughputExceededException`` or ``InternalFailure``.
            count: how many entries; None for all until `clear_faults`.
            every: of the entries that are meant, only each ``every``-th fails.
            stream: only entries for this stream.
            partition_key: only entries with this key.
        """
        self._command("fail_entries", kind=kind, count=count, every=every, stream=stream, partition_key=partition_key)

    def require_order(self, *, on: bool = True) -> None:
        """Refuse a PutRecord without SequenceNumberForOrdering when its key has had one since this was set.

        So a test sees whether a client orders its records, which the service does not do by itself.
        """
        self._command("require_order", on=on)

    def empty_answers(self, stream: str, shard: str, count: int) -> None:
        """Answer the next ``count`` GetRecords of a shard without records, also when some lie ahead."""
        self._command("empty_answers", stream=stream, shard=shard, count=count)

    def walk(self, seconds: float) -> None:
        """Let one GetRecords look over so much server time at most, as the service does; 0, the default, is all."""
        self._command("walk", seconds=seconds)

    def hide_ends(self, *, on: bool = True) -> None:
        """Let GetRecords of a closed shard give iterators for ever, as moto does."""
        self._command("hide_ends", on=on)

    def claim_behind(self, seconds: float) -> None:
        """Let responses without records say for ever that they are so far behind; 0, the default, ends it."""
        self._command("claim_behind", seconds=seconds)

    def set_iterator_life(self, seconds: float) -> None:
        """Let iterators expire after so much server time (default: 300)."""
        self._command("set_iterator_life", seconds=seconds)

    def refuse_trimmed(self, *, on: bool = True) -> None:
        """Refuse GetShardIterator at or after a record that was trimmed; else it starts at the oldest kept record."""
        self._command("refuse_trimmed", on=on)

    # -- enhanced fan-out --

    def set_subscription_life(self, seconds: float) -> None:
        """Let subscriptions that are opened from now on end after so much server time (default: 300)."""
        self._command("set_subscription_life", seconds=seconds)

    def set_takeover(self, seconds: float) -> None:
        """Refuse a second SubscribeToShard of a consumer and shard for so much server time (default: 5).

        Later ones take the subscription over.
        """
        self._command("set_takeover", seconds=seconds)

    def set_heartbeat(self, seconds: float) -> None:
        """Let an idle subscription send an event after so much server time (default: 5)."""
        self._command("set_heartbeat", seconds=seconds)

    def set_push_delay(self, seconds: float) -> None:
        """Let so much server time pass between the arrival of a record and its event (default: 0.01)."""
        self._command("set_push_delay", seconds=seconds)

    def silence_subscriptions(self, *, on: bool = True) -> None:
        """Keep subscriptions open and send nothing; without ``on`` they resume where they stopped."""
        self._command("silence_subscriptions", on=on)

    def subscriptions(self, stream: str) -> list[OpenSubscription]:
        """The subscriptions of a stream that are open."""
        return [OpenSubscription(**found) for found in self._command("subscriptions", stream=stream)]

    def end_subscriptions(
        self,
        stream: str,
        shard: str | None = None,
        kind: str | None = "ResourceInUseException",
        message: str = "made to fail",
    ) -> int:
        """End open subscriptions by an error inside of the stream, or cut their connections; gives how many.

        Args:
            stream: name of the stream.
            shard: only those of this shard.
            kind: such as ``ResourceInUseException`` or ``InternalFailureException``; None cuts the connections.
            message: text of the error.
        """
        return int(self._command("end_subscriptions", stream=stream, shard=shard, kind=kind, message=message))

    def clear_faults(self) -> None:
        """Back to a server without faults, and with the default settings of all that can be set here."""
        self._command("clear_faults")

    # -- what happened --

    def calls(
        self, operation: str | None = None, stream: str | None = None, shard: str | None = None, since: int = 0
    ) -> list[Call]:
        """The calls of clients in order; ``since`` is the index of the first one that counts."""
        found = self._command("calls", operation=operation, stream=stream, shard=shard, since=since)
        return [Call(**call) for call in found]

    def next_call(self) -> int:
        """The index of the call that comes next, for ``since``."""
        return int(self._command("next_call"))

    def call_counts(self, stream: str | None = None, shard: str | None = None) -> dict[str, int]:
        """How many calls of each operation there were since the start or `reset_calls`, also those that failed."""
        counts: dict[str, int] = self._command("call_counts", stream=stream, shard=shard)
        return counts

    def reset_calls(self) -> None:
        """Forget the calls so far."""
        self._command("reset_calls")
