"""What it costs to validate each block of a segment before its rows are used: offsets, lengths and UTF-8.

A checksum says that bytes are those that were written; who can write to the spool can write both. Both sides read the
rows of one segment in mapped memory and sum their payloads' bytes, with blocks as a fetcher makes them.

    ./dev bench segment_validation [--rounds N]
"""

from __future__ import annotations

import secrets
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _common import Benchmark, interleaved, parser

from connectors.pubsub.client.client import wire_message
from connectors.pubsub.source.records import make_decoder
from connectors.spool.segments.id_keys import keys_of
from connectors.spool.segments.segment import SegmentReader, SegmentWriter
from connectors.spool.store.local import LocalStore

ROWS = 20_000
BLOCKS = 4


def block(size: int) -> pa.RecordBatch:
    """Rows as the Pub/Sub source stores them, with two attributes each."""
    response = wire_message("StreamingPullResponse")()
    for number in range(ROWS):
        message = response.received_messages.add(ack_id="a").message
        message.message_id, message.data = str(16_000_000_000_000_000 + number), b"x" * size
        for key in ("region", "kind"):
            entry = message.attributes.add()
            entry.key, entry.value = key, f"value {number % 7}"
    return make_decoder().decode([response.SerializeToString()]).rows


def written(store: LocalStore, size: int, compression: str, number: int) -> str:
    """Publish a segment of some blocks and return its name."""
    rows = block(size)
    writer = SegmentWriter(store, "s", "f", number, rows.schema, compression=compression)
    ids = keys_of(rows.column("messageId"), b"k" * 16)
    for _ in range(BLOCKS):
        writer.append(rows, ids, np.full(len(rows), size, np.int64), None)
    return writer.publish().name


def read(store: LocalStore, name: str, *, validate: bool) -> float:
    """Read a segment; return rows a second."""
    began, rows = time.perf_counter(), 0
    for _, batch in SegmentReader(store, name).batches(0, ROWS * BLOCKS):
        if validate:
            batch.validate(full=True)
        rows += len(batch)
        pc.sum(pc.binary_length(batch.column("payload")))
    assert rows == ROWS * BLOCKS
    return rows / (time.perf_counter() - began)


def main() -> None:
    """Compare for payloads of 100 and 1,000 bytes, and compressed blocks."""
    options = parser(__doc__).parse_args()
    benchmark = Benchmark("segment_validation")
    benchmark.settings(rows=ROWS * BLOCKS, blocks=BLOCKS)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "spool")
        root.mkdir(mode=0o700)
        store = LocalStore(str(root), secrets.token_hex(8))
        for number, (size, compression) in enumerate([(100, ""), (1000, ""), (1000, "lz4")]):
            name = written(store, size, compression, number)
            both = {
                "validated": partial(read, store, name, validate=True),
                "not validated": partial(read, store, name, validate=False),
            }
            case = f"{size}-bytes" + (f"-{compression}" if compression else "")
            benchmark.compare(case, *interleaved(both, options.rounds), "rows/s")
    benchmark.finish()


if __name__ == "__main__":
    main()
