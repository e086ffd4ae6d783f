"""From the rows of a task to PublishRequests: at most 1,000 messages and 10 MB, one topic and one ordering key each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connectors.pubsub.client.wire import cut, string_field, values_and_ends
from connectors.pubsub.sink.rows import MAX_REQUEST_BYTES, EncodedRows, RowStamp, SinkColumns, encode_rows

__all__ = ["PublishRequest", "publish_requests"]

_MAX_REQUEST_MESSAGES: Final = 1000
"""Most messages of a PublishRequest (https://cloud.google.com/pubsub/quotas#resource_limits)."""

_GATHERED_BYTES: Final = 8 << 20
"""So much is gathered from small batches, so that requests are full, and those of one ordering key few."""

_TOPIC: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class PublishRequest:
    """Messages that are sent together; their ordering key is empty for messages without order.

    Attributes:
        messages: the encoded messages of more requests than this one.
        ends: where in them each of these begins and, last, where they end.
        numbers: the number of each row in its partition.
    """

    topic: str
    ordering_key: str
    messages: memoryview
    ends: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def size(self) -> int:
        """Bytes of the messages."""
        return int(self.ends[-1] - self.ends[0])

    def encode(self) -> bytes:
        """Return the request as it is sent."""
        return b"".join((string_field(_TOPIC, self.topic), self.messages[self.ends[0] : self.ends[-1]]))

    def part(self, first: int, last: int) -> PublishRequest:
        """Return a request with the messages from one to before another."""
        return PublishRequest(
            self.topic, self.ordering_key, self.messages, self.ends[first : last + 1], self.numbers[first:last]
        )


def publish_requests(
    batches: Iterable[pa.RecordBatch], columns: SinkColumns, stamp: RowStamp
) -> Iterator[PublishRequest]:
    """Yield the requests for all rows of a task; the rows of a topic and ordering key stay in their order."""
    gathered: list[EncodedRows] = []
    size = first = 0
    for batch in batches:
        for encoded in encode_rows(batch, columns, stamp, first):
            gathered.append(encoded)
            size += encoded.messages.nbytes
            if size >= _GATHERED_BYTES:
                yield from _requests(gathered, columns)
                gathered, size = [], 0
        first += batch.num_rows
    if gathered:
        yield from _requests(gathered, columns)


def _requests(parts: list[EncodedRows], columns: SinkColumns) -> Iterator[PublishRequest]:
    messages = _concatenated([part.messages for part in parts])
    numbers = np.concatenate([part.numbers for part in parts])
    topics, topic_codes = _codes([part.topics for part in parts], columns.topic or "", len(numbers))
    keys, key_codes = _codes([part.ordering_keys for part in parts], "", len(numbers))
    groups = topic_codes * len(keys) + key_codes
    starts = np.flatnonzero(np.diff(groups)) + 1
    if len(starts):
        # Stable, so that the rows of a group stay in their order.
        order = np.argsort(groups, kind="stable")
        groups, numbers, messages = groups[order], numbers[order], messages.take(pa.array(order))
        starts = np.flatnonzero(np.diff(groups)) + 1
    data, ends = values_and_ends(messages)
    for begin, end in pairwise([0, *starts.tolist(), len(groups)]):
        topic, key = topics[int(groups[begin]) // len(keys)], keys[int(groups[begin]) % len(keys)]
        whole = PublishRequest(topic, key, data, ends[begin : end + 1], numbers[begin:end])
        room = MAX_REQUEST_BYTES - len(string_field(_TOPIC, topic))
        for first, last in cut(whole.ends, _MAX_REQUEST_MESSAGES, room):
            yield whole.part(first, last)


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _codes(parts: list[pa.Array | None], constant: str, rows: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct values, and the index of each row's; without a column all rows have the same value."""
    columns = [part for part in parts if part is not None]
    if not columns:
        return [constant], np.zeros(rows, np.int64)
    encoded = pc.dictionary_encode(_concatenated(columns))
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
