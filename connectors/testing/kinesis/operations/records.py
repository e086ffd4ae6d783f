"""The operations on records: put them, and read them by shard iterators."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from connectors.testing.kinesis.faults.plan import FaultPlan
from connectors.testing.kinesis.model.limits import Limits, throughput_exceeded
from connectors.testing.kinesis.model.rules import ACCOUNT, Arguments, ServiceError, invalid, not_valid
from connectors.testing.kinesis.model.state import KinesisState, read_token, write_token
from connectors.testing.kinesis.model.streams import HASH_KEYS, Record, Shard, Stream
from connectors.testing.kinesis.operations.shards import find_shard

__all__ = ["RecordOperations", "encode_record", "fitting_count", "hash_of", "position_of", "shard_of_iterator"]

_MOST_ENTRIES = 500
_MOST_PUT_BYTES = 10 << 20
_LONGEST_KEY = 256
_MOST_READ = 10_000
_MOST_READ_BYTES = 10 << 20
_MILLISECOND = 1_000_000
_POSITIONS = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")


def hash_of(partition_key: str) -> int:
    """The hash key of a partition key."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


def encode_record(data: str, partition_key: str) -> bytes:
    """The end of a record's JSON object; ``data`` is base64."""
    return b'"Data":"%s","PartitionKey":%s}' % (data.encode(), json.dumps(partition_key).encode())


def shard_of_iterator(iterator: str) -> tuple[str, str]:
    """Names of the stream and the shard that an iterator is about; empty for any other text."""
    values = read_token(iterator, 7)
    return ("", "") if values is None else (values[1], values[3])


def position_of(shard: Shard, start: Arguments, number_name: str, now: int, *, refuse_trimmed: bool) -> tuple[int, int]:
    """Where a read starts: after which sequence number, and from which server time on it walks.

    Args:
        shard: the shard to read.
        start: has ``Type`` (or ``ShardIteratorType``), and what belongs to it.
        number_name: the argument that holds a sequence number.
        now: server time.
        refuse_trimmed: see `FaultPlan`.

    Raises:
        ServiceError: the start makes no sense for this shard.
    """
    name = "ShardIteratorType" if "ShardIteratorType" in start.values else "Type"
    kind = start.text(name)
    if kind not in _POSITIONS:
        raise not_valid(kind, name[:1].lower() + name[1:], f"must satisfy enum value set: [{', '.join(_POSITIONS)}]")
    if kind == "TRIM_HORIZON":
        return -1, 0
    if kind == "LATEST":
        return (shard.last if shard.ending is None else shard.ending), now
    if kind == "AT_TIMESTAMP":
        time_ns = start.optional_time("Timestamp")
        if time_ns is None:
            raise invalid("Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP.")
        if time_ns > now:
            raise invalid(
                f"The timestampInMillis parameter cannot be greater than the currentTimestampInMillis."
                f" timestampInMillis: {time_ns // _MILLISECOND}, currentTimestampInMillis: {now // _MILLISECOND}"
            )
        place = shard.place_at_time(time_ns)
        return (shard.sequences[place] - 1 if place < len(shard.sequences) else shard.last), time_ns
    return _after_number(shard, start.optional_text(number_name), kind, refuse_trimmed=refuse_trimmed), 0


def _after_number(shard: Shard, text: str | None, kind: str, *, refuse_trimmed: bool) -> int:
    if text is None:
        raise invalid(f"Must specify StartingSequenceNumber parameter for iterator of type {kind}.")
    known = text.isdecimal() and text.isascii() and shard.owns(int(text))
    if not known or (refuse_trimmed and int(text) <= shard.trimmed_to):
        raise invalid(
            f"StartingSequenceNumber {text} used in GetShardIterator on shard {shard.id} under account {ACCOUNT} is"
            " invalid because it did not come from this stream."
        )
    return int(text) - (kind == "AT_SEQUENCE_NUMBER")


def fitting_count(records: list[Record], start: int, most: int, most_bytes: int) -> tuple[int, int]:
    """How many records from a place on go into one answer, at least one if any is there; and their bytes."""
    size = 0
    place = start
    end = min(len(records), start + most)
    while place < end:
        size += records[place].size
        if size > most_bytes and place > start:
            return place - start, size - records[place].size
        place += 1
    return place - start, size


class RecordOperations:
    """Each public method is an operation of the API."""

    def __init__(self, state: KinesisState, limits: Limits) -> None:
        self._state = state
        self._limits = limits
        self._faults = state.faults
        self._scattered = 0

    # -- writing --

    def put_record(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """PutRecord."""
        stream = self._open_stream(arguments, now)
        data, key, hash_key, size = _entry(stream, arguments, "")
        if self._faults.order_required:
            newest = stream.shard_of(hash_key).last
            _check_order(stream, key, arguments.optional_text("SequenceNumberForOrdering"), newest)
        shard, record = self._put(stream, now, data, key, hash_key, size)
        if record is None:
            raise throughput_exceeded(stream, shard)
        if self._faults.order_required:
            stream.last_numbers[key] = record.sequence
        return {"ShardId": shard.id, "SequenceNumber": str(record.sequence), "EncryptionType": "NONE"}

    def put_records(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """PutRecords: the request is refused as a whole, or each entry has its own outcome."""
        stream = self._open_stream(arguments, now)
        values = arguments.values.get("Records")
        if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
            raise not_valid(None, "records", "must not be null")
        if not 1 <= len(values) <= _MOST_ENTRIES:
            raise not_valid("[...]", "records", f"must have length between 1 and {_MOST_ENTRIES}")
        entries = [
            _entry(stream, Arguments(each), f"records.{number}.member.") for number, each in enumerate(values, 1)
        ]
        if sum(size for *_, size in entries) > _MOST_PUT_BYTES:
            raise invalid(f"Records size exceeds {_MOST_PUT_BYTES >> 20} MB limit")
        answers = [self._put_entry(stream, now, *entry) for entry in entries]
        failed = sum("ErrorCode" in answer for answer in answers)
        return {"FailedRecordCount": failed, "Records": answers, "EncryptionType": "NONE"}

    def _put_entry(self, stream: Stream, now: int, data: str, key: str, hash_key: int, size: int) -> dict[str, str]:
        error = self._faults.entry_error(stream.name, key)
        if error == "InternalFailure":
            return {"ErrorCode": error, "ErrorMessage": "Internal service failure."}
        shard = stream.shard_of(hash_key)
        record = None
        if error is None:
            shard, record = self._put(stream, now, data, key, hash_key, size)
        if record is None:
            refusal = throughput_exceeded(stream, shard)
            return {"ErrorCode": error or refusal.kind, "ErrorMessage": refusal.message}
        return {"SequenceNumber": str(record.sequence), "ShardId": shard.id}

    def _put(
        self, stream: Stream, now: int, data: str, key: str, hash_key: int, size: int
    ) -> tuple[Shard, Record | None]:
        shard = stream.shard_of(hash_key)
        if stream.keys_ignored:
            self._scattered += 1
            shard = stream.open_shards()[self._scattered % len(stream.open_shards())]
        if self._faults.limits and not self._limits.may_write(shard, size, now):
            return shard, None
        return shard, shard.append(now, size, encode_record(data, key))

    def _open_stream(self, arguments: Arguments, now: int) -> Stream:
        stream = self._state.stream(arguments, now)
        if stream.status == "CREATING":
            message = f"Stream {stream.name} under account {ACCOUNT} not found."
            raise ServiceError("ResourceNotFoundException", message)
        return stream

    # -- reading --

    def get_shard_iterator(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """GetShardIterator."""
        stream = self._open_stream(arguments, now)
        shard = find_shard(stream, arguments.name("ShardId"))
        if self._faults.limits:
            self._limits.check_shard_call("GetShardIterator", stream, shard, now)
        after, walked = position_of(
            shard, arguments, "StartingSequenceNumber", now, refuse_trimmed=self._faults.refuse_trimmed
        )
        return {"ShardIterator": _iterator(stream, shard, after, walked, now)}

    def get_records(self, arguments: Arguments, now: int) -> bytes:
        """GetRecords."""
        text = arguments.text("ShardIterator")
        most = arguments.optional_whole("Limit", 1, _MOST_READ) or _MOST_READ
        stream, shard, after, walked = self._read_iterator(text, now)
        if self._faults.limits:
            self._limits.check_shard_call("GetRecords", stream, shard, now)
        start = shard.place_after(after)
        if self._faults.takes_empty_answer(stream.name, shard.id):
            count = size = 0
        else:
            count, size = fitting_count(shard.records, start, most, _MOST_READ_BYTES)
            if self._faults.page_ns:
                walked = self._walk(stream, shard, start, walked, now)
                count = min(count, max(0, shard.place_at_time(walked) - start))
        if self._faults.limits:
            self._limits.spend_read(shard, size, now)
        if count:
            after = shard.sequences[start + count - 1]
        return _answer(
            stream, shard, start, count, (after, walked if self._faults.page_ns else 0, now), faults=self._faults
        )

    def _walk(self, stream: Stream, shard: Shard, start: int, walked: int, now: int) -> int:
        """The server time up to which an answer looks that goes on at a place, or where one before it had come to."""
        if start:
            walked = max(walked, shard.records[start - 1].arrival_ns)
        return min(now, max(walked, shard.created_ns, stream.horizon_ns(now)) + self._faults.page_ns)

    def _read_iterator(self, text: str, now: int) -> tuple[Stream, Shard, int, int]:
        values = read_token(text, 7)
        if values is None or values[0] != "iterator":
            raise invalid("Invalid ShardIterator.")
        _, name, created, shard_id, after, walked, issued = values
        stream = self._state.stream_named(name, now)
        if stream.created_second != created:
            raise invalid("Invalid ShardIterator.")
        shard = find_shard(stream, shard_id)
        if now - issued > self._faults.iterator_life_ns:
            life = self._faults.iterator_life_ns // _MILLISECOND
            raise ServiceError(
                "ExpiredIteratorException",
                f"Iterator expired. The iterator was created at time {issued // _MILLISECOND} while right now it is"
                f" {now // _MILLISECOND} which is further in the future than the tolerated delay of {life}"
                " milliseconds.",
            )
        return stream, shard, after, walked


def _iterator(stream: Stream, shard: Shard, after: int, walked: int, now: int) -> str:
    return write_token("iterator", stream.name, stream.created_second, shard.id, after, walked, now)


def _answer(
    stream: Stream, shard: Shard, start: int, count: int, position: tuple[int, int, int], *, faults: FaultPlan
) -> bytes:
    """The body of an answer with ``count`` records; ``position`` is what the next iterator says."""
    _, walked, now = position
    end = start + count
    behind_ns = 0
    if end < len(shard.records):
        behind_ns = max(_MILLISECOND, now - shard.records[end].arrival_ns)
    elif walked:
        behind_ns = max(0, (now if shard.closed_ns is None else shard.closed_ns) - walked)
    behind_ms = max(behind_ns // _MILLISECOND, 0 if count else faults.claimed_behind_ms)
    rest: dict[str, Any] = {"MillisBehindLatest": behind_ms}
    if shard.closed_ns is not None and not behind_ms and not faults.hidden_ends:
        rest["ChildShards"] = shard.described_children()
    else:
        rest["NextShardIterator"] = _iterator(stream, shard, *position)
    records = b",".join(each.encoded for each in shard.records[start:end])
    return b'{"Records":[%s],%s' % (records, json.dumps(rest).encode()[1:])


def _check_order(stream: Stream, key: str, named: str | None, newest: int) -> None:
    """Without the number of a record before it, the service may give a record a lower number."""
    last = stream.last_numbers.get(key)
    if last is not None and (named is None or not named.isdecimal() or int(named) > max(last, newest)):
        raise invalid(f"The SequenceNumberForOrdering of the key {key!r} is {named}; its last number is {last}.")


def _entry(stream: Stream, arguments: Arguments, path: str) -> tuple[str, str, int, int]:
    """Data in base64, partition key, hash key and size of an entry that is put."""
    key = arguments.text("PartitionKey")
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise not_valid(key[:_LONGEST_KEY], f"{path}partitionKey", f"must have length between 1 and {_LONGEST_KEY}")
    data = arguments.text("Data")
    try:
        size = len(base64.b64decode(data, validate=True)) + len(key.encode())
    except ValueError:
        raise ServiceError("SerializationException", f"{path}data is not base64") from None
    if size > stream.max_record_kib << 10:
        limit = stream.max_record_kib << 10
        raise ServiceError(
            "ValidationException",
            f"1 validation error detected: Value at '{path}data' failed to satisfy constraint: Member must have length"
            f" less than or equal to {limit}",
        )
    explicit = arguments.optional_text("ExplicitHashKey")
    if explicit is None:
        return data, key, hash_of(key), size
    if not explicit.isdecimal() or not explicit.isascii() or int(explicit) >= HASH_KEYS:
        raise invalid(
            "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was"
            f" {explicit}"
        )
    return data, key, int(explicit), size
