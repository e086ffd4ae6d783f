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

__all__ = ["MAX_REQUEST_MESSAGES", "PublishRequest", "publish_requests"]

MAX_REQUEST_MESSAGES: Final = 1000
"""Most messages of a PublishRequest (https://cloud.google.com/pubsub/quotas#resource_limits)."""

_GATHERED_BYTES: Final = 8 << 20
"""So much is gathered from small batches, so that requests are full, and those of one ordering key few."""

_TOPIC: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class PublishRequest:
    """Messages that go out together.

    Attributes:
        topic: full path.
        ordering_key: of all of them; empty for messages without order.
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
        """The request as it is sent."""
        return b"".join((string_field(_TOPIC, self.topic), self.messages[self.ends[0] : self.ends[-1]]))

    def part(self, first: int, last: int) -> PublishRequest:
        """The messages from one to before another."""
        return PublishRequest(
            self.topic, self.ordering_key, self.messages, self.ends[first : last + 1], self.numbers[first:last]
        )


def publish_requests(
    batches: Iterable[pa.RecordBatch], columns: SinkColumns, stamp: RowStamp
) -> Iterator[PublishRequest]:
    """The requests for all rows of a task; the rows of a topic and ordering key stay in their order.

    Args:
        batches: rows of the task, in their order.
        columns: where in them the parts of a message are.
        stamp: names each row.

    Raises:
        ConnectorError: ``PUBSUB_BAD_ROW``: a row cannot be published.
    """
    gathered: list[EncodedRows] = []
    size = first = 0
    for batch in batches:
        for encoded in encode_rows(batch, columns, stamp, first):
            gathered.append(encoded)
            size += encoded.messages.nbytes
            if size >= _GATHERED_BYTES:
                yield from _requests(_joined(gathered), columns)
                gathered, size = [], 0
        first += batch.num_rows
    if gathered:
        yield from _requests(_joined(gathered), columns)


def _joined(parts: list[EncodedRows]) -> EncodedRows:
    if len(parts) == 1:
        return parts[0]
    topics = [part.topics for part in parts]
    keys = [part.ordering_keys for part in parts]
    return EncodedRows(
        pa.concat_arrays([part.messages for part in parts]),
        None if topics[0] is None else pa.concat_arrays(topics),
        None if keys[0] is None else pa.concat_arrays(keys),
        np.concatenate([part.numbers for part in parts]),
    )


def _requests(rows: EncodedRows, columns: SinkColumns) -> Iterator[PublishRequest]:
    messages, numbers = rows.messages, rows.numbers
    topics, topic_codes = _codes(rows.topics, columns.topic or "", len(numbers))
    keys, key_codes = _codes(rows.ordering_keys, "", len(numbers))
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
        for first, last in cut(whole.ends, MAX_REQUEST_MESSAGES, room):
            yield whole.part(first, last)


def _codes(values: pa.Array | None, same: str, rows: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The distinct values, and which of them each row has; without a column all have the same."""
    if values is None:
        return [same], np.zeros(rows, np.int64)
    encoded = pc.dictionary_encode(values)
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
