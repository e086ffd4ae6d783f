"""The operations on shards: list, split and merge them, and change their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from connectors.testing.clock import SECOND
from connectors.testing.kinesis.model.rules import ACCOUNT, Arguments, ServiceError, invalid, not_valid
from connectors.testing.kinesis.model.state import KinesisState, read_token, write_token
from connectors.testing.kinesis.model.streams import HASH_KEYS, Shard, Stream

__all__ = ["ShardOperations", "find_shard"]

_MOST_LISTED = 10_000
_LISTED = 1000
_TOKEN_LIFE_NS = 300 * SECOND
_FILTERS = ("AFTER_SHARD_ID", "AT_TRIM_HORIZON", "FROM_TRIM_HORIZON", "AT_LATEST", "AT_TIMESTAMP", "FROM_TIMESTAMP")
_MOST_SHARDS = 10_000

_Choice = Callable[[Shard], bool]


def find_shard(stream: Stream, shard_id: str) -> Shard:
    """A shard that is listed."""
    shard = stream.shards.get(shard_id)
    if shard is None:
        message = f"Shard {shard_id} in stream {stream.name} under account {ACCOUNT} does not exist"
        raise ServiceError("ResourceNotFoundException", message)
    return shard


class ShardOperations:
    """Each public method is an operation of the API."""

    def __init__(self, state: KinesisState) -> None:
        self._state = state

    def list_shards(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """ListShards: all shards that are not past the retention, or those of a filter, in pages by id."""
        limit = arguments.optional_whole("MaxResults", 1, _MOST_LISTED) or _LISTED
        token = arguments.optional_text("NextToken")
        if token is not None:
            if arguments.optional_stream() is not None:
                raise invalid("NextToken and StreamName cannot be provided together.")
            name, after, choice, issued = self._page(token, now)
            stream = self._state.stream_named(name, now)
        else:
            stream = self._state.stream(arguments, now)
            after = arguments.optional_text("ExclusiveStartShardId") or ""
            choice, issued = _choice_token(arguments.optional_object("ShardFilter")), now
        chosen = _choice(choice, stream, issued)
        shards = sorted(
            (shard for shard in stream.shards.values() if shard.id > after and chosen(shard)),
            key=lambda each: each.index,
        )
        answer: dict[str, Any] = {"Shards": [shard.described() for shard in shards[:limit]]}
        if len(shards) > limit:
            answer["NextToken"] = write_token("shards", stream.name, shards[limit - 1].id, *choice, issued)
        return answer

    def _page(self, token: str, now: int) -> tuple[str, str, tuple[str, str | int], int]:
        values = read_token(token, 6)
        if values is None or values[0] != "shards":
            raise invalid("NextToken is not legal.")
        _, name, after, kind, value, issued = values
        if now - issued > _TOKEN_LIFE_NS:
            raise ServiceError("ExpiredNextTokenException", "The NextToken is older than 300 seconds.")
        return name, after, (kind, value), issued

    def split_shard(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """SplitShard."""
        stream = self._state.active_stream(arguments, now)
        shard = _open(stream, find_shard(stream, arguments.name("ShardToSplit")))
        middle = arguments.text("NewStartingHashKey")
        if not middle.isdecimal() or not shard.first_hash + 1 < int(middle) < shard.last_hash:
            message = f"NewStartingHashKey {middle} used in SplitShard() on shard {shard.id} in stream {stream.name}"
            raise invalid(
                f"{message} under account {ACCOUNT} is not both greater than one plus the shard's StartingHashKey"
                f" {shard.first_hash} and less than the shard's EndingHashKey {shard.last_hash}."
            )
        self._reshard(stream, now, lambda due: _split(stream, shard, int(middle), due))
        return {}

    def merge_shards(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """MergeShards."""
        stream = self._state.active_stream(arguments, now)
        shards = [_open(stream, find_shard(stream, arguments.name("ShardToMerge")))]
        shards.append(_open(stream, find_shard(stream, arguments.name("AdjacentShardToMerge"))))
        low, high = sorted(shards, key=lambda shard: shard.first_hash)
        if low.last_hash + 1 != high.first_hash:
            names = f"{shards[0].id} and {shards[1].id} in stream {stream.name} under account {ACCOUNT}"
            raise invalid(f"Shards {names} are not an adjacent pair of shards eligible for merging")
        self._reshard(stream, now, lambda due: _merge(stream, shards[0], shards[1], due))
        return {}

    def update_shard_count(self, arguments: Arguments, now: int) -> dict[str, Any]:
        """UpdateShardCount: splits at the edges of the target, then merges within them, as the service does."""
        stream = self._state.active_stream(arguments, now)
        scaling = arguments.text("ScalingType")
        if scaling != "UNIFORM_SCALING":
            raise not_valid(scaling, "scalingType", "must satisfy enum value set: [UNIFORM_SCALING]")
        target = arguments.whole("TargetShardCount", 1, _MOST_SHARDS)
        current = len(stream.open_shards())
        if stream.on_demand:
            raise ServiceError("ValidationException", "UpdateShardCount is not for a stream on demand.")
        if target > 2 * current or 2 * target < current:
            raise invalid(f"The target {target} is above twice, or below half of, the {current} shards there are.")
        self._reshard(stream, now, lambda due: _scale(stream, target, due))
        return {
            "StreamName": stream.name,
            "StreamARN": stream.arn,
            "CurrentShardCount": current,
            "TargetShardCount": target,
        }

    def _reshard(self, stream: Stream, now: int, change: Callable[[int], object]) -> None:
        stream.status = "UPDATING"

        def finish(due: int) -> None:
            change(due)
            stream.status = "ACTIVE"

        self._state.after_transition(now, finish)


def _open(stream: Stream, shard: Shard) -> Shard:
    if shard.closed_ns is not None:
        message = f"Shard {shard.id} in stream {stream.name} under account {ACCOUNT} has already been closed"
        raise ServiceError("ResourceInUseException", message)
    return shard


def _split(stream: Stream, shard: Shard, middle: int, now: int) -> None:
    low = stream.add_shard(now, shard.first_hash, middle - 1, (shard,))
    high = stream.add_shard(now, middle, shard.last_hash, (shard,))
    shard.close(now, [low, high])
    stream.shards_changed()


def _merge(stream: Stream, shard: Shard, adjacent: Shard, now: int) -> Shard:
    low, high = sorted((shard, adjacent), key=lambda each: each.first_hash)
    child = stream.add_shard(now, low.first_hash, high.last_hash, (shard, adjacent))
    for parent in (shard, adjacent):
        parent.close(now, [child])
    stream.shards_changed()
    return child


def _scale(stream: Stream, target: int, now: int) -> None:
    edges = [HASH_KEYS * place // target for place in range(1, target)]
    for shard in list(stream.open_shards()):
        _split_at_all(stream, shard, edges, now)
    for first, after in zip([0, *edges], [*edges, HASH_KEYS], strict=True):
        pieces = [shard for shard in stream.open_shards() if first <= shard.first_hash < after]
        whole = pieces[0]
        for piece in pieces[1:]:
            whole = _merge(stream, whole, piece, now)


def _split_at_all(stream: Stream, shard: Shard, edges: list[int], now: int) -> None:
    """Split in halves of edges, so that as few shards as can be lie between the first parent and the last child."""
    inside = [edge for edge in edges if shard.first_hash < edge <= shard.last_hash]
    if inside:
        middle = len(inside) // 2
        _split(stream, shard, inside[middle], now)
        for child in shard.children:
            _split_at_all(stream, child, inside, now)


def _choice_token(shard_filter: Arguments | None) -> tuple[str, str | int]:
    """A filter as two values that fit into a token."""
    if shard_filter is None:
        return "FROM_TRIM_HORIZON", ""
    kind = shard_filter.text("Type")
    if kind not in _FILTERS:
        raise not_valid(kind, "shardFilter.type", f"must satisfy enum value set: [{', '.join(_FILTERS)}]")
    if kind == "AFTER_SHARD_ID":
        return kind, shard_filter.name("ShardId")
    if kind.endswith("TIMESTAMP"):
        time_ns = shard_filter.optional_time("Timestamp")
        if time_ns is None:
            raise invalid("Timestamp must be provided for the shard filter type")
        return kind, time_ns
    return kind, ""


def _choice(choice: tuple[str, str | int], stream: Stream, now: int) -> _Choice:
    match choice:
        case ("AFTER_SHARD_ID", after):
            return lambda shard: shard.id > str(after)
        case ("AT_LATEST", _):
            return lambda shard: shard.closed_ns is None
        case ("AT_TRIM_HORIZON", _):
            return _open_at(stream.shards.values(), max(stream.horizon_ns(now), stream.created_second * SECOND))
        case ("AT_TIMESTAMP", time_ns):
            return _open_at(stream.shards.values(), int(time_ns))
        case ("FROM_TIMESTAMP", time_ns):
            moment = int(time_ns)
            return lambda shard: shard.closed_ns is None or shard.closed_ns >= moment
    return lambda _: True


def _open_at(shards: Iterable[Shard], moment: int) -> _Choice:
    # A time before the first shard means the first shards.
    moment = max(moment, min((shard.created_ns for shard in shards), default=0))
    return lambda shard: shard.created_ns <= moment and (shard.closed_ns is None or shard.closed_ns > moment)
