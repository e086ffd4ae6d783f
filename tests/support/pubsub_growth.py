"""What thousands of batches leave behind: memory and open files of reader and fetcher, files of the spool.

The reader and the fetcher are the real processes; tasks run in the test's own process and the sink keeps only ids, so
that a batch costs little but what the source itself does.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from tests.support.pubsub_rig import PubSubRig
from tests.support.spark_protocol.driver import StreamingQuery, resident_bytes

ROWS_A_BATCH = 5
GROWTH_ALLOWED = 0.10
# The ledger retains 256 records, which about 210 batches write; the number of files grows until then.
BASE_BATCH = 400

_BATCHES_A_PUBLISH = 4
_SAMPLE_EVERY = 5
_SAMPLES = 20
_OPTIONS = {"maxRecordsPerTrigger": str(ROWS_A_BATCH), "maxFetchPeriod": "1ms", "streams": "1"}
_POLL_SECONDS = 0.001
_DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Footprint:
    """What was seen during a hundred batches.

    Attributes:
        batch: how many batches had run at the end.
        reader_bytes, fetcher_bytes: resident memory; the most that was seen.
        files: all files below the spool; the most, because their number goes up and down like the teeth of a saw.
        descriptors: open descriptors of the reader and the fetcher; the fewest, because files are opened for moments.
            Files of the spool do not count, unless they are deleted: each run of ids stays open.
    """

    batch: int
    reader_bytes: int
    fetcher_bytes: int
    files: int
    descriptors: int


class IdSink:
    """Keeps the ids of all rows, and checks that the rows of all batches stand at dense positions."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def __call__(self, batch_id: int, tables: Sequence[pa.Table]) -> None:
        offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
        assert offsets == list(range(len(self.ids), len(self.ids) + len(offsets))), f"batch {batch_id}: {offsets}"
        self.ids += [each for table in tables for each in table["messageId"].to_pylist()]


def footprints(rig: PubSubRig, marks: Sequence[int]) -> Iterator[Footprint]:
    """Run batches of five rows up to the last mark, give the footprint at each mark, and compare ids at the end.

    Args:
        rig: a new one; in-process workers make it fast.
        marks: numbers of batches, rising, each a multiple of the five batches between two samples.
    """
    sink = IdSink()
    samples: deque[Footprint] = deque(maxlen=_SAMPLES)
    with rig.query(_OPTIONS, sink=sink, poll_interval=_POLL_SECONDS) as query:
        # One portion goes ahead, so that it is fetched while the one before it is read.
        rig.publish(ROWS_A_BATCH * _BATCHES_A_PUBLISH)
        for batch in range(1, marks[-1] + 1):
            if batch % _BATCHES_A_PUBLISH == 1:
                rig.publish(ROWS_A_BATCH * _BATCHES_A_PUBLISH)
            query.run_batch()
            if batch % _SAMPLE_EVERY == 0:
                samples.append(_sample(rig, query, batch))
            if batch in marks:
                yield _summary(samples)
        query.run_until(lambda _: len(sink.ids) >= len(rig.published), _DRAIN_SECONDS)
        query.idle(3)
    assert sorted(sink.ids) == sorted(rig.published)


def grown(footprint: Footprint, base: Footprint) -> list[str]:
    """What stands more than a tenth above the base, one line each; nothing if all is well."""
    before = asdict(base)
    return [
        f"{name}: {before[name]} at batch {base.batch}, {value} at batch {footprint.batch}"
        for name, value in asdict(footprint).items()
        if name != "batch" and value > before[name] * (1 + GROWTH_ALLOWED)
    ]


def _sample(rig: PubSubRig, query: StreamingQuery, batch: int) -> Footprint:
    (fetcher,) = rig.fetchers(query)
    reader = query.reader.pid
    return Footprint(
        batch,
        resident_bytes(reader),
        resident_bytes(fetcher),
        sum(len(files) for _, _, files in os.walk(rig.spool)),
        _descriptors(reader, rig.spool) + _descriptors(fetcher, rig.spool),
    )


def _descriptors(pid: int, spool: Path) -> int:
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            opened = str(link.readlink())
            count += not opened.startswith(str(spool)) or opened.endswith("(deleted)")
    return count


def _summary(samples: Sequence[Footprint]) -> Footprint:
    return Footprint(
        batch=samples[-1].batch,
        reader_bytes=max(sample.reader_bytes for sample in samples),
        fetcher_bytes=max(sample.fetcher_bytes for sample in samples),
        files=max(sample.files for sample in samples),
        descriptors=min(sample.descriptors for sample in samples),
    )
